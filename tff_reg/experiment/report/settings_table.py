"""The table of methods under several settings: a column for each setting.

table.csv    one row per method: accuracy (0 to 1) under each setting, mean rank
table.md     the same in percent, mean and deviation; table.tex has it for LaTeX
curves.png   test accuracy by round, one panel per setting; also as curves.pdf
report.html  all of it, and the comparison under each setting, in one file
"""

from __future__ import annotations

import dataclasses
import statistics
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any, Optional

from tff_reg import curves
from tff_reg.experiment.report import comparison, page, protocol as protocol_lib
from tff_reg.experiment.report.quantities import span
from tff_reg.experiment.report.table import Printed, Table, accuracy_of, configs
from tff_reg.experiment.rounds import progress
from tff_reg.lazy import mpl_figure, np

_WIDTH = 88
_RANK = "mean rank"


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
    def _names(self) -> list[str]:
        return list(dict.fromkeys(n for t in self.tables.values() for n in t.groups))

    def rows(self) -> list[dict[str, Any]]:
        """Returns the rows of `table.csv`."""
        found: dict[str, dict[str, Any]] = {
            heading: {str(row["process"]): row for row in table.rows()}
            for heading, table in self.tables.items()
        }
        ranked = {heading: table.ranked for heading, table in self.tables.items()}
        ranks = mean_ranks(
            [
                {n: found[heading][n]["accuracy_mean"] for n in ranked.get(heading, ())}
                for heading in self.headings
            ]
        )
        return [
            {
                "process": name,
                **{
                    f"{key} ({heading})": found.get(heading, {}).get(name, {}).get(key)
                    for heading in self.headings
                    for key in ("runs", "accuracy_mean", "accuracy_std")
                },
                "mean_rank": ranks.get(name),
            }
            for name in self._names
        ]

    def cells(self) -> dict[str, Sequence[str]]:
        cells: dict[str, Sequence[str]] = {"method": self._names}
        for heading in self.headings:
            table = self.tables.get(heading)
            of_setting = {} if table is None else table.accuracies()
            cells[heading] = [of_setting.get(name, "-") for name in self._names]
        ranks = [row["mean_rank"] for row in self.rows()]
        cells[_RANK] = ["-" if rank is None else f"{rank:.2f}" for rank in ranks]
        return cells

    def below(self, cells: Mapping[str, Sequence[str]]) -> list[str]:
        """Returns the caption, the notes and the protocol, in lines."""
        runs = [run for group in self._groups.values() for run in group]
        rounds = progress.count(span([run.summary["rounds"] for run in runs]), "round")
        seeds = span([len(group) for group in self._groups.values()])
        has_bold = any("**" in text for column in cells.values() for text in column)
        texts = [
            f"{accuracy_of(self._groups)} (%) after {rounds}: mean ± sample"
            f" standard deviation (n - 1) over {progress.count(seeds, 'seed')}.",
            "In bold, by setting: the best, and the next ones, down to the first whose"
            " 95 % interval of the paired difference to it excludes 0."
            if has_bold
            else "Nothing is in bold; the table of each setting says why.",
            "Mean rank: mean over the settings of a method's place by accuracy, 1 for"
            " the highest; equal ones share the mean of theirs."
            + ("" if {*cells[_RANK]} != {"-"} else " There is none: runs are missing."),
        ]
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
            heading: comparison.published(comparison.by_round(table.groups))
            for heading, table in self.tables.items()
        }
        panels = {heading: drawn for heading, drawn in panels.items() if drawn}
        up = f"{accuracy_of(self._groups)} (%)"
        return curves.draw_panels(panels, up=up) if panels else None

    def contents(self, title: str = "", command: str = "") -> dict[str, Any]:
        """Returns the contents of its files by name; the report has the command."""
        parts = [self.html()]
        for heading, table in self.tables.items():
            parts += [page.heading(heading), *comparison.section(table)]
        title = title or f"{accuracy_of(self._groups)}, by settings"
        text = page.page(title, parts, self._groups, command)
        figure = self.draw()
        drawn = curves.pictures(figure, "curves") if figure else {}
        return {**drawn, **self.texts(), page.FILE: text}


def mean_ranks(columns: Sequence[Mapping[str, Optional[float]]]) -> dict[str, float]:
    """Returns the mean place of each name over columns of values, 1 for the highest.

    Equal values share the mean of their places; None, which is not finite, is last.
    Empty if a column lacks a name.
    """
    if len({frozenset(column) for column in columns}) != 1:
        return {}
    places: dict[str, list[float]] = {name: [] for name in columns[0]}
    for column in columns:
        known = [-1.0 if each is None else each for each in column.values()]
        values = np.round(known, 9)
        above = (values > values[:, np.newaxis]).sum(axis=1)
        equal = (values == values[:, np.newaxis]).sum(axis=1)
        for name, place in zip(column, above + (equal + 1) / 2):
            places[name].append(float(place))
    return {name: statistics.fmean(each) for name, each in places.items()}
