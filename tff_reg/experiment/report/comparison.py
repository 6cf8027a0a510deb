"""The comparison of finished runs: tables and figures for a paper.

    table.csv    one row per method, at full precision; accuracies are 0 to 1
    table.md     the same in percent, mean and deviation, the best in bold if all runs
                 have one protocol; table.tex has it for LaTeX (booktabs)
    curves.png   test score by round, also as curves.pdf
    curves.csv   its numbers: one row per method and round
    report.html  all of it in one file
    compute.png  by a client's multiply-adds, with the column mflops; and compute.pdf

With targets, or the columns `seconds` and `megabytes`, also `curves_seconds`
and `curves_megabytes`, as .png and .pdf.

Optional columns show the results of `bin/analyze hessian` and `bin/analyze cost` in the
runs' directories (FedAlign's Tables 1 and 5).

Deviations are sample deviations (n - 1) over seeds; one seed has none.

With measured clients, `clients.csv` has the rows of all runs.

Under several settings each has a folder with these files. The table above them has the
score under each, or with `columns` each of these; the mean rank; and the difference
over all settings and seeds. There `table.csv` has a row for each setting, method and
quantity, with its paired difference. `curves.png` has a panel for each setting.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
import pathlib
import statistics
import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Optional, Union

from tff_reg import curves, files, scores, tables
from tff_reg.experiment.config import identity as identity_lib
from tff_reg.experiment.report import (
    differences,
    page,
    protocol as protocol_lib,
    quantities,
)
from tff_reg.experiment.report.finished_runs import ComparisonError, FinishedRun
from tff_reg.experiment.report.quantities import span
from tff_reg.experiment.report.table import (
    Groups,
    Layout,
    Printed,
    Row,
    Table,
    configs,
    score_of,
)
from tff_reg.experiment.rounds import progress
from tff_reg.experiment.rounds.loop import with_arguments_of
from tff_reg.lazy import mpl_figure, np
from tff_reg.methods import catalogue

# All that a comparison can write, and what its grid can.
FILES = (
    *("table.csv", "table.md", "table.tex", "clients.csv"),
    *("curves.csv", "curves.png", "curves.pdf", "compute.png", "compute.pdf"),
    *("curves_seconds.png", "curves_seconds.pdf"),
    *("curves_megabytes.png", "curves_megabytes.pdf"),
    page.FILE,
)
OF_GRID = ("grid.csv", "sensitivity.png", "sensitivity.pdf")
_WIDTH = 88
_RANK = "mean rank"
# The heading of `table.csv`'s rows on all settings.
ALL_SETTINGS = "all settings"
_CLIENT = "a client that takes part in every round"
# For each cost: the picture of the score by it, and the label across.
_BY_COST = {
    "multiply_adds": ("compute", f"Multiply-adds of {_CLIENT} (10^9)"),
    "seconds": ("curves_seconds", "Seconds of training"),
    "megabytes": ("curves_megabytes", f"Megabytes to and from {_CLIENT}"),
}

_PLAIN = Layout()
Runs = Union[Sequence[files.PathLike], Mapping[str, Sequence[files.PathLike]]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ToCompare(Layout):
    """The arguments of `compare`: those of `Layout`, and what it is of.

    Attributes:
      runs: Directories of runs, which are grouped by process; or directories by the
        name of their row. The runs of a group differ only in their seed.
      output_dir: Directory of the files; made if it is not there.
      title: Title of the pictures.
    """

    CALLED: ClassVar[str] = "experiment.compare"

    runs: Runs = dataclasses.field(kw_only=False)
    output_dir: files.PathLike = dataclasses.field(kw_only=False)
    title: str = ""


@with_arguments_of(ToCompare)
def compare(asked: ToCompare) -> list[Row]:
    """Compares finished runs and writes their table and their curves.

        experiment.compare(["runs/a", "runs/b"], "runs/table", targets=[0.5])

    The arguments are the attributes of `experiment.report.comparison.ToCompare`.

    Returns:
      The rows of `table.csv`, numbers by column; None for an empty cell.

    Raises:
      ComparisonError: If there is no run, one is not finished, runs of a group differ,
        or a run lacks an analysis or a measurement that a column needs.
      SettingError: If an argument is not allowed, or `output_dir` is not writable.
    """
    table = tabulate(asked.runs, asked)
    made = contents(table, asked.title)
    files.write_only(asked.output_dir, made, (*FILES, *OF_GRID))
    return table.rows()


def tabulate(runs: Runs, layout: Layout = _PLAIN) -> Table:
    """Makes the table of `compare`, and writes nothing."""
    named = runs if isinstance(runs, Mapping) else {"": runs}
    groups: dict[str, list[FinishedRun]] = {}
    for given, paths in named.items():
        for run in map(layout.read, paths):
            name = given or run.config.get("process") or run.path.name
            groups.setdefault(layout.called(name), []).append(run)
    if not groups or not all(named.values()):
        raise ComparisonError("There are no runs to compare, or a name has none.")
    for group in groups.values():
        _check_alike(group)
    _check_analysed_alike([*itertools.chain(*groups.values())], layout.columns)
    return Table(groups, layout.with_names())


def contents(table: Table, title: str = "", command: str = "") -> dict[str, Any]:
    """Returns the contents of a comparison's files by name, of `FILES`.

    `title` is that of the pictures and the report, which also shows the command.
    """
    head = title or score_of(table.groups)
    return {
        **_curves_files(table, title),
        **_by_cost(table, title),
        **table.texts(),
        **_of_clients(table.clients()),
        page.FILE: page.page(head, section(table), table.groups, command),
    }


def _of_clients(rows: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    return {"clients.csv": tables.to_csv(rows)} if rows else {}


def section(table: Table) -> list[str]:
    """Returns the parts of a report on a table."""
    drawn = page.curves_of(by_round(table.groups), table.score, _up(table.groups))
    return [table.html(), drawn, page.clients_of(table.groups)]


def report_run(run_dir: files.PathLike, command: str) -> None:
    """Writes `report.html` of a finished run to the run's directory."""
    table = tabulate([run_dir])
    (name,) = table.groups
    title = f"{catalogue.published_name(name)}: {score_of(table.groups)}"
    text = page.page(title, section(table), table.groups, command)
    files.write_text(pathlib.Path(run_dir) / page.FILE, text)


def _check_analysed_alike(runs: Sequence[FinishedRun], columns: Sequence[str]) -> None:
    first, *others = runs
    how = quantities.how_measured(first, columns)
    for run in others:
        if quantities.how_measured(run, columns) != how:
            raise ComparisonError(
                f"The Hessians of {first.path} and {run.path} were measured with"
                " different settings; repeat bin/analyze hessian with the same."
            )


def _check_alike(group: Sequence[FinishedRun]) -> None:
    first, *others = group
    paths_by_seed = {first.summary["seed"]: first.path}
    for run in others:
        where = f"{first.path} and {run.path}"
        rounds = first.summary["rounds"]
        if run.summary["rounds"] != rounds and not run.ends_itself:
            raise ComparisonError(
                f"{where} have {rounds} and {run.summary['rounds']}"
                " rounds, so they have no mean: end all seeds after the same round, or"
                " compare them under names of their own."
            )
        for name in identity_lib.differences(
            first.config, run.config, identity_lib.decided_by_seed(first.config)
        ):
            values = f"{name} ({first.config[name]} and {run.config[name]})"
            raise ComparisonError(
                f"{where} differ in {values}, so they have no"
                " mean; give them names of their own."
            )
        seed = run.summary["seed"]
        if seed in paths_by_seed:
            raise ComparisonError(
                f"{paths_by_seed[seed]} and {run.path} are the same run with the same"
                f" seed, {seed}."
            )
        paths_by_seed[seed] = run.path


def by_round(groups: Groups) -> list[curves.Curve]:
    """Returns the test score by round for each group that was evaluated."""
    return _curves(groups, lambda run, round_num: round_num)


def draw(
    table: Table,
    drawn: Sequence[curves.Curve],
    title: str = "",
    across: str = curves.ROUNDS,
) -> mpl_figure.Figure:
    """Draws curves of a table's groups, methods by their published names."""
    how: Any = {"across": across, "up": _up(table.groups), "score": table.score}
    return curves.draw_curves(published(drawn), title=title, **how)


def _up(groups: Groups) -> str:
    """Returns the label of curves' scores."""
    (first, *_), *_ = groups.values()
    return f"{score_of(groups)}{first.score.unit}"


def published(drawn: Sequence[curves.Curve]) -> list[curves.Curve]:
    """Returns curves of methods by their published names."""
    return [
        dataclasses.replace(curve, name=catalogue.published_name(curve.name))
        for curve in drawn
    ]


def _curves_files(table: Table, title: str) -> dict[str, Any]:
    found = by_round(table.groups)
    rows = [
        {
            "process": curve.name,
            "round": int(round_num),
            f"{table.score.name}_mean": mean,
            f"{table.score.name}_std": band
            if len(table.groups[curve.name]) > 1
            else None,
        }
        for curve in found
        for round_num, mean, band in zip(curve.rounds, curve.mean, curve.deviation)
    ]
    if not rows:
        return {}
    drawn = curves.pictures(draw(table, found, title), "curves")
    return {"curves.csv": tables.to_csv(rows), **drawn}


def _by_cost(table: Table, title: str) -> dict[str, bytes]:
    """Draws the score by what was spent; multiply-adds as in FedMLB's Figs. 2 to 4."""
    runs = [run for group in table.groups.values() for run in group]
    made = {}
    for cost, (name, across) in _BY_COST.items():
        layout = table.layout
        is_asked = layout.targets or cost in layout.columns
        if cost == "multiply_adds":
            is_asked = quantities.measured(layout.columns, quantities.COST)
        spent = {run.path: run.spent(cost) for run in runs} if is_asked else {}
        if spent and all(spent.values()):
            found = _curves(
                table.groups, lambda run, at, of=spent: _latest(of[run.path], at)
            )
            if found:
                made |= curves.pictures(draw(table, found, title, across), name)
    return made


def _curves(
    groups: Groups,
    place: Callable[[FinishedRun, int], float],
) -> list[curves.Curve]:
    """Returns the curves of the groups that were evaluated."""
    found = []
    for name, group in groups.items():
        of_runs = [set(run.tested) for run in group]
        rounds = sorted(set.intersection(*of_runs))
        if rounds and any(run.ends_itself for run in group):
            rounds = [n for n in sorted(set.union(*of_runs)) if n >= rounds[0]]
        values = [[_latest(run.tested, n) for run in group] for n in rounds]
        places = [
            statistics.fmean([place(run, number) for run in group]) for number in rounds
        ]
        if rounds:
            means = [statistics.fmean(each) for each in values]
            bands = [quantities.deviation(each) or 0.0 for each in values]
            found.append(curves.Curve(name, places, means, bands))
    return found


def _latest(values: Mapping[int, float], number: int) -> float:
    """Returns a round's value, or that of the last round before that has one."""
    return values[max(each for each in values if each <= number)]


@dataclasses.dataclass(frozen=True)
class SettingsTable(Printed):
    """The table of finished runs under several settings.

    Attributes:
      headings: The settings' headings, in their order.
      tables: The table of each setting of which a run has finished, by its heading.
    """

    headings: Sequence[str]
    tables: Mapping[str, Table]

    @property
    def score(self) -> scores.Score:
        """The score that all runs are compared by, such as accuracy."""
        return next(iter(self.tables.values())).score

    @property
    def _names(self) -> list[str]:
        return list(dict.fromkeys(n for t in self.tables.values() for n in t.groups))

    @functools.cached_property
    def ranks(self) -> dict[str, float]:
        """The mean rank of methods over the settings; empty if a run is missing."""
        columns = []
        for heading in self.headings:
            table, means = self.tables.get(heading), dict[str, Optional[float]]()
            if table is not None:
                found = {row["process"]: row for row in table.rows()}
                key = f"{self.score.name}_mean"
                means = {name: found[name][key] for name in table.scored}
            columns.append(means)
        return mean_ranks(columns, self.score)

    @functools.cached_property
    def _pooled(self) -> dict[str, differences.Difference]:
        """Methods' differences to the baseline over all settings and seeds."""
        if len(self.tables) < len(self.headings):
            return {}
        paired = [table.paired(self.score.name) for table in self.tables.values()]
        return differences.pooled(paired, self._baseline)

    @property
    def _baseline(self) -> str:
        return next(iter(self.tables.values())).baseline

    def rows(self) -> list[dict[str, Any]]:
        """Returns the rows of `table.csv`: of each setting, then of all of them."""
        of_settings = [
            row for heading, t in self.tables.items() for row in t.long_rows(heading)
        ]
        of_all = [
            (name, self.score.name, differences.long_row(found))
            for name, found in self._pooled.items()
        ]
        of_all += [(n, "mean_rank", {"mean": rank}) for n, rank in self.ranks.items()]
        return of_settings + [
            {"setting": ALL_SETTINGS, "process": name, "quantity": quantity, **found}
            for name, quantity, found in of_all
        ]

    def clients(self) -> list[dict[str, Any]]:
        """Returns the rows of `clients.csv`."""
        return [
            {"setting": heading, **row}
            for heading, table in self.tables.items()
            for row in table.clients()
        ]

    def cells(self) -> dict[tables.Head, Sequence[str]]:
        cells: dict[tables.Head, Sequence[str]] = {"method": self._names}
        (any_table, *_) = self.tables.values()
        for heading in self.headings:
            table = self.tables.get(heading)
            shown = (table or any_table).shown_by_setting
            for quantity in shown:
                found = dict(zip(table.groups, table.column(quantity))) if table else {}
                head = (heading, quantity.head) if len(shown) > 1 else heading
                cells[head] = [found.get(name, "-") for name in self._names]
        ranks = map(self.ranks.get, self._names)
        cells[_RANK] = ["-" if rank is None else f"{rank:.2f}" for rank in ranks]
        of_all = differences.cells(
            self._pooled, self._names, self._baseline, self.score
        )
        return cells | {f"{head}, all settings": own for head, own in of_all.items()}

    def below(self, cells: Mapping[tables.Head, Sequence[str]]) -> list[str]:
        """Returns the caption, the notes and the protocol, in lines."""
        runs = [run for group in self._groups.values() for run in group]
        name = self.score.name
        how = "lowest" if self.score.lower_is_better else "highest"
        rounds = progress.count(span([run.summary["rounds"] for run in runs]), "round")
        seeds = span([len(group) for group in self._groups.values()])
        has_bold = any("**" in text for column in cells.values() for text in column)
        texts = [
            f"{_up(self._groups)} after {rounds}: mean ± sample"
            f" standard deviation (n - 1) over {progress.count(seeds, 'seed')}.",
            "In bold, by setting: the best, and the next ones, down to the first whose"
            " 95 % interval of the paired difference to it excludes 0."
            if has_bold
            else "Nothing is in bold; the table of each setting says why.",
            f"Mean rank: mean over the settings of a method's place by {name}, 1 for"
            f" the {how}; equal ones share the mean of theirs."
            + ("" if self.ranks else " There is none: runs are missing."),
        ]
        if self._pooled:
            texts.append(differences.POOLED)
        notes = [
            f"{heading}: {note}"
            for heading, table in self.tables.items()
            for note in table.notes()
        ]
        notes += [
            f"{h}: no run has finished." for h in self.headings if h not in self.tables
        ]
        lines = [textwrap.fill(text, _WIDTH) for text in [" ".join(texts), *notes]]
        made = {h: configs(t.groups) for h, t in self.tables.items()}
        return [*lines, "", *protocol_lib.lines(made)]

    @property
    def _groups(self) -> dict[str, Sequence[Any]]:
        return {
            f"{name}, {heading}": group
            for heading, table in self.tables.items()
            for name, group in table.groups.items()
        }

    def draw(self) -> Optional[mpl_figure.Figure]:
        """Draws the curves of each setting in a panel; None if there are none."""
        panels = {
            heading: published(by_round(table.groups))
            for heading, table in self.tables.items()
        }
        panels = {heading: drawn for heading, drawn in panels.items() if drawn}
        if not panels:
            return None
        return curves.draw_panels(panels, up=_up(self._groups), score=self.score)

    def contents(self, title: str = "", command: str = "") -> dict[str, Any]:
        """Returns the contents of its files by name; the report has the command."""
        parts = [self.html()]
        for heading, table in self.tables.items():
            parts += [page.heading(heading), *section(table)]
        title = title or f"{score_of(self._groups)}, by settings"
        text = page.page(title, parts, self._groups, command)
        figure = self.draw()
        drawn = curves.pictures(figure, "curves") if figure else {}
        of_clients = _of_clients(self.clients())
        return {**drawn, **self.texts(), **of_clients, page.FILE: text}


def mean_ranks(
    columns: Sequence[Mapping[str, Optional[float]]], score: scores.Score
) -> dict[str, float]:
    """Returns the mean place of each name over columns of scores, 1 for the best.

    Equal values share the mean of their places; None, which is not finite, is last.
    Empty if a column lacks a name.
    """
    if len({frozenset(column) for column in columns}) != 1:
        return {}
    places: dict[str, list[float]] = {name: [] for name in columns[0]}
    for column in columns:
        known = [-math.inf if v is None else score.rank(v) for v in column.values()]
        within = differences.rounding(v for v in known if math.isfinite(v))
        values = np.round(np.array(known) / (within or 1))
        above = (values > values[:, np.newaxis]).sum(axis=1)
        equal = (values == values[:, np.newaxis]).sum(axis=1)
        for name, place in zip(column, above + (equal + 1) / 2):
            places[name].append(float(place))
    return {name: statistics.fmean(each) for name, each in places.items()}
