"""Several runs, one after another: which they are, and running them.

Each is a `bin/run` in a process of its own, which ends with this one, however that
ends. Which runs there are and whether all of them can be is known before the first is
started.
"""

from __future__ import annotations

import dataclasses
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from typing import Any, Callable, Optional

from tff_reg import lazy
from tff_reg.experiment import (
    config as config_lib,
    directory as directory_lib,
    summary as summary_lib,
)
from tff_reg.methods import catalogue
from tff_reg.settings import Setting, SettingError

# Exit status of a command whose flags are wrong.
_WRONG_FLAGS = 2
_PATIENCE_SECONDS = 2.0
_INTERRUPTED = {
    status: number
    for number in (signal.SIGINT, signal.SIGTERM)
    for status in (128 + number, -number)
}

# Runs as `python -c`: asks to be killed when its parent ends, then becomes the run.
_BIND_AND_EXECUTE = """
import ctypes, os, sys
ctypes.CDLL(None).prctl(1, 9)  # PR_SET_PDEATHSIG, SIGKILL
if os.getppid() == int(sys.argv[1]):  # else we were too late
    os.execv(sys.argv[2], sys.argv[2:])
"""


class Interrupted(Exception):
    """Raised when somebody stopped a run, and so the series."""

    def __init__(self, number: int):
        super().__init__(f"stopped by signal {number}")
        self.number = number


class WrongFlagsError(ValueError):
    """Raised when the first run that is started says that its flags are wrong."""


# What a series is asked for beside what its runs have in common.
SETTINGS = (
    Setting("processes", str, (), "methods, or sums of methods", is_tuple=True),
    Setting("seeds", int, (0,), "each runs with each", is_tuple=True, minimum=0),
)


@dataclasses.dataclass(frozen=True)
class PlannedRun:
    """A run of a series.

    Attributes:
      asked: What it is asked to be.
      config: What it does.
      is_finished: Whether there is nothing to be done.
    """

    asked: config_lib.RunConfig
    config: config_lib.ResolvedConfig
    is_finished: bool

    @property
    def name(self) -> str:
        """Process and seed, for people."""
        return f"{self.config.process}, seed {self.config.seed}"

    @property
    def directory(self) -> str:
        """Its directory."""
        return self.config.output_dir

    def result(self) -> Optional[dict[str, Any]]:
        """The summary that the finished run left; None if it is not finished."""
        directory = directory_lib.RunDirectory(self.directory)
        return summary_lib.of_finished_run(directory, self.config.dump())


def plan(
    common: config_lib.RunConfig,
    *,
    processes: Sequence[str],
    seeds: Sequence[int] = (0,),
    tasks: Any = lazy.tasks,
) -> list[PlannedRun]:
    """The runs of a series: every process with every seed, seed by seed.

    Args:
      common: What all runs have; strengths go to the processes that have them.
        `output_dir` is the directory that holds the runs' own, `PROCESS-seedSEED`.
      processes: Process names.
      seeds: Seeds.
      tasks: The module `tasks`, or what has its `names` and `defaults`.

    Returns:
      The runs; nothing is started or written.

    Raises:
      SettingError: If a run cannot be.
      DirectoryError: If a run's directory holds something else, or another run.
    """
    processes, seeds = tuple(processes), tuple(seeds)
    for each, values in zip(SETTINGS, (processes, seeds)):
        each.check(values)
        if not values:
            raise SettingError(each.name, None, "it is missing; give one or several.")
    names = []
    for name in processes:
        try:
            names.append(config_lib.process_name(name))
        except SettingError as error:
            raise SettingError("processes", processes, error.reason) from error
    for setting, values, found in (
        ("processes", processes, names),
        ("seeds", seeds, seeds),
    ):
        for value in found:
            if found.count(value) > 1:
                raise SettingError(setting, values, f"{value} is there twice.")
    _check_strengths(common, names)
    _check_directory(pathlib.Path(common.output_dir))
    return [_planned(common, name, seed, tasks) for seed in seeds for name in names]


def _check_strengths(common: config_lib.RunConfig, names: Sequence[str]) -> None:
    """Refuses a strength that no process has."""
    methods = {each.flag: each.method for each in catalogue.strengths()}
    own = {each.flag for name in names for each in catalogue.strengths(name)}
    for name, value in common.strengths.items():
        if name not in own:
            reason = f"{methods[name]} is not part of {', '.join(names)}."
            raise SettingError(name, value, reason)


def _check_directory(path: pathlib.Path) -> None:
    reason = None
    if path.exists() and not path.is_dir():
        reason = "it is a file; give a directory."
    elif (path / "config.json").exists():
        reason = "it is the directory of one run; give another."
    if reason:
        raise directory_lib.DirectoryError("output_dir", path, reason)


def _planned(
    common: config_lib.RunConfig, process: str, seed: int, tasks: Any
) -> PlannedRun:
    own = {each.flag for each in catalogue.strengths(process)}
    where = os.path.join(common.output_dir, f"{process}-seed{seed}")
    asked = dataclasses.replace(
        common,
        process=process,
        seed=seed,
        output_dir=where,
        strengths={n: value for n, value in common.strengths.items() if n in own},
    )
    config = asked.resolved(tasks)
    directory = directory_lib.RunDirectory(where)
    is_finished = False
    if not config.overwrite:
        values = config.dump()
        directory.check_settings(values)
        summary = summary_lib.of_finished_run(directory, values)
        is_finished = summary is not None
        if summary is None:
            directory.check_rounds(values)
        elif summary["rounds"] > config.total_rounds:
            raise directory_lib.DirectoryError(
                "total_rounds",
                config.total_rounds,
                f"{where} has a finished run of {summary['rounds']} rounds; give"
                " another output_dir, or overwrite=true to start anew.",
            )
    return PlannedRun(asked, config, is_finished)


class ChildProcesses:
    """Runs commands in processes of their own, which end with this one."""

    def __init__(self, *, is_watched: bool):
        """Starts nothing.

        Args:
          is_watched: Whether somebody sees what the commands print. If not, they are
            silent, and what goes wrong is kept.
        """
        self._is_watched = is_watched
        self._process: Optional[subprocess.Popen] = None
        self._is_stopped = False
        self._lock = threading.Lock()

    def execute(self, command: Sequence[str]) -> tuple[int, str]:
        """Runs a command to its end, in a thread that lives as long.

        Args:
          command: The command and its arguments.

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
                self._process = subprocess.Popen(
                    [
                        *(sys.executable, "-I", "-S", "-c", _BIND_AND_EXECUTE),
                        str(os.getpid()),
                        *command,
                    ],
                    stdin=subprocess.DEVNULL,
                    **({} if self._is_watched else quiet),
                )
            status = self._process.wait()
            with self._lock:
                self._process = None
                if self._is_stopped:
                    # Whatever the status: an interpreter that was still starting
                    # ends with one of its own.
                    raise Interrupted(signal.SIGINT)
            errors.seek(0)
            text = errors.read().decode("utf-8", "replace")
        if status in _INTERRUPTED:
            raise Interrupted(_INTERRUPTED[status])
        return status, _last_line(text)

    def stop(self) -> None:
        """Ends what is under way, in which nothing is lost; starts nothing more."""
        with self._lock:
            self._is_stopped = True
            process = self._process
        if process is None:
            return
        process.send_signal(signal.SIGINT)
        try:
            process.wait(_PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()


class Series:
    """Runs what is planned, one after another."""

    def __init__(
        self,
        command: Callable[[config_lib.RunConfig], Sequence[str]],
        executor: ChildProcesses,
    ):
        """Starts nothing.

        Args:
          command: From what is asked of a run to the command that does it.
          executor: Runs the commands: `ChildProcesses`, or what has its `execute`.
        """
        self._command = command
        self._executor = executor
        self._is_first = True

    def run(self, planned: PlannedRun) -> Optional[str]:
        """Runs one to its end.

        Args:
          planned: The run.

        Returns:
          None, or why it failed, in one line.

        Raises:
          Interrupted: If somebody stopped it.
          WrongFlagsError: If it is the first that is started here, and says that its
            flags are wrong.
        """
        is_first, self._is_first = self._is_first, False
        status, said = self._executor.execute(self._command(planned.asked))
        if status == 0:
            if planned.result() is None:
                return f"it left no finished run in {planned.directory}"
            return None
        if status == _WRONG_FLAGS and is_first:
            raise WrongFlagsError(said)
        return _why(status, said)

    def run_command(self, command: Sequence[str]) -> Optional[str]:
        """Runs another command to its end, which is stopped as a run is.

        Args:
          command: The command and its arguments.

        Returns:
          None, or why it failed, in one line.

        Raises:
          Interrupted: If somebody stopped it.
        """
        status, said = self._executor.execute(command)
        return _why(status, said) if status else None


def _why(status: int, said: str) -> str:
    why = f"exit code {status}"
    if status < 0:
        why = f"killed by {signal.Signals(-status).name}"
    return f"{why}: {said}" if said else why


def _last_line(text: str) -> str:
    """The last line of what a run wrote to stderr, without who says it."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return re.sub("^bin/[a-z]+: ", "", lines[-1]) if lines else ""
