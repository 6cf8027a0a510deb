"""The choice of the runtime: `use`, `running`, `describe`, `shutdown`."""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import threading
from collections.abc import Callable, Iterator
from typing import Any

from tff_reg import lazy
from tff_reg.lazy import tff
from tff_reg.runtime import devices as devices_lib, ray_cluster
from tff_reg.runtime.options import Options

context_lib = lazy.module("tff_reg.runtime.context")
ray_workers = lazy.module("tff_reg.runtime.ray_workers")
internals = lazy.module("tff_reg.seam.internals")
workers_lib = lazy.module("tff_reg.runtime.workers")


@dataclasses.dataclass(frozen=True, eq=False)
class _Runtime:
    """A runtime in use: its contexts, and the function that ends it."""

    kind: str
    describe: Callable[[], str]
    context: Any
    async_context: Any
    stop: Callable[[], None]
    options: Options


_lock = threading.RLock()
# The last runtime is in force; when it ends, the one before it is in force again.
_chosen: list[_Runtime] = []


def use(kind: str, **options: Any) -> None:
    """Runs every TFF computation in the runtime `kind` from now on, in all threads.

    The runtime that was in use before is ended.

    >>> from tff_reg import runtime
    >>> runtime.use("in_process", devices="CPU:0", clients_in_parallel=2)
    >>> runtime.describe()
    'clients run in process on 1 CPU device (2 at a time)'
    >>> runtime.shutdown()

    Args:
        kind: `"in_process"`: in this Python process's TensorFlow, with its GPUs;
            `"ray"`: the clients in Ray's actors, on one or many machines, and the rest
            in this process.
        **options: The attributes of `Options`.

    Raises:
        ValueError: If the kind or an option is not valid.
        NoGpuError: If `require_gpu` is set and TensorFlow, or Ray, sees no GPU.
        WorkerError: If Ray is not installed, has no such cluster or has no room.
    """
    with _lock:
        checked = Options.checked(kind, options)
        if kind == "ray" and _is_in_ray():
            shutdown()  # Its actors occupy the cluster.
        runtime = _create(kind, checked)
        previous = _chosen[-1:]
        _chosen[-1:] = [runtime]
        _enforce()
        for each in previous:
            each.stop()


@contextlib.contextmanager
def running(kind: str, **options: Any) -> Iterator[None]:
    """Runs TFF computations in a runtime for the body of a `with` statement.

    Afterwards the runtime that was in use before is in use again. As with `use`, the
    choice holds for the whole process: if blocks overlap, in threads or in an event
    loop, the block that was entered last decides until it ends.

    >>> from tff_reg import runtime
    >>> with runtime.running("in_process", devices="CPU:0", clients_in_parallel=1):
    ...     print(runtime.describe())
    clients run in process on 1 CPU device (1 at a time)

    Args:
        kind: As in `use`.
        **options: As in `use`.

    Raises:
        ValueError: As in `use`, and if Ray is in use already.
        NoGpuError, WorkerError: As in `use`.
    """
    with _lock:
        checked = Options.checked(kind, options)
        if kind == "ray" and _is_in_ray():
            raise ValueError("The ray runtime is in use already: end it first.")
        runtime = _create(kind, checked)
        _chosen.append(runtime)
        _enforce()
    try:
        yield
    finally:
        with _lock:
            if runtime in _chosen:  # `use` may have ended it.
                _chosen.remove(runtime)
                _enforce()
            runtime.stop()


def describe() -> str:
    """Returns one line on the devices that clients run on.

    >>> from tff_reg import runtime
    >>> runtime.describe()
    "clients run in TFF's own default context (its C++ worker, on the CPU)"
    """
    if not _chosen:
        return "clients run in TFF's own default context (its C++ worker, on the CPU)"
    return _chosen[-1].describe()


def shutdown() -> None:
    """Ends the runtime in use and its workers; TFF's own default takes over."""
    with _lock:
        ended = _chosen[::-1]
        if ended:
            _chosen.clear()
            _enforce()
        for each in ended:
            each.stop()


atexit.register(shutdown)


def program_context():
    """Returns a `tff.program.FederatedContext` of the runtime in use.

    Programs (`tff.program`, `tff.learning.programs`) need this kind of context; install
    it with `tff.framework.get_context_stack().install(...)` or
    `tff.framework.set_default_context(...)`.

    >>> from tff_reg import runtime
    >>> with runtime.running("in_process", devices="CPU:0"):
    ...     type(runtime.program_context()).__name__
    'NativeFederatedContext'

    Raises:
        RuntimeError: If no runtime is in use.
    """
    return tff.program.NativeFederatedContext(_in_force().async_context)


@contextlib.contextmanager
def outside_programs() -> Iterator[None]:
    """Makes computations return values even if a program's context is installed.

    >>> from tff_reg import runtime
    >>> from tff_reg.lazy import np, tff
    >>> add = tff.tensorflow.computation(lambda x: x + 1, np.int32)
    >>> with runtime.running("in_process", devices="CPU:0"):
    ...     with runtime.outside_programs():
    ...         int(add(1))
    2

    Raises:
        RuntimeError: If a program's context is installed and no runtime is in use.
    """
    stack = tff.framework.get_context_stack()
    if isinstance(stack.current, tff.program.FederatedContext):
        with stack.install(_in_force().context):
            yield
    else:
        yield


def _in_force() -> _Runtime:
    if not _chosen:
        raise RuntimeError(
            "No runtime is in use: call tff_reg.runtime.use('in_process') first."
        )
    return _chosen[-1]


def _is_in_ray() -> bool:
    return any(each.kind == "ray" for each in _chosen)


def _create(kind: str, options: Options) -> _Runtime:
    create = {"in_process": _threads, "ray": _actors}[kind]
    workers, describe = create(options)
    context = context_lib.InProcessContext(workers, options.default_num_clients)
    asynchronous = context_lib.InProcessAsyncContext(context)
    return _Runtime(kind, describe, context, asynchronous, workers.stop, options)


def _threads(options: Options) -> tuple[Any, Callable[[], str]]:
    """Returns the threads that clients run in, and the function that describes them."""
    names = devices_lib.parse(options.devices)
    if options.intra_op_threads is not None or not devices_lib.are_gpus(names):
        devices_lib.set_threads(options.intra_op_threads)
    names = devices_lib.resolve(names, options.require_gpu)
    at_a_time = options.clients_in_parallel
    if at_a_time is None:
        at_a_time = devices_lib.default_clients_in_parallel(names)
    workers = workers_lib.ClientWorkers(names, at_a_time)
    return workers, lambda: devices_lib.description(names, at_a_time)


def _actors(options: Options) -> tuple[Any, Callable[[], str]]:
    """Returns Ray's actors, and the function that describes them."""
    if options.ray_address is not None:
        ray_cluster.check_address(options.ray_address)
    ray_cluster.check_installed()
    devices_lib.set_threads(None)
    workers = ray_workers.RayWorkers(options)
    return workers, workers.describe


def _enforce() -> None:
    """Makes TFF, and GPUs, compute as in the runtime that was chosen last."""
    if _chosen:
        options = _chosen[-1].options
        devices_lib.set_arithmetic(options.deterministic, options.tf32)
    internals.set_default_context(_chosen[-1].context if _chosen else None)
