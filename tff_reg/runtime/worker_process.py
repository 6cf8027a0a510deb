"""A process of TFF's C++ worker that ends with the process that starts it.

Imports neither TensorFlow nor TFF: `bin/worker` needs neither.
"""

from __future__ import annotations

import ctypes
import errno
import importlib.util
import os
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Optional

from tff_reg import seam
from tff_reg.seam import WorkerError

# Environment variable with the path of the worker's log file; by default no log.
LOG_VARIABLE = "TFF_REG_WORKER_LOG"

_PIDFD_GETFD = 438  # The number of Linux's system call, which Python does not offer.


def check_platform() -> None:
    """Checks that the worker runs on this platform.

    Raises:
        WorkerError: If it does not.
    """
    if not seam.has_native_worker_platform():
        raise WorkerError(seam.why_no_native_worker())


def binary_path() -> str:
    """Returns the path of the worker in TFF's package.

    Raises:
        WorkerError: If TFF is not installed.
    """
    found = importlib.util.find_spec("tensorflow_federated")
    if found is None or found.origin is None:
        raise WorkerError("TensorFlow Federated, which has the worker, is missing.")
    return os.path.join(os.path.dirname(found.origin), "data", "worker_binary")


# Runs as `python -c`: asks for the signal, then becomes the worker. A `preexec_fn`
# would do the same in less time, but forks a process full of TensorFlow's and
# gRPC's threads and locks.
_BIND_AND_EXECUTE = """
import ctypes, os, sys
ctypes.CDLL(None).prctl(1, 9)  # PR_SET_PDEATHSIG, SIGKILL
if os.getppid() == int(sys.argv[1]):  # else we were too late
    os.execv(sys.argv[2], sys.argv[2:])
"""


def start(
    flags: Sequence[str], environment: Optional[Mapping[str, str]] = None
) -> subprocess.Popen:
    """Starts a worker that the kernel kills when this process ends.

    The signal is sent when the *thread* that started the process ends. So a new thread
    starts the worker and lives until the worker ends: a worker started from a
    short-lived thread would be killed with that thread.

    Args:
        flags: The worker's flags.
        environment: The worker's environment; None for this process's.

    Returns:
        The process.

    Raises:
        WorkerError: If it cannot be started.
    """
    started = threading.Event()
    outcome = []
    command = [binary_path(), *flags]

    def keep():
        log_path = os.environ.get(LOG_VARIABLE) or os.devnull
        try:
            with open(log_path, "ab") as log:
                process = subprocess.Popen(
                    [sys.executable, "-I", "-S", "-c", _BIND_AND_EXECUTE]
                    + [str(os.getpid())]
                    + command,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env=environment,
                    start_new_session=True,
                )
        except OSError as error:
            outcome.append(error)
            started.set()
            return
        outcome.append(process)
        started.set()
        process.wait()

    keeper = threading.Thread(target=keep, name="tff_reg worker keeper", daemon=True)
    keeper.start()
    started.wait()
    if isinstance(outcome[0], OSError):
        raise WorkerError(
            f"TFF's C++ worker could not be started: {outcome[0]}."
        ) from outcome[0]
    return outcome[0]


def restrict_to_loopback(pid: int) -> None:
    """Restricts a process's servers to connections from this machine.

    The worker listens on all interfaces, has no flag against it, and runs computations
    for everybody who reaches it. So this function binds its listening sockets to the
    loopback interface, which needs Linux 5.7 and no privilege.

    Args:
        pid: A process of this user that listens.

    Raises:
        OSError: If the kernel or the container does not allow it.
    """
    for its in listening(pid):
        its.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b"lo")


def listening(pid: int) -> Iterator[socket.socket]:
    """Yields copies of the TCP sockets at which a process of this user listens.

    Raises:
        OSError: If the kernel or the container does not allow it.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    watched = os.pidfd_open(pid)
    try:
        for name in os.listdir(f"/proc/{pid}/fd"):
            copy = libc.syscall(_PIDFD_GETFD, watched, int(name), 0)
            if copy < 0 and ctypes.get_errno() != errno.EBADF:  # It is still open.
                raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
            if copy < 0:
                continue
            if not stat.S_ISSOCK(os.fstat(copy).st_mode):
                os.close(copy)
                continue
            with socket.socket(fileno=copy) as its:
                is_tcp = its.family in (socket.AF_INET, socket.AF_INET6)
                if is_tcp and its.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                    yield its
    finally:
        os.close(watched)
