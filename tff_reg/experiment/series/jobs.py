"""The executors of a series' commands: processes of this machine, or a cluster.

Jobs that run side by side share the cores, those that are left all of them, and the
GPUs, and have as many threads for an operation as one alone, so that their bytes are
the same. `cluster_jobs` has other places. All of them `execute` commands, in as many
threads as there are jobs, until they are to `stop`.
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
# Where NVIDIA's driver lists them; TensorFlow would take seconds to say.
_NVIDIA_GPUS = pathlib.Path("/proc/driver/nvidia/gpus")
_PATIENCE_SECONDS = 2.0
# Exit statuses of commands that somebody stopped, and by which signal.
INTERRUPTED = {
    status: number
    for number in (signal.SIGINT, signal.SIGTERM)
    for status in (128 + number, -number)
}

# Runs as `python -c`: asks to be killed when its parent ends, keeps to its cores, then
# becomes the run. SIGUSR2 is how a cluster tells the parent that its time is over.
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
    """Raised when somebody stopped a run, and so the series."""

    def __init__(self, number: int):
        super().__init__(f"stopped by signal {number}")
        self.number = number


class ChildProcesses:
    """Runs commands in processes of their own, which end with this one."""

    def __init__(self, *, is_watched: bool, jobs: int = 1):
        """Starts nothing.

        Args:
          is_watched: Whether somebody sees what the commands print. If not, they are
            silent, and what goes wrong is kept.
          jobs: How many threads may `execute` at a time; their commands share the
            cores and the GPUs.
        """
        self._is_watched = is_watched
        self._jobs = jobs
        self._free = list(range(jobs))
        self._processes: list[subprocess.Popen] = []
        self._is_stopped = False
        self._lock = threading.Lock()

    def execute(self, command: Sequence[str]) -> tuple[int, str]:
        """Runs a command to its end, in a thread that lives as long.

        Returns:
          Its exit status and its last line of errors.

        Raises:
          Interrupted: If somebody stopped it.
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
                    # Whatever the status: an interpreter that was still starting
                    # ends with one of its own.
                    raise Interrupted(signal.SIGINT)
            said = last_line(errors)
        if status in INTERRUPTED:
            raise Interrupted(INTERRUPTED[status])
        return status, said

    def _share_cores(self) -> None:
        """Divides them among the commands under way, when one has begun or ended."""
        if self._jobs == 1 or not hasattr(os, "sched_getaffinity"):
            return
        cores = [str(core) for core in sorted(os.sched_getaffinity(0))]
        for index, process in enumerate(self._processes):
            share = [*map(int, _part(cores, index, len(self._processes)))]
            shared: set[int] = set()
            # Again, until no thread has begun meanwhile.
            while others := {*_threads_under(process.pid)} - shared:
                for thread in others:
                    with contextlib.suppress(OSError):  # It has just ended.
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
    """Returns one job's share of the cores."""
    return all_of_them[place::number] or [all_of_them[place % len(all_of_them)]]


def _threads_under(pid: int) -> Iterator[int]:
    """The threads of a process and of those that it has started."""
    for task in pathlib.Path(f"/proc/{pid}/task").glob("*"):
        yield int(task.name)
        with contextlib.suppress(OSError):
            for child in (task / "children").read_text().split():
                yield from _threads_under(int(child))


def _gpus() -> list[str]:
    """Those that this process may use, as the variable has them."""
    given = os.environ.get(_VISIBLE_GPUS)
    if given is None:
        return [str(index) for index, _ in enumerate(_NVIDIA_GPUS.glob("*"))]
    return [name for name in given.split(",") if name]


def start(command: Sequence[str], cores: str, **options: Any) -> subprocess.Popen:
    """Starts a command, which is killed when the calling thread ends.

    Args:
      command: The command and its arguments.
      cores: The numbers of those that it keeps to, joined by commas; nothing for all.
      **options: Those of `subprocess.Popen`.
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
    """TensorFlow's threads for an operation, as an environment has them for a job.

    Not as many as suit its few cores: last bits depend on that.
    """
    name = "TF_NUM_INTRAOP_THREADS"  # `tff_reg.runtime` leaves it as it is.
    return {name: os.environ.get(name, str(devices.threads_for_an_operation()))}


def last_line(errors: Any) -> str:
    """The last line of a file that a run wrote its errors to, without who says it."""
    errors.seek(0)
    text = errors.read().decode("utf-8", "replace")
    return re.sub("^(bin/|tff-reg )[a-z]+: ", "", last_line_of(text))


def last_line_of(text: str) -> str:
    """The last line that says something; empty where none does."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else ""
