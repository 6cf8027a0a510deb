"""A table and the text below it: for people, for LaTeX, and for `report.html`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tff_reg import tables
from tff_reg.experiment.report import page


class Printed:
    """Base class of tables, which have `cells`, lines `below` them, and `rows`."""

    def cells(self) -> Mapping[str, Sequence[str]]:
        """Returns the cells for people, column by column."""
        raise NotImplementedError

    def below(self, cells: Mapping[str, Sequence[str]]) -> list[str]:
        """Returns the caption, the notes and the protocol in lines."""
        raise NotImplementedError

    def rows(self) -> list[dict[str, Any]]:
        """Returns the rows of `table.csv`."""
        raise NotImplementedError

    def markdown(self) -> str:
        """Returns the text of `table.md`."""
        cells = self.cells()
        return "\n".join([*tables.to_markdown(cells), "", *self.below(cells), ""])

    def latex(self) -> str:
        """Returns the text of `table.tex`: the same cells, the rest as comments."""
        cells = self.cells()
        below = "\n".join(self.below(cells)).splitlines()
        comments = [f"% {line}".rstrip() for line in below]
        head = "% Needs \\usepackage{booktabs}."
        return "\n".join([head, *tables.to_latex(cells), *comments, ""])

    def html(self) -> str:
        """Returns the table and the text below it for `report.html`."""
        cells = self.cells()
        return page.table(cells, self.below(cells))

    def texts(self) -> dict[str, str]:
        """Returns the contents of `table.csv`, `table.md` and `table.tex`."""
        texts = (tables.to_csv(self.rows()), self.markdown(), self.latex())
        return dict(zip(("table.csv", "table.md", "table.tex"), texts))
