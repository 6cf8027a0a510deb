"""A study: runs, the cells of tables that they are for, and what is left to do.

All runs are known and checked before the first is started, but for those that follow
from the results of others.
"""

from __future__ import annotations

import dataclasses
import numbers
import os
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Optional, Union

from tff_reg import files, lazy
from tff_reg.data import keys
from tff_reg.experiment.config import identity, resolution, run_config as config_lib
from tff_reg.experiment.report import finished_runs, protocol, quantities
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
    "methods, or combinations of methods such as fedprox+man; all for every"
    " method, and all,-moon for all but MOON",
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


@dataclasses.dataclass
class PlannedRun:
    """A run of a series.

    Attributes:
      asked: The request for it.
      config: Its resolved settings.
      is_finished: Whether it is finished; a `Batch` changes it.
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


@dataclasses.dataclass(frozen=True)
class GivenRun:
    """A finished run of anywhere, which nobody planned here."""

    directory: str
    name: str
    is_finished: bool = True


# A folder, the names of files that may be there, and what makes their contents by name;
# those that it does not make are of earlier calls, and deleted.
Written = tuple[str, Sequence[str], Callable[[], dict[str, Any]]]


class Sheet:
    """What is written of a study: the base class of comparisons and papers' tables.

    Attributes:
      weights: The weights whose Hessians are measured.
      hessian: The settings of these Hessians; others may have any value.
    """

    weights: str = finished_runs.WEIGHTS.default
    hessian: Mapping[str, Any] = {}

    def protocol(self, study: Study, **recorded: Any) -> list[str]:
        """Returns the runs' protocol in lines, before they begin.

        `recorded` is what their `config.json` will have beside the settings.
        """
        raise NotImplementedError

    def plan_rest(self, study: Study) -> Mapping[str, str]:
        """Adds the runs that follow from results; returns why others cannot start."""
        return {}

    def quantities_of(self, row: str, column: str) -> Sequence[str]:
        """Returns the quantities of a cell, as of `--columns`."""
        raise NotImplementedError

    def pictured(self, study: Study) -> list[Analysis]:
        """Returns the analyses that pictures still need."""
        return []

    def contents(
        self, study: Study, columns: Collection[str], is_last: bool, **of_files: str
    ) -> list[Written]:
        """Returns what is written now.

        Args:
          study: The runs.
          columns: The columns of which runs have finished since the last call.
          is_last: Whether all is there: runs and analyses.
          **of_files: The title and the command in the files.
        """
        raise NotImplementedError


class Study:
    """Runs that are planned together, by the cells of tables that they are for.

    Attributes:
      sheet: What is written of them.
      trials: The row, the column and the run of each request, in their order.
      files: The names of the files in the directory of `carry_out`.
    """

    def __init__(self, sheet: Optional[Sheet] = None, shares: bool = False):
        """Plans nothing yet; `shares` makes equal requests one run."""
        self.sheet: Any = sheet or Sheet()
        self._shares = shares
        self.trials: list[tuple[str, str, Any]] = []
        self.files: list[str] = []
        self._seen: dict[str, list[int]] = {}
        self._by_content: dict[str, PlannedRun] = {}  # Or by directory.

    @property
    def runs(self) -> list[PlannedRun]:
        """The planned runs, each once."""
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

    def missing(self, column: Optional[str] = None) -> list[str]:
        """Returns the names of the runs, or those of a column, that lack a result."""
        names = {
            run.name: run.is_finished
            for _, own, run in self.trials
            if column in (None, own)
        }
        return [name for name, is_finished in names.items() if not is_finished]

    def groups(self) -> dict[str, dict[str, list[Any]]]:
        """Returns the finished runs by column and row, of those that have any."""
        found: dict[str, dict[str, list[Any]]] = {}
        for row, column, run in self.trials:
            own = found.setdefault(column, {}).setdefault(row, [])
            own += [run] if run.is_finished else []
        for column, rows in [*found.items()]:
            found[column] = {row: own for row, own in rows.items() if own}
        return {column: rows for column, rows in found.items() if rows}

    def carry_out(
        self, batch: Any, where: Optional[files.PathLike], **of_files: str
    ) -> None:
        """Carries out the runs, and writes the files meanwhile, and in the end.

        Args:
          batch: The `batch.Batch` that does it.
          where: Directory of the files; None writes nothing.
          **of_files: The title and the command in them.
        """
        ended: list[Any] = []
        due = 0.0

        def write_if_due(run: Any) -> None:
            """Writes the tables with the runs that ended, unless it is too soon."""
            nonlocal due
            ended.append(run)
            if (began := time.monotonic()) >= due:
                write(*ended)
                ended.clear()
                # The tables of hundreds of runs take seconds: a tenth of the time.
                took = time.monotonic() - began
                due = began + (10 * took if took > 1 else 0)

        def write(*runs: Any, is_last: bool = False) -> None:
            """Writes what shows some runs, or all of them."""
            shown = {*map(id, runs)}
            columns = {c for _, c, own in self.trials if not runs or id(own) in shown}
            parts = self.sheet.contents(self, columns, is_last, **of_files)
            made: dict[str, list[str]] = {}
            for folder, names, make in parts if where else ():
                there = os.path.join(where or "", folder)
                own = files.write_only(there, make(), names)
                made[folder] = [*made.get(folder, ()), *own]
            self.files = made.get("", self.files)

        def each(runs: Sequence[PlannedRun]) -> None:
            if not all(run.is_finished for run in runs):
                write()
            try:
                batch.run(runs, write_if_due)
            finally:
                if ended:
                    write(*ended)
                    ended.clear()

        first = self.runs
        each(first)
        batch.leave_out(self.sheet.plan_rest(self))
        each(self.runs[len(first) :])
        batch.analyse(self._analyses())
        write(is_last=True)

    def _analyses(self) -> list[Analysis]:
        """Returns the analyses of finished runs that tables or figures still lack."""
        needed: dict[str, tuple[Any, list[str]]] = {}
        for row, column, run in self.trials:
            if run.is_finished:
                _, names = needed.setdefault(run.directory, (run, []))
                names += self.sheet.quantities_of(row, column)
        sheet = self.sheet
        found = [
            analysis
            for run, names in needed.values()
            for analysis in analyses_of(run, names, sheet.weights, sheet.hessian)
        ]
        return [*found, *sheet.pictured(self)]


@dataclasses.dataclass(frozen=True)
class Analysis:
    """An analysis of a finished run.

    Attributes:
      subject: The subject for `bin/analyze`.
      run: The run.
      flags: Its flags beside the run's directory.
    """

    subject: str
    run: Any
    flags: tuple[str, ...] = ()


def analyses_of(
    run: Any, columns: Sequence[str], weights: str, settings: Mapping[str, Any] = {}
) -> list[Analysis]:
    """Returns the analyses of a finished run that columns still need.

    The Hessian is that of `weights`; of its settings those that are not given may have
    any value.
    """
    of_clients, flat, cost = (
        quantities.measured(columns, kind) for kind in quantities.ANALYSES
    )
    server = finished_runs.WEIGHTS.default
    needs: list[Any] = [(weights, flat, {**settings, "clients": 0})]
    if of_clients:
        needs.append((server, of_clients, settings))
        if weights == server:  # One analysis has both.
            needs = [(server, flat + of_clients, settings)]
    found = [
        Analysis(
            "hessian",
            run,
            (
                *([] if whose == server else [f"--weights={whose}"]),
                *(f"--{key}={as_text(value)}" for key, value in how.items()),
            ),
        )
        for whose, asked, how in needs
        if asked and not quantities.is_analysed(run.directory, asked, whose, how)
    ]
    if cost and not quantities.is_analysed(run.directory, cost):
        found.append(Analysis("cost", run))
    return found


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
    """Returns the canonical names of processes; `all, -moon` are all but MOON."""
    if ALL in processes and all(n == ALL or n.startswith("-") for n in processes):
        out = [n.removeprefix("-") for n in processes if n != ALL]
        left_out = {*map(resolution.process_name, out)}
        if strange := left_out - {*catalogue.names()}:
            why = f"{', '.join(sorted(strange))} is not among them."
            raise SettingError(PROCESSES.name, ",".join(processes), why)
        return [name for name in catalogue.names() if name not in left_out]
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
