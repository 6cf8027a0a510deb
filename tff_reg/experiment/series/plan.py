"""Several runs: which they are, and running them, one after another or side by side.

Each is a `bin/run` in a process of its own, which ends with this one, however that
ends. Which runs there are and whether all of them can be is known before the first is
started.
"""

from __future__ import annotations

import dataclasses
import os
import pathlib
import signal
from collections.abc import Callable, Sequence
from typing import Any, Optional

from tff_reg import lazy
from tff_reg.data import keys
from tff_reg.experiment.config import run_config as config_lib
from tff_reg.experiment.report import protocol
from tff_reg.experiment.rounds import (
    directory as directory_lib,
    summary as summary_lib,
)
from tff_reg.experiment.rounds.checked import CheckedRun
from tff_reg.experiment.series import jobs
from tff_reg.methods import catalogue
from tff_reg.settings import Setting, SettingError

# Exit status of a command whose flags are wrong.
_WRONG_FLAGS = 2


class WrongFlagsError(ValueError):
    """Raised when the first run that is started says that its flags are wrong."""


# Stands for every method.
ALL = "all"
# What a series is asked for beside what its runs have in common.
SEEDS = Setting(
    "seeds",
    int,
    (0,),
    "each runs with each",
    is_tuple=True,
    minimum=0,
    maximum=keys.LARGEST_SEED,
)
SETTINGS = (
    Setting("processes", str, (), "methods, or sums of methods", is_tuple=True),
    SEEDS,
)


@dataclasses.dataclass(frozen=True)
class PlannedRun:
    """A run of a series.

    Attributes:
      asked: What it is asked to be.
      config: What it does.
      is_finished: Whether there is nothing to be done.
      name: What people call it.
    """

    asked: config_lib.RunConfig
    config: config_lib.ResolvedConfig
    is_finished: bool
    name: str = ""

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
      common: What all runs have; strengths go to the processes that have them. Where
        it names neither a recipe nor `settings_of`, the task's settings count.
        `output_dir` is the directory that holds the runs' own, `PROCESS-seedSEED`.
      processes: Process names, or `all`.
      seeds: Seeds.
      tasks: The module `tasks`, or what has its `names` and `defaults`.

    Returns:
      The runs; nothing is started or written.

    Raises:
      SettingError: If a run cannot be.
      DirectoryError: If a run's directory holds something else, or another run.
    """
    names, seeds = process_names(processes), tuple(seeds)
    common = protocol.asked(common)
    check_each_once(SEEDS, seeds)
    check_strengths(common, names)
    check_directory(common.output_dir)
    return [
        plan_run(of_process(common, name, seed), tasks)
        for seed in seeds
        for name in names
    ]


def process_names(processes: Sequence[str]) -> list[str]:
    """The names of processes in the one way in which runs are named.

    `all` alone stands for every method.

    Raises:
      SettingError: If one is no process, or is there twice.
    """
    processes = tuple(processes)
    if processes == (ALL,):
        return list(catalogue.names())
    (of_processes, _) = SETTINGS
    of_processes.check(processes)
    names = []
    for name in processes:
        try:
            names.append(config_lib.process_name(name))
        except SettingError as error:
            raise SettingError("processes", processes, error.reason) from error
    check_each_once(of_processes, processes, names)
    return names


def check_each_once(
    setting: Setting, values: tuple, found: Optional[Sequence[Any]] = None
) -> None:
    """Refuses a list that is empty, or has something twice.

    Args:
      setting: What the list is.
      values: It.
      found: What its items are, if not themselves.

    Raises:
      SettingError: If it is one.
    """
    setting.check(values)
    if not values:
        raise SettingError(setting.name, None, "it is missing; give one or several.")
    found = list(values if found is None else found)
    for value in found:
        if found.count(value) > 1:
            raise SettingError(setting.name, values, f"{value} is there twice.")


def check_strengths(common: config_lib.RunConfig, names: Sequence[str]) -> None:
    """Refuses a strength that none of the processes has.

    Raises:
      SettingError: If there is one.
    """
    methods = {each.flag: each.method for each in catalogue.strengths()}
    own = {each.flag for name in names for each in catalogue.strengths(name)}
    for name, value in common.strengths.items():
        if name not in own:
            reason = f"{methods[name]} is not part of {', '.join(names)}."
            raise SettingError(name, value, reason)


def check_directory(path: str) -> None:
    """Refuses what cannot hold several runs.

    Raises:
      DirectoryError: If it is a file, or the directory of a run.
    """
    folder = pathlib.Path(path)
    reason = None
    if folder.exists() and not folder.is_dir():
        reason = "it is a file; give a directory."
    elif (folder / "config.json").exists():
        reason = "it is the directory of one run; give another."
    if reason:
        raise directory_lib.DirectoryError("output_dir", folder, reason)


def of_process(
    common: config_lib.RunConfig, process: str, seed: int
) -> config_lib.RunConfig:
    """What is asked of the run of a process with a seed, as for `plan`."""
    own = {each.flag for each in catalogue.strengths(process)}
    return dataclasses.replace(
        common,
        process=process,
        seed=seed,
        output_dir=os.path.join(common.output_dir, f"{process}-seed{seed}"),
        strengths={n: value for n, value in common.strengths.items() if n in own},
    )


def plan_run(
    asked: config_lib.RunConfig, tasks: Any = lazy.tasks, name: str = ""
) -> PlannedRun:
    """Finds out what there is to be done of a run.

    Args:
      asked: What it is asked to be.
      tasks: As for `plan`.
      name: What people call it; its process and seed, if empty.

    Returns:
      The run.

    Raises:
      SettingError: If it cannot be.
      DirectoryError: If its directory holds something else, or another run.
    """
    checked = CheckedRun(asked, tasks)
    config = checked.config
    name = name or f"{config.process}, seed {config.seed}"
    return PlannedRun(asked, config, checked.summary() is not None, name)


class Series:
    """Runs what is planned."""

    def __init__(
        self,
        command: Callable[[config_lib.RunConfig], Sequence[str]],
        executor: jobs.ChildProcesses,
    ):
        """Starts nothing.

        Args:
          command: From what is asked of a run to the command that does it.
          executor: Runs the commands: `jobs.ChildProcesses`, or what has its `execute`.
        """
        self._command = command
        self._executor = executor
        self._is_first = True

    def run(self, planned: PlannedRun) -> Optional[str]:
        """Runs one to its end; None, or why it failed, in one line.

        Raises:
          jobs.Interrupted: If somebody stopped it.
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
        """Runs another command to its end, as `run` does."""
        status, said = self._executor.execute(command)
        return _why(status, said) if status else None


def _why(status: int, said: str) -> str:
    why = f"exit code {status}"
    if status < 0:
        why = f"killed by {signal.Signals(-status).name}"
    return f"{why}: {said}" if said else why
