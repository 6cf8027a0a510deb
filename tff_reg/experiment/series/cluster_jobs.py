"""Executors that run the commands of a series as SLURM jobs or Ray tasks.

A job is the command that this machine would start, in the same folder: all machines
have the same files and this Python. So finished runs are not repeated, and killed runs
resume on any machine.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Optional

from tff_reg import scratch
from tff_reg.experiment.series import jobs
from tff_reg.lazy import ray, ray_exceptions
from tff_reg.runtime import ray_cluster
from tff_reg.runtime.worker_process import WorkerError
from tff_reg.settings import SettingError

# Prefixes of the variables that a Ray task inherits; a SLURM job inherits all.
_INHERITED = ("TF_", "TFF_REG_", "ONEDNN_", "DNNL_", "OMP_", "PYTHON")
# Defaults of sbatch's options, which --sbatch may change. A minute before its time
# limit, the job ends its run and is queued again.
_SBATCH = {"time": "12:00:00", "signal": "B:USR1@60"}
_SCRIPT = """\
#!/bin/bash
exec 3>&2 2>/dev/null
trap 'kill -TERM $run; wait $run; scontrol requeue $SLURM_JOB_ID; sleep 120' USR1
"$@" >/dev/null 2>&3 &
run=$!
wait $run
"""
# The largest number of restarts of a task whose machine was lost.
_RETRIES = 3


class UnreachableError(ValueError):
    """Raised when no job can run: there is no SLURM, no Ray, or no room for one."""


def executor(
    values: Mapping[str, Any], folder: str, ray_address: Optional[str] = None
) -> Any:
    """Returns the executor that the settings choose; None for this machine.

    Args:
      values: Values of `jobs.SETTINGS` by name.
      folder: Directory of the runs, where SLURM jobs write their errors.
      ray_address: As for `ray_cluster.Cluster`.

    Returns:
      None for this machine alone, or an executor like `jobs.ChildProcesses`.

    Raises:
      SettingError: If a value is not allowed.
      UnreachableError: If no job can run there.
    """
    cpus, gpus = values["cpus_per_job"], values["gpus_per_job"]
    if values["jobs_on"] == jobs.SLURM:
        if gpus != int(gpus):
            raise SettingError("gpus_per_job", gpus, "SLURM has no part of one.")
        options = _sbatch_options(values["sbatch"])
        return SlurmJobs(folder, options, cpus, int(gpus))
    if values["jobs_on"] == jobs.RAY:
        try:
            ray_cluster.check_address(ray_address or "auto")
        except ValueError as error:
            raise SettingError("ray_address", ray_address, str(error)) from error
        return RayTasks(ray_address, values["jobs"], cpus, gpus)
    return None


def _sbatch_options(given: Sequence[str]) -> dict[str, str]:
    found = {}
    for text in given:
        name, _, value = text.strip().lstrip("-").partition("=")
        if not name.replace("-", "").replace("_", "").isalnum():
            reason = "give sbatch's options as NAME=VALUE,..., such as partition=gpu."
            raise SettingError("sbatch", tuple(given), reason)
        found[name.replace("_", "-")] = value
    return found


def _environment() -> dict[str, Optional[str]]:
    """Returns a job's changes of this environment; None removes a variable."""
    changes: dict[str, Optional[str]] = {**jobs.threads()}
    if os.environ.get("KERAS_HOME") == scratch.folder():  # This process's own.
        changes["KERAS_HOME"] = None
    return changes


class SlurmJobs:
    """Executor of commands as SLURM jobs; for each, an `sbatch` waits for its end."""

    def __init__(self, folder: str, options: Mapping[str, str], cpus: int, gpus: int):
        """Submits nothing.

        Args:
          folder: Directory that all machines see; it gets a folder for the jobs'
            errors, which `stop` deletes.
          options: sbatch's options by name; empty for options without a value.
          cpus: Cores per job.
          gpus: GPUs per job.

        Raises:
          UnreachableError: If there is no SLURM.
        """
        for command in ("sbatch", "scancel", "scontrol"):
            if shutil.which(command) is None:
                raise UnreachableError(f"There is no SLURM here: no {command} on PATH.")
        self._where = folder
        # Jobs are cancelled by name: sbatch prints a job's number only at its end.
        self._name = f"tff_reg-{uuid.uuid4().hex[:12]}"
        asked = {"cpus-per-task": str(cpus), **_SBATCH}
        if gpus:
            asked["gpus-per-node"] = str(gpus)
        self._options = [
            f"--{name}={value}" if value else f"--{name}"
            for name, value in {**asked, **options}.items()
        ]
        self._folder: Optional[pathlib.Path] = None
        self._waiting: list[subprocess.Popen] = []
        self._was_taken = self._is_stopped = False
        self._lock = threading.Lock()

    def execute(self, command: Sequence[str]) -> tuple[int, str]:
        """Does what `jobs.ChildProcesses.execute` does.

        Raises:
          Interrupted: If `stop` was called.
          UnreachableError: If SLURM refuses the first job.
        """
        with tempfile.TemporaryFile() as refusal:
            with self._lock:
                if self._is_stopped:
                    raise jobs.Interrupted(signal.SIGINT)
                waiting = self._submit(command, refusal)
                self._waiting.append(waiting)
            assert waiting.stdout is not None
            number = waiting.stdout.read().decode().partition(";")[0].strip()
            status = waiting.wait()
            with self._lock:
                self._waiting.remove(waiting)
                if self._is_stopped:
                    raise jobs.Interrupted(signal.SIGINT)
            if not number:
                why = f"SLURM takes no job: {jobs.last_line(refusal)}"
                if not self._was_taken:
                    raise UnreachableError(why)
                return 1, why
        self._was_taken = True
        return self._outcome(number, status)

    def _submit(self, command: Sequence[str], refusal: Any) -> subprocess.Popen:
        if self._folder is None:
            os.makedirs(self._where, exist_ok=True)
            made = tempfile.mkdtemp(prefix="slurm-", dir=self._where)
            self._folder = pathlib.Path(made).absolute()
            (self._folder / "job.sh").write_text(_SCRIPT)
        changed = {**os.environ, **_environment()}
        return jobs.start(
            [
                *(shutil.which("sbatch") or "sbatch", "--wait", "--parsable"),
                *("--requeue", "--export=ALL", "--open-mode=append"),
                *("--output=/dev/null", f"--error={self._folder}/%j.err"),
                *(f"--job-name={self._name}", *self._options),
                *(str(self._folder / "job.sh"), *command),
            ],
            "",
            env={name: value for name, value in changed.items() if value is not None},
            stdout=subprocess.PIPE,
            stderr=refusal,
        )

    def _outcome(self, number: str, status: int) -> tuple[int, str]:
        assert self._folder is not None
        path = self._folder / f"{number}.err"
        said = ""
        with contextlib.suppress(OSError), path.open("rb") as errors:
            said = jobs.last_line(errors)
        if status > 128:  # A shell's exit status for a command that a signal ended.
            return 128 - status, said
        if status and not said:
            said = f"SLURM's job {number} said nothing; sacct -j {number} may know more"
        return status, said

    def stop(self) -> None:
        """Cancels all jobs; submits no more."""
        with self._lock:
            self._is_stopped = True
            if self._waiting:
                command = ["scancel", f"--name={self._name}"]
                subprocess.run(command, capture_output=True)
            for process in self._waiting:
                process.terminate()
            if self._folder is not None:
                shutil.rmtree(self._folder, ignore_errors=True)


@dataclasses.dataclass(frozen=True)
class RayJob:
    """A command that a Ray task carries out.

    Attributes:
      command: The command and its arguments.
      folder: Its working directory.
      environment: Variables to set in its environment; None removes one.
      cores: Number of cores that it may use.
    """

    command: Sequence[str]
    folder: str
    environment: Mapping[str, Optional[str]]
    cores: int

    @classmethod
    def of(cls, command: Sequence[str], cores: int, hides_gpus: bool) -> RayJob:
        """Returns the job of a command as this process would start it."""
        inherited = {n: v for n, v in os.environ.items() if n.startswith(_INHERITED)}
        # Removes the OMP_NUM_THREADS that Ray sets.
        environment = {"OMP_NUM_THREADS": None, **inherited, **_environment()}
        if hides_gpus:
            environment["CUDA_VISIBLE_DEVICES"] = "-1"
        return cls(tuple(command), os.getcwd(), environment, cores)

    def run(self) -> tuple[int, str]:
        """Runs the command here; returns its exit status and last line of errors."""
        environment = {**os.environ, **self.environment}
        with tempfile.TemporaryFile() as errors, _own_cores(self.cores) as cores:
            process = jobs.start(
                self.command,
                cores,
                cwd=self.folder,
                env={n: each for n, each in environment.items() if each is not None},
                stdout=subprocess.DEVNULL,
                stderr=errors,
                # Ctrl-C must only reach the process that submitted the job.
                start_new_session=True,
            )
            return process.wait(), jobs.last_line(errors)


@contextlib.contextmanager
def _own_cores(number: int) -> Iterator[str]:
    """Yields cores of this machine, as for `jobs.start`, that no other job uses.

    An abstract socket with the core's name reserves the core until its process ends.
    Yields an empty text, for all cores, if too few are free.
    """
    found = []
    with contextlib.ExitStack() as held:
        for core in sorted(os.sched_getaffinity(0)):
            if len(found) < number:
                name = held.enter_context(socket.socket(socket.AF_UNIX))
                with contextlib.suppress(OSError):
                    name.bind(f"\0tff_reg-core-{core}")
                    found.append(core)
        yield ",".join(map(str, found)) if len(found) == number else ""


class RayTasks:
    """Executor of commands as Ray tasks."""

    def __init__(self, address: Optional[str], number: int, cpus: int, gpus: float):
        """Connects to Ray.

        Args:
          address: As for `ray_cluster.Cluster`.
          number: Number of jobs at a time.
          cpus: Cores per job.
          gpus: GPUs per job; may be a fraction.

        Raises:
          UnreachableError: If there is no Ray, or none of its nodes has room for a job.
        """
        try:
            ray_cluster.check_installed()
            self._cluster = ray_cluster.Cluster(address, number * cpus)
        except WorkerError as error:
            raise UnreachableError(str(error)) from error
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        if not any(n.get("CPU", 0) >= cpus and n.get("GPU", 0) >= gpus for n in nodes):
            self._cluster.stop()
            raise UnreachableError(
                f"No node of Ray's has room for a job of {cpus} CPUs and {gpus:g} GPUs."
            )
        remote: Any = ray.remote(num_cpus=cpus, num_gpus=gpus, max_retries=_RETRIES)
        self._task = remote(RayJob.run)
        self._cpus, self._gpus = cpus, gpus
        self._running: set[Any] = set()
        self._is_stopped = False
        self._lock = threading.Lock()

    def execute(self, command: Sequence[str]) -> tuple[int, str]:
        """Does what `jobs.ChildProcesses.execute` does.

        Raises:
          Interrupted: If `stop` was called.
        """
        with self._lock:
            if self._is_stopped:
                raise jobs.Interrupted(signal.SIGINT)
            job = RayJob.of(command, self._cpus, hides_gpus=not self._gpus)
            reference = self._task.remote(job)
            self._running.add(reference)
        try:
            return ray.get(reference)
        except ray_exceptions.RayError as error:
            if self._is_stopped:
                raise jobs.Interrupted(signal.SIGINT) from None
            return 1, jobs.last_line_of(str(error)) or type(error).__name__
        finally:
            with self._lock:
                self._running.discard(reference)

    def stop(self) -> None:
        """Cancels all tasks, starts no more, and disconnects from Ray."""
        with self._lock:
            if self._is_stopped:
                return
            self._is_stopped = True
            for reference in self._running:
                ray.cancel(reference, force=True)
        self._cluster.stop()
