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
from typing import Any, Callable, Mapping, Optional, Sequence

from tff_reg.experiment import (
    directory as directory_lib,
    settings,
    summary as summary_lib,
)
from tff_reg.methods import catalogue

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


@dataclasses.dataclass(frozen=True)
class PlannedRun:
    """A run of a series.

    Attributes:
      values: Its resolved settings, `process`, `seed` and `output_dir` among them.
      flags: The flags of `bin/run` that give them.
      is_finished: Whether there is nothing to be done.
    """

    values: Mapping[str, Any]
    flags: tuple[str, ...]
    is_finished: bool

    @property
    def name(self) -> str:
        """Process and seed, for people."""
        return f"{self.values['process']}, seed {self.values['seed']}"

    @property
    def directory(self) -> str:
        """Its directory."""
        return self.values["output_dir"]

    def result(self) -> Optional[dict[str, Any]]:
        """The summary that the finished run left; None if it is not finished."""
        directory = directory_lib.RunDirectory(self.directory)
        return summary_lib.of_finished_run(directory, self.values)


def plan(
    requested: Mapping[str, Any],
    *,
    processes: str,
    seeds: str,
    task_names: Sequence[str],
    task_defaults: Callable[[str], Any],
    recipe_settings: Optional[Callable[[str], Mapping[str, Any]]] = None,
) -> list[PlannedRun]:
    """The runs of a series: every process with every seed, seed by seed.

    Args:
      requested: What the user gave, by name, as for `settings.resolve`; strengths go
        to the processes that have them. `output_dir` is the directory that holds the
        runs' own, `PROCESS-seedSEED`.
      processes: Process names, separated by commas.
      seeds: Whole numbers, separated by commas.
      task_names: The names of all tasks.
      task_defaults: From a task's name to its defaults.
      recipe_settings: From a recipe's name to what it sets, of which a series takes
        all but process and directory; None where there are no recipes.

    Returns:
      The runs; nothing is started or written.

    Raises:
      SettingError: If a run cannot be.
      DirectoryError: If a run's directory holds something else, or another run.
    """
    names = _processes(processes)
    _check_strengths(requested, names, processes)
    _check_directory(pathlib.Path(requested["output_dir"]))
    return [
        _planned(requested, name, seed, task_names, task_defaults, recipe_settings)
        for seed in _seeds(seeds)
        for name in names
    ]


def _processes(text: str) -> list[str]:
    names = []
    for name in text.split(","):
        try:
            catalog.parse(name)
        except ValueError as error:
            raise settings.SettingError(f"--processes={text}: {error}") from error
        parts = [part.strip() for part in name.lower().split("+")]
        names.append("+".join(p for p in parts if p != "fedavg") or "fedavg")
    _check_once("processes", text, names)
    return names


def _seeds(text: str) -> list[int]:
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() for part in parts):
        raise settings.SettingError(
            f"--seeds={text}: it must be whole numbers of at least 0, separated by"
            " commas, such as 0,1,2."
        )
    seeds = [int(part) for part in parts]
    _check_once("seeds", text, seeds)
    return seeds


def _check_once(flag: str, text: str, values: Sequence[Any]) -> None:
    for value in values:
        if values.count(value) > 1:
            raise settings.SettingError(f"--{flag}={text}: {value} is there twice.")


def _check_strengths(
    requested: Mapping[str, Any], names: Sequence[str], text: str
) -> None:
    """Refuses a strength that no process has."""
    methods = {field.flag: field.method for field in catalog.strength_fields()}
    for flag in requested:
        if flag in methods and not any(_has(name, flag) for name in names):
            raise settings.SettingError(
                f"--{flag}={requested[flag]}: {methods[flag]} is not part of"
                f" --processes={text}."
            )


def _check_directory(path: pathlib.Path) -> None:
    if path.exists() and not path.is_dir():
        raise directory_lib.DirectoryError(
            f"--output_dir: {path} is a file; give a directory."
        )
    if (path / "config.json").exists():
        raise directory_lib.DirectoryError(
            f"--output_dir: {path} is the directory of one run; give another."
        )


def _has(process: str, flag: str) -> bool:
    return flag in {field.flag for field in catalog.strength_fields(process)}


def _planned(
    requested: Mapping[str, Any],
    process: str,
    seed: int,
    task_names: Sequence[str],
    task_defaults: Callable[[str], Any],
    recipe_settings: Optional[Callable[[str], Mapping[str, Any]]],
) -> PlannedRun:
    strengths = {field.flag for field in catalog.strength_fields()}
    given = {
        name: value
        for name, value in requested.items()
        if name not in strengths or _has(process, name)
    }
    where = os.path.join(requested["output_dir"], f"{process}-seed{seed}")
    given.update(process=process, seed=seed, output_dir=where)
    values = settings.resolve(
        given,
        task_names=task_names,
        task_defaults=task_defaults,
        recipe_settings=recipe_settings,
    )
    directory = directory_lib.RunDirectory(where)
    is_finished = False
    if not values["overwrite"]:
        directory.check_settings(values)
        summary = summary_lib.of_finished_run(directory, values)
        is_finished = summary is not None
        if not is_finished:
            directory.check_rounds(values)
        elif summary["rounds"] > values["total_rounds"]:
            raise directory_lib.DirectoryError(
                f"--total_rounds: {where} has a finished run of {summary['rounds']}"
                f" rounds, this one has --total_rounds={values['total_rounds']}; give"
                " another --output_dir, or --overwrite to start anew."
            )
    flags = tuple(f"--{name}={_shown(value)}" for name, value in given.items())
    return PlannedRun(values, flags, is_finished)


def _shown(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


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

    def __init__(self, command: Sequence[str], executor: ChildProcesses):
        """Starts nothing.

        Args:
          command: What takes the flags of `bin/run`.
          executor: Runs the commands: `ChildProcesses`, or what has its `execute`.
        """
        self._command = list(command)
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
        status, said = self._executor.execute([*self._command, *planned.flags])
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
