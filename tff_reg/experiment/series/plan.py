"""The plan of a series: its runs, and what is left to do for each.

All runs are known and checked before the first is started.
"""

from __future__ import annotations

import dataclasses
import numbers
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Optional, Union

from tff_reg import lazy
from tff_reg.data import keys
from tff_reg.experiment.config import identity, resolution, run_config as config_lib
from tff_reg.experiment.report import protocol
from tff_reg.experiment.rounds import (
    directory as directory_lib,
    summary as summary_lib,
)
from tff_reg.experiment.rounds.runs import CheckedRun
from tff_reg.methods import catalogue
from tff_reg.settings import NO_EFFECT, Setting, SettingError, as_text, near_names

# Stands for every method.
ALL = "all"
# The settings of a series beside those that its runs have in common.
PROCESSES = Setting(
    "processes",
    str,
    (),
    "methods, or combinations of methods such as fedprox+man; all for every method",
    is_tuple=True,
)


class _Seeds(Setting):
    """How many seeds, or a list of them."""

    def read(self, text: str) -> tuple[int, ...]:
        """Reads a number as a count, and what has a comma as a list."""
        found = super().read(text.removesuffix(","))
        return self.of(found if "," in text else found[0] if found else 0)

    def of(self, given: Union[int, str, Sequence[int]]) -> tuple[int, ...]:
        """Returns the seeds: of a number as many (0, 1, ...), of a list these."""
        if isinstance(given, str):
            return self.read(given)
        if isinstance(given, numbers.Integral) and not isinstance(given, bool):
            given = int(given)
        if isinstance(given, bool) or (isinstance(given, int) and given < 1):
            reason = "give how many, or a list of them (of seed 0 alone: 0,)."
            raise SettingError(self.name, given, reason)
        seeds = tuple(range(given)) if isinstance(given, int) else tuple(given)
        if not seeds:
            raise SettingError(self.name, given, "give at least one.")
        self.check(seeds)
        return seeds


SEEDS = _Seeds(
    "seeds",
    int,
    1,
    "how many seeds, or a list of them: 3 and 0,1,2 are the same, and 7, with a comma"
    " is seed 7; each seed is one run per method or recipe",
    is_tuple=True,
    minimum=0,
    maximum=keys.LARGEST_SEED,
)
SETTINGS = (PROCESSES, SEEDS)


@dataclasses.dataclass(frozen=True)
class PlannedRun:
    """A run of a series.

    Attributes:
      asked: The request for it.
      config: Its resolved settings.
      is_finished: Whether it is finished already.
      name: Its name for people.
      tasks: The module `tasks`, or an object with its functions.
    """

    asked: config_lib.RunConfig
    config: config_lib.ResolvedConfig
    is_finished: bool
    name: str = ""
    tasks: Any = dataclasses.field(default=lazy.tasks, compare=False, repr=False)

    @property
    def directory(self) -> str:
        """Its directory."""
        return self.config.output_dir

    def result(self) -> Optional[dict[str, Any]]:
        """Returns the summary of the finished run; None if it is not finished."""
        directory = directory_lib.RunDirectory(self.directory)
        return summary_lib.of_finished_run(directory, self.config.dump())


class Study:
    """Runs that are planned together, by the cells of tables that they are for.

    Attributes:
      trials: The row, the column and the run of each request, in their order.
    """

    def __init__(self, shares: bool = False):
        """Plans nothing yet; `shares` makes equal requests one run."""
        self._shares = shares
        self.trials: list[tuple[str, str, PlannedRun]] = []
        self._seen: dict[str, list[int]] = {}
        self._by_content: dict[str, PlannedRun] = {}  # Or by directory.

    @property
    def runs(self) -> list[PlannedRun]:
        """The runs, each once."""
        return [*self._by_content.values()]

    def add(
        self, row: str, column: str, asked: config_lib.RunConfig, *more: Any
    ) -> PlannedRun:
        """Plans the run of a request, as `plan_run` does, which `more` is for."""
        run = plan_run(asked, *more, seen=self._seen)
        content = run.directory
        if self._shares:
            content = identity.key(run.config.dump())
        run = self._by_content.setdefault(content, run)
        self.trials.append((row, column, run))
        return run

    def missing(self, finished: Sequence[PlannedRun], column: str) -> list[str]:
        """Returns the names of the runs of a column that are not finished."""
        there = {run.directory for run in finished}
        runs = [run for _, own, run in self.trials if own == column]
        return [run.name for run in runs if run.directory not in there]

    def groups(
        self, finished: Sequence[PlannedRun], column: str
    ) -> dict[str, list[PlannedRun]]:
        """Returns the finished runs of a column, by the rows that have any."""
        there = {run.directory for run in finished}
        found: dict[str, list[PlannedRun]] = {}
        for row, own, run in self.trials:
            if own == column:
                is_there = run.directory in there
                found.setdefault(row, []).extend([run] if is_there else [])
        return {row: runs for row, runs in found.items() if runs}

    def compare(
        self,
        common: config_lib.RunConfig,
        heading: str = "",
        folder: str = "",
        *,
        processes: Sequence[str],
        seeds: Sequence[int] = (0,),
        tasks: Any = lazy.tasks,
    ) -> Study:
        """Adds every process with every seed, seed by seed, as the rows of a column.

        `heading` is the column's, and part of the runs' names; they are in `folder` of
        the output directory.
        """
        names = process_names(processes)
        where = os.path.join(common.output_dir, folder)
        common = dataclasses.replace(protocol.asked(common), output_dir=where)
        resolution.check_owned(common.hyperparameters, names)
        for seed in dict.fromkeys(seeds):
            for name in names:
                of = heading and f"{resolution.process_name(name)}, {heading}"
                asked = of_process(common, name, seed)
                self.add(name, heading, asked, tasks, of and f"{of}, seed {seed}")
        return self


def plan_run(
    asked: config_lib.RunConfig,
    tasks: Any = lazy.tasks,
    name: str = "",
    seen: Optional[dict[str, list[int]]] = None,
) -> PlannedRun:
    """Plans one run: checks its settings and whether it is already finished.

    `tasks` may be a dict of the tasks by seed; `seen` is as for `CheckedRun`.
    """
    if isinstance(tasks, Mapping):
        tasks = tasks[asked.seed]
    checked = CheckedRun(asked, tasks, seen=seen)
    config = checked.config
    name = name or f"{config.process}, seed {config.seed}"
    return PlannedRun(asked, config, checked.summary() is not None, name, tasks)


def of_process(
    common: config_lib.RunConfig, process: str, seed: int
) -> config_lib.RunConfig:
    """Returns the request for the run of a process with a seed, as for `plan`."""
    return dataclasses.replace(
        common,
        process=process,
        seed=seed,
        output_dir=os.path.join(common.output_dir, f"{process}-seed{seed}"),
        hyperparameters=resolution.owned(common.hyperparameters, process),
    )


def process_names(processes: Sequence[str]) -> list[str]:
    """Returns the canonical names of processes; `all` alone stands for every method."""
    if tuple(processes) == (ALL,):
        return list(catalogue.names())
    if not processes:
        raise SettingError(PROCESSES.name, None, "give at least one.")
    names: dict[frozenset, str] = {}
    for name in map(resolution.process_name, processes):
        names.setdefault(frozenset(name.split("+")), name)  # a+b is b+a.
    return list(names.values())


Values = Mapping[str, Any]


def read_values(
    setting: str,
    given: Union[str, Values, Sequence[Values]],
    fixed: Collection[str],
    why_not: Callable[[str], Optional[str]] = lambda name: None,
) -> list[dict[str, list[Any]]]:
    """Reads values to try, `NAME=X,Y,NAME=Z; NAME=...`, by setting, group by group.

    A part without `=` is a further value of the setting before it. `given` may also be
    a group, or a list of groups, as dicts of the values by name. Settings that are
    `fixed`, or without effect on results, are refused, and those with a `why_not`.
    """
    text = given if isinstance(given, str) else _joined(setting, given)
    known = {each.name: each for each in config_lib.listed()}
    groups: list[dict[str, list[Any]]] = []
    for part in filter(None, map(str.strip, text.split(";"))):
        group: dict[str, list[Any]] = {}
        name = ""
        for word in part.split(","):
            *before, value = (each.strip() for each in word.split("=", 1))
            if before:
                (name,) = before
                why, is_known = why_not(name), name in known
                if not is_known or name in fixed or known[name].is_tuple:
                    near = "" if is_known else near_names(name, [*known])
                    why = f"{name} is not a setting that can vary{near}"
                elif NO_EFFECT in known[name].tags:
                    why = f"results do not depend on {name}"
                elif name in group:
                    why = f"{name} is twice in {part}; join its values by commas"
                if why:
                    raise SettingError(setting, text, f"{why}.")
            if not (name and value):
                reason = f"{part} is no NAME=VALUE,...; semicolons separate groups."
                raise SettingError(setting, text, reason)
            read = known[name].read(value)
            known[name].check(read)
            group.setdefault(name, []).append(read)
        groups.append(group)
    if not groups:
        raise SettingError(setting, text, "it has no settings in it.")
    return groups


def _joined(setting: str, given: Union[Values, Sequence[Values]]) -> str:
    groups = [given] if isinstance(given, Mapping) else given
    if not all(isinstance(group, Mapping) for group in groups):
        reason = "give a text, or a list of dicts of values by name."
        raise SettingError(setting, str(given), reason)
    alone = (str, numbers.Number)
    return ";".join(
        ",".join(
            f"{name}={as_text(each if isinstance(each, alone) else tuple(each))}"
            for name, each in group.items()
        )
        for group in groups
    )
