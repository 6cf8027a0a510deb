"""The executor that runs the commands of a series as Ray tasks.

A job is the command that this machine would start, in the same folder: all machines
have the same files and this Python. So finished runs are not repeated, and killed runs
resume on any machine.
"""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import threading
from collections.abc import Mapping, Sequence
from typing import Any, Optional

from tff_reg.experiment.series import jobs
from tff_reg.lazy import ray, ray_exceptions
from tff_reg.runtime import ray_cluster
from tff_reg.seam import WorkerError
from tff_reg.settings import SettingError

# Prefixes of the variables that a task inherits.
_INHERITED = ("TF_", "TFF_REG_", "ONEDNN_", "DNNL_", "OMP_", "PYTHON")
# The largest number of restarts of a task whose machine was lost.
_RETRIES = 3


class UnreachableError(ValueError):
    """Raised when no job can run: there is no Ray, or no room for a job."""


def _environment(hides_gpus: bool) -> dict[str, Optional[str]]:
    """Returns the variables of a job as this process would start it; None removes."""
    inherited = {n: v for n, v in os.environ.items() if n.startswith(_INHERITED)}
    # Removes the OMP_NUM_THREADS that Ray sets.
    environment = {"OMP_NUM_THREADS": None, **inherited, **jobs.threads()}
    if hides_gpus:
        environment["CUDA_VISIBLE_DEVICES"] = "-1"
    return environment


def _run(
    command: Sequence[str], folder: str, environment: Mapping[str, Optional[str]]
) -> tuple[int, str]:
    """Runs a command in a task; returns its exit status and last line of errors."""
    whole = {**os.environ, **environment}
    with tempfile.TemporaryFile() as errors:
        process = jobs.start(
            command,
            cwd=folder,
            env={name: each for name, each in whole.items() if each is not None},
            stdout=subprocess.DEVNULL,
            stderr=errors,
            # Ctrl-C must only reach the process that submitted the job.
            start_new_session=True,
        )
        return process.wait(), jobs.last_line(errors)


class RayTasks:
    """Executor of commands as Ray tasks."""

    def __init__(self, address: Optional[str], number: int, cpus: int, gpus: float):
        """Connects to Ray."""
        try:
            ray_cluster.check_address(address or "auto")
        except ValueError as error:
            raise SettingError("ray_address", address, str(error)) from error
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
        self._task = remote(_run)
        self._gpus = gpus
        self._running: set[Any] = set()
        self._is_stopped = False
        self._lock = threading.Lock()

    def execute(self, command: Sequence[str]) -> tuple[int, str]:
        """Does what `jobs.ChildProcesses.execute` does."""
        with self._lock:
            if self._is_stopped:
                raise jobs.Interrupted(signal.SIGINT)
            environment = _environment(hides_gpus=not self._gpus)
            reference = self._task.remote(command, os.getcwd(), environment)
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
