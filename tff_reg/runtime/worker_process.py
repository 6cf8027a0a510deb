"""A process of TFF's C++ worker, bound to the one that starts it.

Imports neither TensorFlow nor TFF: `bin/worker` needs neither.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from typing import Optional

from tff_reg import seam

# Where the worker writes what it has to say; nowhere by default.
LOG_VARIABLE = "TFF_REG_WORKER_LOG"


class WorkerError(RuntimeError):
    """A worker did not start, or none is left to work."""


def check_platform() -> None:
    """Checks that the worker is a program for this platform.

    Raises:
        WorkerError: If it is not.
    """
    if not seam.has_native_worker_platform():
        raise WorkerError(seam.why_no_native_worker())


def binary_path() -> str:
    """Where TFF's package keeps the worker.

    Raises:
        WorkerError: If TFF is not installed.
    """
    found = importlib.util.find_spec("tensorflow_federated")
    if found is None or found.origin is None:
        raise WorkerError("TensorFlow Federated, which has the worker, is not there.")
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

    The signal is sent when the *thread* that started the process ends. Hence a
    thread of its own, which lives until the worker ends: a worker started from a
    short-lived thread would be killed with that thread.

    Args:
        flags: The worker's flags.
        environment: Its environment; None for ours.

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
