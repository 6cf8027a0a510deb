"""A comparison: its runs under each of its settings, its grid, and its tables.

The settings of its columns are a text, such as

    concentration=0.1,0.3; partition=shards,classes_per_client=2

Semicolons separate groups. The columns of a group are all combinations of the values of
its settings.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import itertools
import os
import pathlib
from collections.abc import Callable, Collection, Container, Mapping, Sequence
from typing import Any, Optional, Union

from tff_reg.experiment.config.run_config import RunConfig
from tff_reg.experiment.report import (
    comparison,
    differences,
    protocol,
    quantities,
    table as table_lib,
)
from tff_reg.experiment.series import (
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
NAMES = Setting(
    "names",
    str,
    (),
    "what methods are called in tables and pictures",
    placeholder="METHOD=NAME",
    is_tuple=True,
)
# Settings that a comparison has in common.
_FIXED = tagged(RunConfig, COMMON)


# From the settings of a column to the request for its runs, and their tasks.
Request = Callable[[Mapping[str, Any]], tuple[RunConfig, Any]]


@dataclasses.dataclass
class Tables(series.Sheet):
    """A comparison's tables: one for each of its settings, and one of all.

    Attributes:
      layout: What they show in the end.
      folders: The directory of each setting, by its heading.
      tuner: The grid's; None without one.
      tables: The tables of which runs have finished, by heading.
    """

    layout: table_lib.Layout
    folders: Mapping[str, str] = dataclasses.field(default_factory=lambda: {"": ""})
    tuner: Optional[tuning.Tuning] = None
    tables: dict[str, table_lib.Table] = dataclasses.field(default_factory=dict)

    def __post_init__(self):
        self.weights = self.layout.weights
        self._of_grid: dict[str, Any] = {}

    def protocol(self, study: series.Study, **recorded: Any) -> list[str]:
        asked: dict[str, dict[str, Any]] = {heading: {} for heading in self.folders}
        for row, column, run in study.trials:
            if column in asked:
                asked[column].setdefault(row, run.config)
        if self.tuner:
            asked[""] = self.tuner.configs()
        columns = {
            heading: {n: [{**each.dump(), **recorded}] for n, each in rows.items()}
            for heading, rows in asked.items()
        }
        return [*protocol.lines(columns, self.tuner.names if self.tuner else ()), ""]

    def quantities_of(self, row: str, column: str) -> Sequence[str]:
        return self.layout.columns if column in self.folders else ()

    def plan_rest(self, study: series.Study) -> Mapping[str, str]:
        if not self.tuner:
            return {}
        lost, rows = self.tuner.lost(), self.tuner.rows()
        self._of_grid = self.tuner.contents(rows)
        missing = (*study.missing(), *lost)
        how = {"tuned": self.tuner.best(), "missing": missing}
        self.layout = dataclasses.replace(self.layout, **how)
        self.tuner.plan_final()
        return lost

    def contents(
        self,
        study: series.Study,
        columns: Collection[str],
        is_last: bool,
        **of_files: str,
    ) -> list[series.Written]:
        plain = dataclasses.replace(self.layout, columns=())
        layout, groups = self.layout if is_last else plain, study.groups()
        known, makes = {} if is_last else self.tables, dict[str, Any]()
        self.tables = {}
        for heading, folder in self.folders.items():
            if heading in columns and heading in groups:
                missing = (*study.missing(heading), *layout.missing)
                shown = dataclasses.replace(layout, missing=missing)
                runs = groups[heading].items()
                paths = {name: [run.directory for run in own] for name, own in runs}
                made = self.tables[heading] = comparison.tabulate(paths, shown)
                makes[folder] = functools.partial(comparison.contents, made, **of_files)
            elif heading in known:
                self.tables[heading] = known[heading]
            else:
                makes[folder] = dict
        if "" not in self.folders:
            make = comparison.SettingsTable([*self.folders], self.tables).contents
            makes[""] = functools.partial(make, **of_files) if self.tables else dict
        parts = [(folder, comparison.FILES, make) for folder, make in makes.items()]
        return [*parts, ("", comparison.OF_GRID, lambda: self._of_grid)]


def planned(
    request: Request,
    *,
    processes: Sequence[str],
    seeds: Sequence[int],
    settings: Any = None,
    grid: Any = None,
    baseline: Optional[str] = None,
    called: Any = (),
    **shown: Any,
) -> series.Study:
    """Plans a comparison and checks its settings, before any run starts.

    `called` is as in `names_of`; `shown` are further attributes of the `Layout`.
    """
    names = series.process_names(processes)
    asked: Any = {"processes": names, "seeds": tuple(dict.fromkeys(seeds))}
    baseline = differences.baseline_of(baseline, names, len(asked["seeds"]))
    columns: Mapping[str, Mapping[str, Any]] = {"": {}}
    if settings is not None:
        columns = columns_of(settings, request({})[0].given())
        if grid is not None:
            why = "give it or grid: each setting is tuned by a call of its own."
            raise SettingError(SETTINGS.name, str(settings), why)
    study, tuner = series.Study(), None
    folders = {heading: folder_of(column) for heading, column in columns.items()}
    requests = {heading: request(column) for heading, column in columns.items()}
    if grid is None:
        for heading, (common, tasks) in requests.items():
            study.compare(common, heading, folders[heading], **asked, tasks=tasks)
    else:
        (common, tasks), values = requests[""], tuning.parse(grid)
        tuner = tuning.Tuning(study, common, values, **asked, tasks=tasks)
    configs = [run.config for run in study.runs]
    shown |= {"baseline": baseline, "names": names_of(called, names)}
    layout = table_lib.Layout.of(configs[0], **shown)
    quantities.check_measured(layout.columns, configs)
    study.sheet = Tables(layout, folders, tuner)
    return study


def names_of(
    given: Union[Mapping[str, str], Sequence[str]], rows: Collection[str]
) -> dict[str, str]:
    """Reads names for table rows: a mapping, or texts such as `fedavg=FedAvg`."""
    pairs = given.items() if isinstance(given, Mapping) else map(_halves, given)
    names = dict(pairs)
    for name in names:
        if name not in rows:
            why = f"there is no row {name}, but {', '.join(rows)}."
            raise SettingError(NAMES.name, None, why)
    shown = [names.get(name, name) for name in rows]
    if len({*shown}) < len(shown):
        raise SettingError(NAMES.name, None, "two rows would have one name.")
    return names


def _halves(text: str) -> tuple[str, str]:
    row, _, name = text.partition("=")
    if not name:
        raise SettingError(NAMES.name, text, "give METHOD=NAME.")
    return row.strip(), name.strip()


def finished(
    groups: Mapping[str, Sequence[str]], layout: table_lib.Layout
) -> series.Study:
    """Returns a comparison of finished runs, whose directories are given by row."""
    study = series.Study(Tables(layout))
    for name, paths in groups.items():
        for path in paths:
            run = series.GivenRun(path, f"{name}, {pathlib.Path(path).name}")
            study.trials.append((name, "", run))
    return study


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
    text = "-".join(f"{name}{as_text(value)}" for name, value in column.items())
    # Of paths only the digest tells a/b.npz from a_b.npz.
    digest = hashlib.sha256(text.encode()).hexdigest()[:4]
    return text if os.sep not in text else f"{text.replace(os.sep, '_')}-{digest}"
