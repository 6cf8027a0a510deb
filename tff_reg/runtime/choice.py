"""Which runtime is in use: `use`, `running`, `describe`, `shutdown`."""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Optional, Union

from tff_reg import lazy
from tff_reg.lazy import tff
from tff_reg.runtime import devices as devices_lib, ray_cluster, worker_process

context_lib = lazy.module("tff_reg.runtime.context")
native = lazy.module("tff_reg.runtime.native")
ray_workers = lazy.module("tff_reg.runtime.ray_workers")
internals = lazy.module("tff_reg.seam.internals")
workers_lib = lazy.module("tff_reg.runtime.workers")

KINDS = ("in_process", "native", "ray")
# What only the last of them takes, and what each does not take.
_OF_RAY = ("ray_address", "gpus_per_client", "cpus_per_client", "data_on_nodes")
_NOT_TAKEN = {
    "in_process": _OF_RAY,
    "native": (*_OF_RAY, "devices", "require_gpu", "intra_op_threads"),
    "ray": ("devices", "intra_op_threads"),
}

# One string with commas, or a list.
Names = Union[str, Sequence[str], None]


@dataclasses.dataclass(frozen=True, eq=False)
class _Runtime:
    """One chosen runtime: its contexts, and how to end it."""

    kind: str
    describe: Callable[[], str]
    context: Any
    async_context: Any
    stop: Callable[[], None]
    worker_pid: Callable[[], Optional[int]] = lambda: None


_lock = threading.RLock()
# The last is in force; those before it are in force again when it ends.
_chosen: list[_Runtime] = []


@dataclasses.dataclass(frozen=True)
class Options:
    """How clients run.

    Attributes:
        devices: In process only. The devices that clients are spread over,
            round-robin: a list such as `["GPU:0", "GPU:1"]`, or the same as one
            string with commas. None: all GPUs, or `CPU:0` where there is none.
        clients_in_parallel: How many clients run at the same time on each device
            (in the native worker: how many computations; Ray: in all, each in an actor
            of its own). None: one on a GPU; on a CPU the number of cores, at most 8; in
            a Ray cluster, as many as there is room for.
        require_gpu: Refuse to run on anything but GPUs.
        default_num_clients: How many clients there are for a computation whose argument
            has nothing of theirs, such as a broadcast alone.
        intra_op_threads: In process only. TensorFlow's threads for one operation,
            which can be set before TensorFlow has started only. None: what was
            set before, else the number of cores divided by the default of
            `clients_in_parallel`, whatever that is now: results are then the same
            to the bit for every `clients_in_parallel`. To use all cores for one
            client at a time, give 1 and the number of cores.
        ray_address: Ray only. The cluster's head node as `"host:port"`, or `"auto"` for
            the cluster that this machine is a node of. None: Ray is started on this
            machine, and ended with the runtime; a process that is connected to Ray
            already stays so.
        gpus_per_client: Ray only. The part of a GPU that an actor has; 0 for CPUs only.
        cpus_per_client: Ray only. The CPUs that an actor has.
        data_on_nodes: Ray only. Whether clients' examples are loaded where they are
            used, if their data set says how (`Recipe.load`), instead of being sent.
    """

    devices: Names = None
    clients_in_parallel: Optional[int] = None
    require_gpu: bool = False
    default_num_clients: int = 0
    intra_op_threads: Optional[int] = None
    ray_address: Optional[str] = None
    gpus_per_client: float = 0.25
    cpus_per_client: float = 1.0
    data_on_nodes: bool = False

    def check(self, kind: str) -> None:
        """Checks that they can be, and go with a runtime.

        Raises:
            ValueError: If not.
        """
        if kind not in KINDS:
            raise ValueError(
                f"The runtime kind must be one of {', '.join(KINDS)}, found {kind!r}."
            )
        for name in ("clients_in_parallel", "intra_op_threads"):
            value = getattr(self, name)
            if value is not None and (type(value) is not int or value < 1):
                raise ValueError(
                    f"{name} must be a whole number of at least 1 (or None for the "
                    f"default), found {value!r}."
                )
        if type(self.default_num_clients) is not int or self.default_num_clients < 0:
            raise ValueError(
                "default_num_clients must be a whole number of at least 0, found "
                f"{self.default_num_clients!r}."
            )
        for name in _NOT_TAKEN[kind]:
            value = getattr(self, name)
            if value != getattr(Options, name):  # Its default.
                other = "ray" if name in _OF_RAY else "in_process"
                raise ValueError(
                    f"The {kind} runtime takes no {name}, found {value!r}; it is for"
                    f" the {other} runtime."
                )
        if not 0 <= self.gpus_per_client <= 1:
            raise ValueError(
                "gpus_per_client must be a part of a GPU, from 0 to 1, found "
                f"{self.gpus_per_client!r}."
            )
        if not self.cpus_per_client > 0:
            raise ValueError(
                f"cpus_per_client must be above 0, found {self.cpus_per_client!r}."
            )


def use(kind: str, **options: Any) -> None:
    """Makes every TFF computation run in the runtime `kind` from now on.

    This holds for all threads. The runtime that was in use before is ended.

    Args:
        kind: `"in_process"`: in this Python process's TensorFlow, with its GPUs;
            `"native"`: in TFF's C++ worker, a process of its own, on the CPU;
            `"ray"`: the clients in Ray's actors, on this machine or on many, the rest
            here.
        **options: The attributes of `Options`.

    Raises:
        ValueError: If an argument is not one of the above.
        NoGpuError: If `require_gpu` and TensorFlow, or Ray, sees no GPU.
        WorkerError: If Ray is not installed, or there is no such cluster, or no room;
            or if TFF's C++ worker does not run on this platform.
    """
    with _lock:
        checked = Options(**options)
        checked.check(kind)
        if kind == "ray" and _is_in_ray():
            shutdown()  # Its actors have the room.
        runtime = _create(kind, checked)
        previous = _chosen[-1:]
        _chosen[-1:] = [runtime]
        _enforce()
        for each in previous:
            each.stop()


@contextlib.contextmanager
def running(kind: str, **options: Any) -> Iterator[None]:
    """`use`, for the body of a `with` statement; then what was in use before.

    The choice is the process's, as with `use`: of blocks that overlap, in threads or
    in an event loop, the one that was entered last is in force until it is left.

    Args:
        kind: As of `use`.
        **options: As of `use`.

    Raises:
        ValueError, NoGpuError, WorkerError: As of `use`. And if Ray is in use already.
    """
    with _lock:
        checked = Options(**options)
        checked.check(kind)
        if kind == "ray" and _is_in_ray():
            raise ValueError("The ray runtime is in use already, and has the room.")
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
    """One line that says where clients run."""
    if not _chosen:
        return "clients run in TFF's own default context (its C++ worker, on the CPU)"
    return _chosen[-1].describe()


def worker_pid() -> Optional[int]:
    """The process id of the native runtime's worker; None if there is none."""
    return _chosen[-1].worker_pid() if _chosen else None


def shutdown() -> None:
    """Ends what was chosen, and any worker; TFF's own default takes over."""
    with _lock:
        ended = _chosen[::-1]
        if ended:
            _chosen.clear()
            _enforce()
        for each in ended:
            each.stop()


atexit.register(shutdown)


def program_context():
    """Returns a `tff.program.FederatedContext` over the runtime in use.

    Programs (`tff.program`, `tff.learning.programs`) want a context of their own
    kind; install it with `tff.framework.get_context_stack().install(...)` or
    `tff.framework.set_default_context(...)`.

    Raises:
        RuntimeError: If no runtime is in use.
    """
    return tff.program.NativeFederatedContext(_in_force().async_context)


@contextlib.contextmanager
def outside_programs() -> Iterator[None]:
    """Has computations give values in it, also where a program's context is installed.

    Raises:
        RuntimeError: If one is installed, and no runtime is in use.
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
    return {
        "in_process": _create_in_process,
        "native": _create_native,
        "ray": _create_ray,
    }[kind](options)


def _create_native(options: Options) -> _Runtime:
    worker_process.check_platform()
    limit, clients = options.clients_in_parallel, options.default_num_clients
    worker = native.Worker(limit)
    context = native.create_context(worker, clients)

    def stop():
        context.close()
        worker.stop()

    at_a_time = "" if limit is None else f" ({limit} at a time)"
    return _Runtime(
        "native",
        lambda: f"clients run in TFF's C++ worker, on the CPU{at_a_time}",
        context,
        internals.NativeAsyncContext(worker.stub, clients),
        stop,
        lambda: worker.pid,
    )


def _create_in_process(options: Options) -> _Runtime:
    names = devices_lib.parse(options.devices)
    if options.intra_op_threads is not None or not devices_lib.are_gpus(names):
        devices_lib.set_threads(options.intra_op_threads)
    names = devices_lib.resolve(names, options.require_gpu)
    at_a_time = options.clients_in_parallel
    if at_a_time is None:
        at_a_time = devices_lib.default_clients_in_parallel(names)
    workers = workers_lib.ClientWorkers(names, at_a_time)
    context = context_lib.InProcessContext(workers, options.default_num_clients)
    return _Runtime(
        "in_process",
        lambda: devices_lib.description(names, at_a_time),
        context,
        context_lib.InProcessAsyncContext(context),
        workers.stop,
    )


def _create_ray(options: Options) -> _Runtime:
    if options.ray_address is not None:
        ray_cluster.check_address(options.ray_address)
    ray_cluster.check_installed()
    devices_lib.set_threads(None)
    workers = ray_workers.RayWorkers(
        ray_workers.Options(
            options.ray_address,
            options.clients_in_parallel,
            options.gpus_per_client,
            options.cpus_per_client,
            options.data_on_nodes,
        ),
        options.require_gpu,
    )
    context = context_lib.InProcessContext(workers, options.default_num_clients)
    return _Runtime(
        "ray",
        workers.describe,
        context,
        context_lib.InProcessAsyncContext(context),
        workers.stop,
    )


def _enforce() -> None:
    """Has TFF compute in the last of what was chosen."""
    internals.set_default_context(_chosen[-1].context if _chosen else None)
