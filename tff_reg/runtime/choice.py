"""Which runtime is in use: `use`, `running`, `describe`, `shutdown`."""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import sys
import threading
from collections.abc import Iterator, Sequence
from typing import Any, Callable, Optional, Union

from tff_reg.runtime import addresses, devices as devices_lib, workers as workers_lib

KINDS = ("in_process", "native", "remote")

# One string with commas, or a list.
Names = Union[str, Sequence[str], None]


@dataclasses.dataclass(frozen=True)
class _Runtime:
    """One chosen runtime: its contexts, and how to end it."""

    description: str
    context: Any
    async_context: Any
    stop: Callable[[], None]
    worker_pid: Callable[[], Optional[int]] = lambda: None


_lock = threading.RLock()
_current: Optional[_Runtime] = None
_tff_default = None  # TFF's own default context, while we stand in its place
_atexit_registered = False


def use(
    kind: str,
    *,
    devices: Names = None,
    clients_in_parallel: Optional[int] = None,
    require_gpu: bool = False,
    intra_op_threads: Optional[int] = None,
    workers: Names = None,
) -> None:
    """Makes every TFF computation run in the runtime `kind` from now on.

    This holds for the calling thread and for all threads that TFF has not been
    imported in. The runtime that was in use before is ended.

    Args:
        kind: `"in_process"`: in this Python process's TensorFlow, with its GPUs;
            `"native"`: in TFF's C++ worker, a process of its own, on the CPU;
            `"remote"`: the clients in TFF's C++ workers on other machines, the rest
            here.
        devices: In process only. The devices that clients are spread over,
            round-robin: a list such as `["GPU:0", "GPU:1"]`, or the same as one
            string with commas. None: all GPUs, or `CPU:0` where there is none.
        clients_in_parallel: How many clients run at the same time on each device
            (in the native worker: how many computations; remote: on each worker).
            None: one on a GPU; on a CPU the number of cores, at most 8. Remote, that
            is this machine's number.
        require_gpu: Refuse to run on anything but GPUs.
        intra_op_threads: In process only. TensorFlow's threads for one operation,
            which can be set before TensorFlow has started only. None: what was
            set before, else the number of cores divided by the default of
            `clients_in_parallel`, whatever that is now: results are then the same
            to the bit for every `clients_in_parallel`. To use all cores for one
            client at a time, give 1 and the number of cores.
        workers: Remote only. Where the workers are: a list such as
            `["node1:8000", "node2:8000"]`, or the same as one string with commas.
            `bin/worker` starts one.

    Raises:
        ValueError: If an argument is not one of the above.
        NoGpuError: If `require_gpu` and TensorFlow sees no GPU.
        WorkerError: If one of the `workers` cannot be reached.
    """
    with _lock:
        runtime = _create(
            kind,
            _Options(
                devices, clients_in_parallel, require_gpu, intra_op_threads, workers
            ),
        )
        previous = _current
        _install(runtime)
        if previous is not None:
            previous.stop()


@contextlib.contextmanager
def running(
    kind: str,
    *,
    devices: Names = None,
    clients_in_parallel: Optional[int] = None,
    require_gpu: bool = False,
    intra_op_threads: Optional[int] = None,
    workers: Names = None,
) -> Iterator[None]:
    """`use`, for the body of a `with` statement; then what was in use before.

    The choice is the process's, as with `use`: two threads cannot be inside two
    `running` blocks of different kinds.
    """
    with _lock:
        runtime = _create(
            kind,
            _Options(
                devices, clients_in_parallel, require_gpu, intra_op_threads, workers
            ),
        )
        previous = _current
        _install(runtime)
    try:
        yield
    finally:
        with _lock:
            if _current is runtime:
                _install(previous)
            runtime.stop()


def describe() -> str:
    """One line that says where clients run."""
    if _current is None:
        return "clients run in TFF's own default context (its C++ worker, on the CPU)"
    return _current.description


def worker_pid() -> Optional[int]:
    """The process id of the native runtime's worker; None if there is none."""
    return None if _current is None else _current.worker_pid()


def shutdown() -> None:
    """Ends the runtime in use, and any worker; TFF's own default takes over."""
    with _lock:
        previous = _current
        if previous is not None:
            _install(None)
            previous.stop()


def program_context():
    """Returns a `tff.program.FederatedContext` over the runtime in use.

    Programs (`tff.program`, `tff.learning.programs`) want a context of their own
    kind; install it with `tff.framework.get_context_stack().install(...)` or
    `tff.framework.set_default_context(...)`.

    Raises:
        RuntimeError: If no runtime is in use.
    """
    from tff_reg.lazy import tff

    if _current is None:
        raise RuntimeError(
            "No runtime is in use: call tff_reg.runtime.use('in_process') first."
        )
    return tff.program.NativeFederatedContext(_current.async_context)


@dataclasses.dataclass(frozen=True)
class _Options:
    """The arguments of `use` after the kind."""

    devices: Names
    clients_in_parallel: Optional[int]
    require_gpu: bool
    intra_op_threads: Optional[int]
    workers: Names

    def check(self) -> None:
        for name in ("clients_in_parallel", "intra_op_threads"):
            value = getattr(self, name)
            if value is not None and (type(value) is not int or value < 1):
                raise ValueError(
                    f"{name} must be a whole number of at least 1 (or None for the "
                    f"default), found {value!r}."
                )


def _create(kind: str, options: _Options) -> _Runtime:
    if kind not in KINDS:
        raise ValueError(
            f"The runtime kind must be one of {', '.join(KINDS)}, found {kind!r}."
        )
    options.check()
    if kind == "remote":
        return _create_remote(options)
    if options.workers is not None:
        raise ValueError(
            f"The {kind} runtime takes no workers, found {options.workers!r}; they "
            "are for the remote runtime."
        )
    return _create_native(options) if kind == "native" else _create_in_process(options)


def _create_native(options: _Options) -> _Runtime:
    if options.devices is not None:
        raise ValueError(
            "The native runtime runs on the CPU only and takes no devices, found "
            f"{options.devices!r}; use the in_process runtime to choose devices."
        )
    if options.require_gpu:
        raise ValueError(
            "The native runtime cannot use a GPU: use the in_process runtime with "
            "require_gpu."
        )
    if options.intra_op_threads is not None:
        raise ValueError(
            "The native runtime's worker has threads of its own: intra_op_threads is "
            "for the in_process runtime."
        )
    from tff_reg.runtime import native

    limit = options.clients_in_parallel
    worker = native.Worker(limit)
    context = native.create_context(worker)

    def stop():
        context.close()
        worker.stop()

    at_a_time = "" if limit is None else f" ({limit} at a time)"
    return _Runtime(
        f"clients run in TFF's C++ worker, on the CPU{at_a_time}",
        context,
        native.create_async_context(worker),
        stop,
        lambda: worker.pid,
    )


def _create_in_process(options: _Options) -> _Runtime:
    names = devices_lib.parse(options.devices)
    if options.intra_op_threads is not None or not devices_lib.are_gpus(names):
        devices_lib.set_threads(options.intra_op_threads)
    names = devices_lib.resolve(names, options.require_gpu)
    at_a_time = options.clients_in_parallel
    if at_a_time is None:
        at_a_time = devices_lib.default_clients_in_parallel(names)
    from tff_reg.runtime import context as context_lib

    workers = workers_lib.ClientWorkers(names, at_a_time)
    context = context_lib.InProcessContext(workers)
    return _Runtime(
        devices_lib.description(names, at_a_time),
        context,
        context_lib.InProcessAsyncContext(context),
        workers.stop,
    )


def _create_remote(options: _Options) -> _Runtime:
    if options.workers is None:
        raise ValueError(
            "The remote runtime needs workers: give the host:port of each, and start "
            "them with bin/worker."
        )
    if options.devices is not None:
        raise ValueError(
            "The remote runtime's workers run on CPUs only and take no devices, found "
            f"{options.devices!r}; use the in_process runtime to choose devices."
        )
    if options.require_gpu:
        raise ValueError(
            "The remote runtime's workers cannot use a GPU: use the in_process runtime "
            "with require_gpu."
        )
    if options.intra_op_threads is not None:
        raise ValueError(
            "The remote runtime's workers have threads of their own: intra_op_threads "
            "is for the in_process runtime."
        )
    names = addresses.parse(options.workers)
    at_a_time = options.clients_in_parallel or devices_lib.default_on_a_worker()
    from tff_reg.runtime import service

    service.check_workers(names)  # before TFF, which takes long to import
    from tff_reg.runtime import context as context_lib, remote

    workers = remote.RemoteWorkers(names, at_a_time)
    context = context_lib.InProcessContext(workers)
    plural, each = ("", "") if len(names) == 1 else ("s", " on each")
    return _Runtime(
        f"clients run on {len(names)} TFF worker{plural}: {', '.join(names)} "
        f"({at_a_time} at a time{each})",
        context,
        context_lib.InProcessAsyncContext(context),
        workers.stop,
    )


def _install(runtime: Optional[_Runtime]) -> None:
    """Puts `runtime`'s context, or TFF's own default, into force."""
    global _current, _tff_default, _atexit_registered
    from tff_reg.runtime import tff_internals

    if _tff_default is None:
        _tff_default = tff_internals.default_context()
    if not _atexit_registered:
        atexit.register(_at_exit)
        _atexit_registered = True
    if runtime is None:
        tff_internals.restore_default_context(_tff_default)
    else:
        tff_internals.set_default_context(runtime.context)
    _current = runtime


def _at_exit() -> None:
    """Ends what runs, and lets go of TFF's default context while Python works.

    TFF's default context owns an object whose `__del__` asks for
    `subprocess.Popen`. Left to the interpreter's last moments, when modules are
    already emptied, it prints "Exception ignored ... AttributeError", even if no
    worker was ever started. Dropped here, it ends in silence.
    """
    global _current, _tff_default
    if "tensorflow_federated" not in sys.modules:
        return
    from tff_reg.runtime import tff_internals

    with _lock:
        runtime, _current, _tff_default = _current, None, None
        tff_internals.set_no_default_context()
    if runtime is not None:
        runtime.stop()
