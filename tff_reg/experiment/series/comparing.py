"""A comparison: its runs under each of its settings, its grid, and its files.

The settings of its columns are a text, such as

    concentration=0.1,0.3; partition=shards,classes_per_client=2

Semicolons separate groups. The columns of a group are all combinations of the values of
its settings.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import os
import pathlib
from collections.abc import Callable, Container, Mapping, Sequence
from typing import Any, Optional, Union

from tff_reg import files
from tff_reg.experiment.config import run_config as config_lib
from tff_reg.experiment.config.run_config import RunConfig
from tff_reg.experiment.report import (
    comparison,
    differences,
    protocol,
    quantities,
    table as table_lib,
)
from tff_reg.experiment.series import (
    batch,
    plan as series,
    tuning,
)
from tff_reg.methods import catalogue
from tff_reg.settings import COMMON, Setting, SettingError, as_text, tagged

SETTINGS = Setting(
    "settings",
    str,
    None,
    "settings to compare the methods under, one column of the table each, such as"
    " 'concentration=0.1,0.3; partition=shards,classes_per_client=2', which are three;"
    " all else is one protocol",
    placeholder="NAME=X,...;NAME=X,NAME=Y",
    is_optional=True,
)
# Settings that a comparison has in common.
_FIXED = tagged(RunConfig, COMMON)


# From the settings of a column to the request for its runs, and their tasks.
Request = Callable[[Mapping[str, Any]], tuple[config_lib.RunConfig, Any]]


class Comparing:
    """The runs of a comparison, in the order in which they are carried out.

    Attributes:
      first: The runs to do first: those of the grid, if there is one, or all.
      tuner: The grid's; None without one.
      layout: What the tables show in the end.
      failed: The reasons of failed runs, and of those that a grid let not start, by
        their names.
      total: The number of runs, a grid's among them.
      files: The names of the files in the directory of `run`.
    """

    def __init__(
        self,
        request: Request,
        *,
        processes: Sequence[str],
        seeds: Sequence[int],
        settings: Any = None,
        grid: Any = None,
        baseline: Optional[str] = None,
        **shown: Any,
    ):
        """Plans the runs and checks their settings, before any of them starts.

        `shown` are further attributes of the `Layout`.
        """
        self._names = series.process_names(processes)
        self._seeds = tuple(dict.fromkeys(seeds))
        count = len(self._seeds)
        baseline = differences.baseline_of(baseline, self._names, count)
        of_axis: Mapping[str, Mapping[str, Any]] = {"": {}}
        self._has_axis = settings is not None
        if self._has_axis:
            of_axis = columns_of(settings, request({})[0].given())
            if grid is not None:
                why = "give it or grid: each setting is tuned by a call of its own."
                raise SettingError(SETTINGS.name, str(settings), why)
        self._folders = {heading: folder_of(each) for heading, each in of_axis.items()}
        self._requests = {heading: request(each) for heading, each in of_axis.items()}
        asked: Any = {"processes": self._names, "seeds": self._seeds}
        self.failed: dict[str, str] = {}
        self.total = 0
        self.files: list[str] = []
        self._where: Optional[files.PathLike] = None
        self._of_grid: dict[str, Any] = {}
        self.tuner: Optional[tuning.Tuning] = None
        self._study = series.Study()
        if grid is not None:
            common, tasks = self._requests[""]
            values = tuning.parse(grid)
            self.tuner = tuning.Tuning(common, values, **asked, tasks=tasks)
            self.first = self.tuner.planned
        else:
            for heading, (common, tasks) in self._requests.items():
                place = heading, self._folders[heading]
                self._study.compare(common, *place, **asked, tasks=tasks)
            self.first = self._study.runs
        common, _ = self._requests[[*of_axis][0]]
        asked = self.first[0].config if self.first else common
        self.layout = table_lib.Layout.of(asked, baseline=baseline, **shown)
        configs = [run.config for run in self.first]
        quantities.check_measured(self.layout.columns, configs)

    @property
    def headings(self) -> list[str]:
        """The headings of the settings, in their order."""
        return [*self._requests]

    def protocol(self, **recorded: Any) -> list[str]:
        """Returns the protocol of the requested runs in lines, before they begin.

        `recorded` is what their `config.json` will have beside the settings.
        """
        columns: dict[str, dict[str, Any]] = {}
        for heading, (common, tasks) in self._requests.items():
            seed, common = self._seeds[0], protocol.asked(common)
            tasks = tasks[seed] if isinstance(tasks, Mapping) else tasks
            if self.tuner:  # The final runs hold nothing out.
                common = dataclasses.replace(common, validation_share=None)
            columns[heading] = {}
            for name in self._names:
                config = series.of_process(common, name, seed).resolved(tasks)
                columns[heading][name] = [{**config.dump(), **recorded}]
        return protocol.lines(columns, self.tuner.names if self.tuner else ())

    def run(
        self,
        done: batch.Batch,
        begin: Callable[[Sequence[series.PlannedRun]], batch.Batch],
        where: Optional[files.PathLike],
        **of_files: str,
    ) -> dict[str, table_lib.Table]:
        """Carries out the runs, and writes the files after each of them.

        Args:
          done: The batch of the `first` runs.
          begin: Makes the batch of runs that follow a grid's.
          where: Directory of the files; None writes nothing.
          **of_files: The title and the command in them.

        Returns:
          The table under each setting of which runs have finished, by its heading.
        """
        self._where = where
        for folder in {"", *self._folders.values()}:
            self._put(folder)
        if self.tuner:
            done.run()
            tuned = self.tuner.best(done.finished)
            if where:
                rows = self.tuner.rows(done.finished)
                self._of_grid = tuning.contents(rows, self.tuner.names)
                self._put("")
            self._study = self.tuner.plan(tuned)
            lost = self.tuner.lost(done.finished)
            done.leave_out(lost)
            self.failed |= done.failed
            missing = (*done.missing, *lost)
            how = {"tuned": tuned, "missing": missing}
            self.layout = dataclasses.replace(self.layout, **how)
            self.total = len(self.first) + len(lost)
            done = begin(self._study.runs)
        self.total += len(self._study.runs)
        write = functools.partial(self._write, done, of_files)
        made: dict[str, Any] = {}
        plain = dataclasses.replace(self.layout, columns=())
        write(plain, made)
        done.run(lambda: write(plain, made))
        self.failed |= done.failed
        return write(self.layout, {})

    def _write(
        self,
        done: batch.Batch,
        of_files: Mapping[str, str],
        layout: table_lib.Layout,
        made: dict[str, Any],
    ) -> dict[str, table_lib.Table]:
        """Makes and writes the tables of other groups than those `made` before."""
        for heading in self.headings:
            runs = self._study.groups(done.finished, heading)
            groups = {n: [run.directory for run in own] for n, own in runs.items()}
            if not groups or made.get(heading, (None,))[0] == groups:
                continue
            names = self._study.missing(done.finished, heading)
            names += self.layout.missing
            shown = dataclasses.replace(layout, missing=names)
            found = tabulate(groups, done, shown)
            made[heading] = groups, found
            make = functools.partial(comparison.contents, found, **of_files)
            self._put(self._folders[heading], make)
        tables = {head: made[head][1] for head in self.headings if head in made}
        if tables and self._has_axis:
            make = comparison.SettingsTable(self.headings, tables).contents
            self._put("", functools.partial(make, **of_files))
        return tables

    def _put(self, folder: str, make: Callable[[], dict[str, Any]] = dict) -> None:
        """Writes the files of a folder, and deletes those of earlier comparisons."""
        if self._where:
            made, there = {**make(), **self._of_grid}, os.path.join(self._where, folder)
            names = files.write_only(there, made, comparison.FILES)
            self.files = self.files if folder else names


def tabulate(
    groups: Mapping[str, Sequence[str]],
    done: batch.Batch,
    layout: table_lib.Layout,
) -> table_lib.Table:
    """Makes the table of finished runs, after the analyses that its columns need."""
    done.analyse(
        [
            analysis
            for name, paths in groups.items()
            for path in paths
            for analysis in batch.analyses_for(
                path, f"{name}, {pathlib.Path(path).name}", layout
            )
        ]
    )
    return comparison.tabulate(groups, layout)


def columns_of(
    given: Union[str, series.Values, Sequence[series.Values]],
    others: Container[str] = (),
) -> dict[str, dict[str, Any]]:
    """Reads the settings of each column, by the column's heading.

    `given` is as in `plan.read_values`; `others` are the settings that all columns
    have.
    """
    methods = {each.flag: each.method for each in catalogue.hyperparameters()}

    def why_not(name: str) -> Optional[str]:
        if name in methods:
            return f"{name} is of the method {methods[name]}; give its flag, or grid"
        if name in others:
            return f"{name} is given for all columns as well; leave that out"
        return None

    columns: dict[str, dict[str, Any]] = {}
    for group in series.read_values(SETTINGS.name, given, _FIXED, why_not):
        for values in itertools.product(*group.values()):
            column = dict(zip(group, values))
            heading = ", ".join(f"{n}={as_text(v)}" for n, v in column.items())
            if heading in columns:
                why = f"{heading} is there twice."
                raise SettingError(SETTINGS.name, None, why)
            columns[heading] = column
    return columns


def folder_of(column: Mapping[str, Any]) -> str:
    """Returns the name of the directory of a column's runs and tables."""
    words = (f"{name}{as_text(value)}" for name, value in column.items())
    return "-".join(words).replace(os.sep, "_")
