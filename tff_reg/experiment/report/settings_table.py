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

from tff_reg import curves, files, tables
from tff_reg.experiment.report import (
    comparison,
    differences,
    measures,
    page,
    protocol as protocol_lib,
    table as table_lib,
)
from tff_reg.experiment.report.cells import span
from tff_reg.experiment.rounds import progress
from tff_reg.lazy import mpl_figure

_WIDTH = 88
FILES = ("table.csv", "table.md", "table.tex", "curves.png", "curves.pdf", page.FILE)
_RANK = "mean rank"


@dataclasses.dataclass(frozen=True)
class SettingsTable:
    """The table of finished runs under several settings.

    Attributes:
      tables: The table of each setting by its heading.
    """

    tables: Mapping[str, table_lib.Table]

    @property
    def _names(self) -> list[str]:
        return list(dict.fromkeys(n for t in self.tables.values() for n in t.groups))

    def rows(self) -> list[dict[str, Any]]:
        """Returns the rows of `table.csv`."""
        found: dict[str, dict[str, Any]] = {
            heading: {str(row["process"]): row for row in table.rows()}
            for heading, table in self.tables.items()
        }
        groups = [each for t in self.tables.values() for each in t.groups.items()]
        # Its test accuracy is not measured.
        local = {n for n, g in groups if g[0].config.get("process") == "local"}
        known = [{n: c[n] for n in c.keys() - local} for c in found.values()]
        ranks = mean_ranks(
            [{n: row["accuracy_mean"] for n, row in c.items()} for c in known]
        )
        return [
            {
                "process": name,
                **{
                    f"{key} ({heading})": of_setting.get(name, {}).get(key)
                    for heading, of_setting in found.items()
                    for key in ("runs", "accuracy_mean", "accuracy_std")
                },
                "mean_rank": ranks.get(name),
            }
            for name in self._names
        ]

    def _cells(self) -> dict[str, Sequence[str]]:
        cells: dict[str, Sequence[str]] = {"method": self._names}
        for heading, table in self.tables.items():
            of_setting = table.accuracies()
            cells[heading] = [of_setting.get(name, "-") for name in self._names]
        ranks = [row["mean_rank"] for row in self.rows()]
        cells[_RANK] = ["-" if rank is None else f"{rank:.2f}" for rank in ranks]
        return cells

    def markdown(self) -> str:
        """Returns the text of `table.md`."""
        cells = self._cells()
        return "\n".join([*tables.to_markdown(cells), "", *self._below(cells), ""])

    def latex(self) -> str:
        """Returns the text of `table.tex`: the same cells, the rest as comments."""
        cells = self._cells()
        comments = [f"% {line}".rstrip() for line in self._below(cells)]
        head = "% Needs \\usepackage{booktabs}."
        return "\n".join([head, *tables.to_latex(cells), *comments, ""])

    def _below(self, cells: Mapping[str, Sequence[str]]) -> list[str]:
        """Returns the caption, the notes and the protocol, in lines."""
        runs = [run for group in self._groups.values() for run in group]
        rounds = progress.count(span([run.summary["rounds"] for run in runs]), "round")
        seeds = span([len(group) for group in self._groups.values()])
        has_bold = any("**" in text for column in cells.values() for text in column)
        texts = [
            f"{measures.accuracy(self._groups)} (%) after {rounds}: mean ± sample"
            f" standard deviation (n - 1) over {progress.count(seeds, 'seed')}.",
            "In bold, by setting: the best, and the rows whose 95 % interval of the"
            " paired difference to it includes 0."
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
        lines = [textwrap.fill(text, _WIDTH) for text in [" ".join(texts), *notes]]
        configs = {h: comparison.configs(t.groups) for h, t in self.tables.items()}
        lines += ["", *protocol_lib.lines_of_columns(configs)]
        return "\n".join(lines).split("\n")

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
            heading: comparison.published(comparison.curves_of(table))
            for heading, table in self.tables.items()
        }
        panels = {heading: drawn for heading, drawn in panels.items() if drawn}
        up = f"{measures.accuracy(self._groups)} (%)"
        return curves.draw_panels(panels, up=up) if panels else None

    def write(
        self, output_dir: files.PathLike, title: str = "", command: str = ""
    ) -> None:
        """Writes `FILES`; the report names the command."""
        directory = files.make_directory(output_dir, "output_dir")
        cells = self._cells()
        parts = [page.table(cells, self._below(cells))]
        for heading, table in self.tables.items():
            parts += [page.heading(heading), *comparison.section(table)]
        title = title or f"{measures.accuracy(self._groups)}, by settings"
        text = page.page(title, parts, self._groups, command)
        files.write_text(directory / page.FILE, text)
        figure = self.draw()
        if figure is None:
            for name in ("curves.png", "curves.pdf"):
                files.delete(directory / name)
        else:
            curves.save(figure.axes[0], directory / "curves.png", pdf=True)
        files.write_text(directory / "table.tex", self.latex())
        files.write_text(directory / "table.md", self.markdown())
        files.write_text(directory / "table.csv", tables.to_csv(self.rows()))


def mean_ranks(columns: Sequence[Mapping[str, Optional[float]]]) -> dict[str, float]:
    """Returns the mean place of each name over columns of values, 1 for the highest.

    Equal values share the mean of their places; None, which is not finite, is last.
    Empty if a column lacks a name.
    """
    if len({frozenset(column) for column in columns}) != 1:
        return {}
    places: dict[str, list[float]] = {name: [] for name in columns[0]}
    for column in columns:
        values = {n: -1.0 if v is None else v for n, v in column.items()}
        for name, value in values.items():
            above = [other - value for other in values.values()]
            higher = sum(each > differences.ROUNDING for each in above)
            equal = sum(abs(each) <= differences.ROUNDING for each in above)
            places[name].append(higher + (equal + 1) / 2)
    return {name: statistics.fmean(each) for name, each in places.items()}
