"""Other places where the commands of a series run: SLURM's jobs, and Ray's tasks.

A job is the command that this machine would start, in the same folder: its machine has
this one's files and this Python. So what is finished is not repeated, and what was
killed resumes, wherever it runs next.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import io
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Optional

from tff_reg import scratch
from tff_reg.experiment.series import jobs
from tff_reg.lazy import ray, ray_exceptions, submitit
from tff_reg.runtime import ray_cluster
from tff_reg.runtime.worker_process import WorkerError
from tff_reg.settings import SettingError

# What a job has from this process's environment, wherever it runs.
_INHERITED = ("TF_", "TFF_REG_", "ONEDNN_", "DNNL_", "OMP_", "PYTHON")
_SLURM_COMMANDS = ("sbatch", "srun", "squeue", "scancel")
# For who gives no limit. A job that has reached it is queued again, and resumes.
_TIME = "12:00:00"
_REQUEUES = 1000
# Longer than SLURM waits for the end of what it has asked to end.
_KILL_SECONDS = 120.0
# How often a job's result is looked for, and SLURM is asked which jobs there are.
_LOOK_SECONDS = 1.0
_ASK_SECONDS = 20.0
# Machines that share a file system see each other's files late.
_LATE_SECONDS = 60.0
# How often a task is started again whose machine was lost.
_RETRIES = 3


class UnreachableError(ValueError):
    """Raised where no job can run: there is no SLURM, no Ray, or no room for one."""


def executor(
    values: Mapping[str, Any], folder: str, ray_address: Optional[str] = None
) -> Any:
    """What runs commands where the settings want them to be.

    Args:
      values: Those of `jobs.SETTINGS`.
      folder: The runs', where SLURM's jobs leave their results.
      ray_address: As of `ray_cluster.Cluster`.

    Returns:
      None for this machine alone, or what has the `execute` and `stop` of
      `jobs.ChildProcesses`.

    Raises:
      SettingError: If a setting has a value that it cannot have.
      UnreachableError: If no job can run there.
    """
    cpus, gpus = values["cpus_per_job"], values["gpus_per_job"]
    if values["jobs_on"] == jobs.SLURM:
        if gpus != int(gpus):
            raise SettingError("gpus_per_job", gpus, "SLURM has no part of one.")
        return SlurmJobs(folder, _sbatch_options(values["sbatch"]), cpus, int(gpus))
    if values["jobs_on"] == jobs.RAY:
        try:
            ray_cluster.check_address(ray_address or "auto")
        except ValueError as error:
            raise SettingError("ray_address", ray_address, str(error)) from error
        return RayTasks(ray_address, values["jobs"], cpus, gpus)
    return None


def _sbatch_options(given: Sequence[str]) -> dict[str, Any]:
    found = {}
    for text in given:
        name, has_value, value = text.strip().lstrip("-").partition("=")
        if not name.replace("-", "").replace("_", "").isalnum():
            reason = "give sbatch's options as NAME=VALUE,..., such as partition=gpu."
            raise SettingError("sbatch", tuple(given), reason)
        found[name.replace("-", "_")] = value if has_value else True
    return found


@dataclasses.dataclass(frozen=True)
class Job:
    """A command, to be carried out on another machine.

    Attributes:
      command: The command and its arguments.
      folder: Where it is started.
      environment: What it is to have in its environment; None for what it is not to
        have.
      cores: How many cores it keeps to.
    """

    command: Sequence[str]
    folder: str
    environment: Mapping[str, Optional[str]]
    cores: int

    @classmethod
    def of(cls, command: Sequence[str], cores: int, hides_gpus: bool = False) -> Job:
        """The command as this process would start it."""
        environment: dict[str, Optional[str]] = {
            "OMP_NUM_THREADS": None,  # Ray's own.
            **{n: each for n, each in os.environ.items() if n.startswith(_INHERITED)},
            **jobs.threads(),
        }
        if os.environ.get("KERAS_HOME") == scratch.folder():  # This process's own.
            environment["KERAS_HOME"] = None
        if hides_gpus:
            environment["CUDA_VISIBLE_DEVICES"] = "-1"
        return cls(tuple(command), os.getcwd(), environment, cores)

    def run(
        self, on_start: Callable[[subprocess.Popen], Any] = lambda process: None
    ) -> tuple[int, str]:
        """Carries it out here.

        Args:
          on_start: Is given the command's process.

        Returns:
          Its exit status and its last line of errors.
        """
        environment = {**os.environ, **self.environment}
        with tempfile.TemporaryFile() as errors, _own_cores(self.cores) as cores:
            process = jobs.start(
                self.command,
                cores,
                cwd=self.folder,
                env={n: each for n, each in environment.items() if each is not None},
                stdout=subprocess.DEVNULL,
                stderr=errors,
                # Ctrl-C is for who asked for it.
                start_new_session=True,
            )
            on_start(process)
            return process.wait(), jobs.last_line(errors)


@contextlib.contextmanager
def _own_cores(number: int) -> Iterator[str]:
    """So many of this machine's cores, as of `jobs.start`, that no other job has.

    A core is had by a socket of its name, which goes with the process that made it.
    All cores, where too few are free.
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


class _SlurmWork:
    """What SLURM's job does, called by submitit there."""

    def __init__(self, job: Job):
        self._job = job

    def __call__(self) -> tuple[int, str]:
        status, said = self._job.run(
            lambda process: signal.signal(
                signal.SIGTERM, lambda *_: process.send_signal(signal.SIGTERM)
            )
        )
        if status in jobs.INTERRUPTED:
            # SLURM ends this process too, and starts it again if others came first.
            time.sleep(_KILL_SECONDS)
        return status, said

    def checkpoint(self) -> Any:
        """What is queued when the job's time is over: the same, which resumes."""
        return submitit.helpers.DelayedSubmission(self)


class SlurmJobs:
    """Runs commands as jobs of SLURM, through submitit."""

    def __init__(self, folder: str, options: Mapping[str, Any], cpus: int, gpus: int):
        """Submits nothing.

        Args:
          folder: Where a folder for submitit is made, which all machines see. It goes
            when this stops, unless the log of a job in it is worth reading.
          options: sbatch's, by their names with underscores; True for those without a
            value.
          cpus: Cores of a job.
          gpus: GPUs of a job.

        Raises:
          UnreachableError: If there is no submitit or no SLURM.
        """
        # Else its import configures logging anew, for which Python closes the handlers
        # of others, and absl's closes a standard error that was redirected.
        os.environ.setdefault("SUBMITIT_LOG_LEVEL", "NOCONFIG")
        if importlib.util.find_spec("submitit") is None:
            raise UnreachableError(
                "submitit is not installed: bin/compare --jobs_on=slurm installs it,"
                " and so does pip install submitit."
            )
        for command in _SLURM_COMMANDS:
            if shutil.which(command) is None:
                raise UnreachableError(f"There is no SLURM here: no {command} on PATH.")
        self._where = folder
        self._cpus = cpus
        self._parameters = {
            "job_name": "tff_reg",
            "cpus_per_task": cpus,
            **({"gpus_per_node": gpus} if gpus else {}),
            "additional_parameters": {"time": _TIME, **options},
        }
        self._submitter: Any = None
        self._folder = ""
        self._keeps_folder = False
        self._has_submitted = False
        self._queued: set[str] = set()
        self._asked = time.monotonic()
        self._running: set[str] = set()
        self._stopped = threading.Event()
        self._lock = threading.Lock()

    def execute(self, command: Sequence[str]) -> tuple[int, str]:
        """As `jobs.ChildProcesses.execute`.

        Raises:
          Interrupted: If this is stopped.
          UnreachableError: If SLURM takes not even the first job.
        """
        with self._lock:
            if self._stopped.is_set():
                raise jobs.Interrupted(signal.SIGINT)
            try:
                job = self._submit(_SlurmWork(Job.of(command, self._cpus)))
            except (OSError, RuntimeError) as error:  # submitit's are RuntimeErrors.
                why = f"SLURM takes no job: {_last_line(error)}"
                if not self._has_submitted:
                    raise UnreachableError(why) from error
                return 1, why
            self._has_submitted = True
            self._queued.add(job.job_id)
            self._running.add(job.job_id)
        try:
            return self._outcome(job)
        finally:
            with self._lock:
                self._running.discard(job.job_id)

    def _submit(self, work: _SlurmWork) -> Any:
        if self._submitter is None:
            os.makedirs(self._where, exist_ok=True)
            self._folder = tempfile.mkdtemp(prefix="slurm-", dir=self._where)
            self._submitter = submitit.SlurmExecutor(
                self._folder, max_num_timeout=_REQUEUES
            )
            self._submitter.update_parameters(**self._parameters)
        with contextlib.redirect_stderr(io.StringIO()):  # The error says the same.
            return self._submitter.submit(work)

    def _outcome(self, job: Any) -> tuple[int, str]:
        """Waits for a job's result."""
        gone = None
        while not job.paths.result_pickle.exists():
            if self._stopped.wait(_LOOK_SECONDS):
                raise jobs.Interrupted(signal.SIGINT)
            if self._is_queued(job.job_id):
                gone = None
            elif gone is None:
                gone = time.monotonic()
            elif time.monotonic() > gone + _LATE_SECONDS:
                break
        with contextlib.suppress(OSError, RuntimeError):
            if job.paths.result_pickle.exists():
                return job.result()
        self._keeps_folder = True
        return 1, f"SLURM's job {job.job_id} left no result; see {job.paths.stderr}"

    def _is_queued(self, job_id: str) -> bool:
        """Whether SLURM has a job, waiting or running, as it said not long ago.

        `squeue` says it, not `sacct` as in submitit, which needs a data base.
        """
        with self._lock:
            if time.monotonic() > self._asked + _ASK_SECONDS:
                asked = ["squeue", "--noheader", "--format=%A", f"--user={os.getuid()}"]
                told = subprocess.run(asked, capture_output=True, text=True)
                self._asked = time.monotonic()
                if told.returncode == 0:
                    self._queued = set(told.stdout.split())
            return job_id in self._queued

    def stop(self) -> None:
        """Cancels the jobs that there are; submits nothing more."""
        with self._lock:
            # Who waits for a job forgets it then, and must not before it is cancelled.
            self._stopped.set()
            if self._running:
                subprocess.run(["scancel", *self._running], capture_output=True)
            if self._folder and not self._keeps_folder:
                shutil.rmtree(self._folder, ignore_errors=True)


class RayTasks:
    """Runs commands as Ray's tasks."""

    def __init__(self, address: Optional[str], number: int, cpus: int, gpus: float):
        """Connects to Ray.

        Args:
          address: As of `ray_cluster.Cluster`.
          number: Of jobs at a time.
          cpus: Cores of a job.
          gpus: GPUs of a job, or a part of one.

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
        self._task = remote(Job.run)
        self._cpus, self._gpus = cpus, gpus
        self._running: set[Any] = set()
        self._is_stopped = False
        self._lock = threading.Lock()

    def execute(self, command: Sequence[str]) -> tuple[int, str]:
        """As `jobs.ChildProcesses.execute`.

        Raises:
          Interrupted: If this is stopped.
        """
        with self._lock:
            if self._is_stopped:
                raise jobs.Interrupted(signal.SIGINT)
            job = Job.of(command, self._cpus, hides_gpus=not self._gpus)
            reference = self._task.remote(job)
            self._running.add(reference)
        try:
            return ray.get(reference)
        except ray_exceptions.RayError as error:
            if self._is_stopped:
                raise jobs.Interrupted(signal.SIGINT) from None
            return 1, _last_line(error)
        finally:
            with self._lock:
                self._running.discard(reference)

    def stop(self) -> None:
        """Cancels the tasks that there are, starts no more, and lets go of Ray."""
        with self._lock:
            if self._is_stopped:
                return
            self._is_stopped = True
            for reference in self._running:
                ray.cancel(reference, force=True)
        self._cluster.stop()


def _last_line(error: BaseException) -> str:
    return jobs.last_line_of(str(error)) or type(error).__name__
