"""The executors of a series' commands: processes of this machine, or a cluster.

Jobs that run side by side share the GPUs and the cores; the cores of a job that ends go
to the others. Each has as many threads per operation as a single job, so that their
bytes are the same. `cluster_jobs` has the executors for clusters. All executors
`execute` commands, in one thread per job, until `stop` is called.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any, Optional

from tff_reg.runtime import devices
from tff_reg.settings import Setting

# Where jobs run.
LOCAL, SLURM, RAY = PLACES = ("local", "slurm", "ray")
_ON_CLUSTERS = {"jobs_on": (SLURM, RAY)}
JOBS = Setting(
    "jobs",
    int,
    1,
    "runs at a time, which share this machine's cores and GPUs; results do not depend"
    " on their number",
    minimum=1,
)
SETTINGS = (
    JOBS,
    Setting(
        "jobs_on",
        str,
        LOCAL,
        "this machine, jobs of SLURM (submitted from here), or tasks of Ray"
        " (--ray_address)",
        choices=PLACES,
    ),
    Setting(
        "cpus_per_job",
        int,
        1,
        "SLURM, Ray: cores of a run",
        minimum=1,
        only_with=_ON_CLUSTERS,
    ),
    Setting(
        "gpus_per_job",
        float,
        0.0,
        "SLURM, Ray: GPUs of a run",
        minimum=0,
        only_with=_ON_CLUSTERS,
    ),
    Setting(
        "sbatch",
        str,
        (),
        "SLURM: options of sbatch, such as partition=gpu,time=4:00:00,mem=16G",
        placeholder="NAME=VALUE",
        is_tuple=True,
        only_with={"jobs_on": (SLURM,)},
    ),
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

# Runs as `python -c`: asks to be killed when its parent ends, binds itself to its cores
# and becomes the run. Ignores SIGUSR2, by which a cluster announces its time limit.
_BIND_AND_EXECUTE = """
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, 9)  # PR_SET_PDEATHSIG, SIGKILL
signal.signal(signal.SIGUSR2, signal.SIG_IGN)
if sys.argv[2]:
    os.sched_setaffinity(0, map(int, sys.argv[2].split(",")))
if os.getppid() == int(sys.argv[1]):  # else we were too late
    os.execv(sys.argv[3], sys.argv[3:])
"""


class Interrupted(Exception):
    """Raised when a signal stopped a run, and with it the series."""

    def __init__(self, number: int):
        super().__init__(f"stopped by signal {number}")
        self.number = number


class ChildProcesses:
    """Executor of commands in child processes, which end with this process."""

    def __init__(self, *, is_watched: bool, jobs: int = 1):
        """Starts nothing.

        Args:
          is_watched: Whether to show the commands' output; if not, it is dropped, and
            `execute` returns the last line of errors.
          jobs: Number of threads that may `execute` at a time; their commands share
            the cores and the GPUs.
        """
        self._is_watched = is_watched
        self._jobs = jobs
        self._free = list(range(jobs))
        self._processes: list[subprocess.Popen] = []
        self._is_stopped = False
        self._lock = threading.Lock()

    def execute(self, command: Sequence[str]) -> tuple[int, str]:
        """Runs a command to its end; the calling thread must live as long.

        Returns:
          Its exit status and its last line of errors.

        Raises:
          Interrupted: If a signal or `stop` ended it.
        """
        with tempfile.TemporaryFile() as errors:
            quiet = {"stdout": subprocess.DEVNULL, "stderr": errors}
            with self._lock:
                if self._is_stopped:
                    raise Interrupted(signal.SIGINT)
                place = self._free.pop()
                process = start(
                    command,
                    "",
                    env=self._environment(place),
                    **({} if self._is_watched else quiet),
                )
                self._processes.append(process)
                self._share_cores()
            status = process.wait()
            with self._lock:
                self._processes.remove(process)
                self._free.append(place)
                self._share_cores()
                if self._is_stopped:
                    # Whatever the status: an interpreter that is interrupted during
                    # its start has another exit status.
                    raise Interrupted(signal.SIGINT)
            said = last_line(errors)
        if status in INTERRUPTED:
            raise Interrupted(INTERRUPTED[status])
        return status, said

    def _share_cores(self) -> None:
        """Divides the cores among the running commands, after a start or an end."""
        if self._jobs == 1 or not hasattr(os, "sched_getaffinity"):
            return
        cores = [str(core) for core in sorted(os.sched_getaffinity(0))]
        for index, process in enumerate(self._processes):
            share = [*map(int, _part(cores, index, len(self._processes)))]
            shared: set[int] = set()
            # Repeats until no new thread has started meanwhile.
            while others := {*_threads_under(process.pid)} - shared:
                for thread in others:
                    with contextlib.suppress(OSError):  # The thread has just ended.
                        os.sched_setaffinity(thread, share)
                shared |= others

    def _environment(self, place: int) -> Optional[dict[str, str]]:
        if self._jobs == 1:
            return None
        environment = {**os.environ, **threads()}
        if gpus := _gpus():
            environment[_VISIBLE_GPUS] = ",".join(_part(gpus, place, self._jobs))
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


def _part(all_of_them: list[str], place: int, number: int) -> list[str]:
    """Returns one job's share of the cores or GPUs."""
    return all_of_them[place::number] or [all_of_them[place % len(all_of_them)]]


def _threads_under(pid: int) -> Iterator[int]:
    """Yields the threads of a process and of its descendants."""
    for task in pathlib.Path(f"/proc/{pid}/task").glob("*"):
        yield int(task.name)
        with contextlib.suppress(OSError):
            for child in (task / "children").read_text().split():
                yield from _threads_under(int(child))


def _gpus() -> list[str]:
    """Returns the GPUs that this process may use, as in CUDA_VISIBLE_DEVICES."""
    given = os.environ.get(_VISIBLE_GPUS)
    if given is None:
        return [str(index) for index, _ in enumerate(_NVIDIA_GPUS.glob("*"))]
    return [name for name in given.split(",") if name]


def start(command: Sequence[str], cores: str, **options: Any) -> subprocess.Popen:
    """Starts a command, which is killed when the calling thread ends.

    Args:
      command: The command and its arguments.
      cores: Numbers of the cores that it may use, joined by commas; empty for all.
      **options: Arguments of `subprocess.Popen`.
    """
    return subprocess.Popen(
        [
            *(sys.executable, "-I", "-S", "-c", _BIND_AND_EXECUTE),
            str(os.getpid()),
            cores,
            *command,
        ],
        stdin=subprocess.DEVNULL,
        **options,
    )


def threads() -> dict[str, str]:
    """Returns the environment variable of TensorFlow's threads per operation.

    It does not depend on a job's share of the cores, since it changes the last bits.
    """
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
