"""Tables: CSV for programs, Markdown for people, LaTeX for papers."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence
from typing import Any, Union

from tff_reg.lazy import pandas


def to_csv(rows: Sequence[Mapping[str, Any]]) -> str:
    """Returns a CSV with one line per row, headed by the first row's keys."""
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return buffer.getvalue()


def from_csv(text: str) -> list[dict[str, str]]:
    """Returns the rows of a CSV from `to_csv`, cells as strings; None is empty."""
    return list(csv.DictReader(io.StringIO(text)))


def to_pandas(rows: Sequence[Mapping[str, Any]]) -> pandas.DataFrame:
    """Returns the rows as a pandas DataFrame, with NaN for None."""
    return pandas.DataFrame([*rows]).fillna(math.nan)


# The cells of columns by their headings, or pairs of both.
Columns = Union[Mapping[str, Sequence[str]], Sequence[tuple[str, Sequence[str]]]]


def pairs(columns: Columns) -> Sequence[tuple[str, Sequence[str]]]:
    """Returns the headings and cells of columns."""
    return [*columns.items()] if isinstance(columns, Mapping) else columns


def to_markdown(columns: Columns) -> list[str]:
    """Makes a Markdown table; all columns but the first are right-aligned."""
    heads, cells = zip(*pairs(columns))
    widths = [max(map(len, [head, *own])) for head, own in zip(heads, cells)]

    def line(cells: Sequence[str]) -> str:
        first = cells[0].ljust(widths[0])
        others = [cell.rjust(width) for cell, width in zip(cells[1:], widths[1:])]
        return f"| {' | '.join([first, *others])} |"

    rule = ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])]
    return [line(heads), line(rule), *map(line, zip(*cells))]


# Characters with a special meaning in LaTeX.
_LATEX = {
    **{character: f"\\{character}" for character in "#$%&_{}"},
    "\\": r"\textbackslash{}",
    "^": r"\textasciicircum{}",
    "~": r"\textasciitilde{}",
    "±": r"$\pm$",
    "\N{MINUS SIGN}": "$-$",
    "<": "$<$",
    ">": "$>$",
}


def to_latex(columns: Mapping[str, Sequence[str]]) -> list[str]:
    """Makes a `tabular` with the rules of the LaTeX package booktabs."""

    def text(cell: str) -> str:
        is_bold = len(cell) > 4 and cell.startswith("**") and cell.endswith("**")
        plain = cell[2:-2] if is_bold else cell
        escaped = "".join(_LATEX.get(character, character) for character in plain)
        return rf"\textbf{{{escaped}}}" if is_bold else escaped

    def line(cells: Sequence[str]) -> str:
        return rf"{' & '.join(map(text, cells))} \\"

    return [
        rf"\begin{{tabular}}{{l{'r' * (len(columns) - 1)}}}",
        r"\toprule",
        line(list(columns)),
        r"\midrule",
        *map(line, zip(*columns.values())),
        r"\bottomrule",
        r"\end{tabular}",
    ]
