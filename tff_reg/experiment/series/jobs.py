"""The executor of a series' commands in processes of this machine.

Jobs side by side share the GPUs. Each has as many threads per operation as a single
job, so that their bytes are the same. `ray_tasks` has the executor for a cluster. Both
`execute` commands, in one thread per job, until `stop` is called.
"""

from __future__ import annotations

import itertools
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Sequence
from typing import Any

from tff_reg.runtime import devices
from tff_reg.settings import Setting, only_with

LOCAL, RAY = PLACES = ("local", "ray")
_IN_RAY = (only_with("jobs_on", RAY),)
JOBS = Setting(
    "jobs",
    int,
    1,
    "runs at a time, which share this machine's cores and GPUs; results do not depend"
    " on their number",
    minimum=1,
)
LIST_COMMANDS = Setting(
    "list_commands",
    bool,
    False,
    "prints the commands of the unfinished runs, one per line, instead of running them",
)
SETTINGS = (
    JOBS,
    Setting(
        "jobs_on",
        str,
        LOCAL,
        "where runs take place: on this machine, or as tasks of Ray (--ray_address)",
        choices=PLACES,
    ),
    Setting("cpus_per_job", int, 1, "Ray: cores of a run", minimum=1, rules=_IN_RAY),
    Setting(
        "gpus_per_job",
        float,
        0.0,
        "Ray: GPUs of a run; may be a fraction",
        minimum=0,
        rules=_IN_RAY,
    ),
    LIST_COMMANDS,
)

_VISIBLE_GPUS = "CUDA_VISIBLE_DEVICES"
# NVIDIA's driver lists the GPUs here; to ask TensorFlow would take seconds.
_NVIDIA_GPUS = pathlib.Path("/proc/driver/nvidia/gpus")
_PATIENCE_SECONDS = 2.0
# Signals by the exit statuses of commands that they stopped.
INTERRUPTED = {
    status: number
    for number in (signal.SIGINT, signal.SIGTERM)
    for status in (128 + number, -number)
}

# Runs as `python -c`: asks to be killed when its parent ends (Linux), and becomes the
# run. A run that outlived its parent would hold its directory.
_EXECUTE = """
import ctypes, os, sys
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, 9)  # PR_SET_PDEATHSIG, SIGKILL
if os.getppid() == int(sys.argv[1]):  # else we were too late
    os.execv(sys.argv[2], sys.argv[2:])
"""


class Interrupted(Exception):
    """Raised when a signal stopped a run, and with it the series."""

    def __init__(self, number: int):
        super().__init__(f"stopped by signal {number}")
        self.number = number


class ChildProcesses:
    """Executor of commands in child processes, which end with this process."""

    def __init__(self, *, is_watched: bool, jobs: int = 1, fork: Any = None):
        """Starts nothing; `fork` starts a command in a fork, or returns None."""
        self._fork = fork
        self._is_watched = is_watched
        self._jobs = jobs
        self._free = list(range(jobs))
        self._processes: list[subprocess.Popen] = []
        self._is_stopped = False
        self._lock = threading.Lock()
        # What XLA compiles in one run the others read.
        self._compiled = tempfile.mkdtemp(prefix="compiled-steps-")
        weakref.finalize(self, shutil.rmtree, self._compiled, ignore_errors=True)

    def execute(self, command: Sequence[str]) -> tuple[int, str]:
        """Runs a command to its end; the calling thread must live as long."""
        with tempfile.NamedTemporaryFile() as errors:
            with self._lock:
                if self._is_stopped:
                    raise Interrupted(signal.SIGINT)
                place = self._free.pop()
                process = self._start(command, self._environment(place), errors)
                self._processes.append(process)
            status = process.wait()
            with self._lock:
                self._processes.remove(process)
                self._free.append(place)
                if self._is_stopped:
                    # Whatever the status: an interpreter that is interrupted during
                    # its start has another exit status.
                    raise Interrupted(signal.SIGINT)
            said = last_line(errors)
        if status in INTERRUPTED:
            raise Interrupted(INTERRUPTED[status])
        return status, said

    def _start(self, command: Sequence[str], environment: Any, errors: Any) -> Any:
        path = None if self._is_watched else errors.name
        if forked := self._fork and self._fork(command, environment, path):
            return forked
        quiet = {"stdout": subprocess.DEVNULL, "stderr": errors}
        return start(command, env=environment, **({} if self._is_watched else quiet))

    def _environment(self, place: int) -> dict[str, str]:
        kept = f"--tf_xla_persistent_cache_directory={self._compiled}"
        environment = {"TF_XLA_FLAGS": kept, **os.environ}
        if self._jobs == 1:
            return environment
        environment |= threads()
        if there := gpus():
            own = there[place :: self._jobs] or [there[place % len(there)]]
            environment[_VISIBLE_GPUS] = ",".join(own)
        return environment

    def stop(self) -> None:
        """Ends the running processes, which can be resumed; starts no more."""
        with self._lock:
            self._is_stopped = True
            processes = list(self._processes)
        for process in processes:
            process.send_signal(signal.SIGINT)
        end = time.monotonic() + _PATIENCE_SECONDS
        for process in processes:
            try:
                process.wait(max(0.0, end - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()


def gpus() -> list[str]:
    """Returns the GPUs that this process may use, as in CUDA_VISIBLE_DEVICES."""
    given = os.environ.get(_VISIBLE_GPUS)
    if given is None:
        return [str(index) for index, _ in enumerate(_NVIDIA_GPUS.glob("*"))]
    # CUDA ignores what comes after an invalid one, such as -1.
    names = itertools.takewhile(lambda name: not name.startswith("-"), given.split(","))
    return [name for name in names if name]


def start(command: Sequence[str], **options: Any) -> subprocess.Popen:
    """Starts a command, which is killed when the calling thread ends."""
    starter = [sys.executable, "-I", "-S", "-c", _EXECUTE, str(os.getpid())]
    return subprocess.Popen([*starter, *command], stdin=subprocess.DEVNULL, **options)


def threads() -> dict[str, str]:
    """Returns the variable of TensorFlow's threads, which change the last bits."""
    name = "TF_NUM_INTRAOP_THREADS"  # `tff_reg.runtime` leaves it as it is.
    return {name: os.environ.get(name, str(devices.threads_for_an_operation()))}


def last_line(errors: Any) -> str:
    """Returns the last line of a run's error file, without the command's name."""
    errors.seek(0)
    text = errors.read().decode("utf-8", "replace")
    return re.sub("^(bin/|tff-reg )[a-z]+: ", "", last_line_of(text))


def last_line_of(text: str) -> str:
    """Returns the last line that is not blank; empty if there is none."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else ""
