"""Tables: CSV for programs, Markdown for people, LaTeX for papers."""

from __future__ import annotations

import csv
import io
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any, Union

from tff_reg.lazy import pandas


def to_csv(rows: Sequence[Mapping[str, Any]]) -> str:
    """Returns a CSV with one line per row, headed by all rows' keys."""
    buffer, keys = io.StringIO(), dict.fromkeys(key for row in rows for key in row)
    writer = csv.DictWriter(buffer, [*keys], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return buffer.getvalue()


def from_csv(text: str) -> list[dict[str, str]]:
    """Returns the rows of a CSV from `to_csv`, cells as strings; None is empty."""
    return list(csv.DictReader(io.StringIO(text)))


def to_pandas(rows: Sequence[Mapping[str, Any]]) -> pandas.DataFrame:
    """Returns the rows as a pandas DataFrame, with NaN for None."""
    return pandas.DataFrame([*rows]).fillna(math.nan)


# A column's heading, or what it is under and its own; and the cells of columns by their
# headings, or pairs of both.
Head = Union[str, tuple[str, str]]
Columns = Union[Mapping[Any, Sequence[str]], Sequence[tuple[Head, Sequence[str]]]]


def pairs(columns: Columns) -> Sequence[tuple[Head, Sequence[str]]]:
    """Returns the headings and cells of columns."""
    return [*columns.items()] if isinstance(columns, Mapping) else columns


def in_one(head: Head) -> str:
    """Returns a heading in one line."""
    return head if isinstance(head, str) else ": ".join(head)


def to_markdown(columns: Columns) -> list[str]:
    """Makes a Markdown table; all columns but the first are right-aligned."""
    heads, cells = zip(*((in_one(head), own) for head, own in pairs(columns)))
    # A rule of one character is no rule: it has to have a hyphen.
    widths = [max(2, *map(len, [head, *own])) for head, own in zip(heads, cells)]

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


def to_latex(columns: Mapping[Head, Sequence[str]]) -> list[str]:
    """Makes a `tabular` with the rules of the LaTeX package booktabs.

    Headings under another one have it above them, over all their columns.
    """

    def text(cell: str) -> str:
        is_bold = len(cell) > 4 and cell.startswith("**") and cell.endswith("**")
        plain = cell[2:-2] if is_bold else cell
        escaped = "".join(_LATEX.get(character, character) for character in plain)
        return rf"\textbf{{{escaped}}}" if is_bold else escaped

    def line(cells: Sequence[str]) -> str:
        return rf"{' & '.join(map(text, cells))} \\"

    heads = [("", head) if isinstance(head, str) else head for head in columns]
    above, rules, start = list[str](), list[str](), 1
    for top, own in itertools.groupby(head[0] for head in heads):
        end = start + len([*own]) - 1
        above.append(rf"\multicolumn{{{end - start + 1}}}{{c}}{{{text(top)}}}")
        if top:
            rules.append(rf"\cmidrule(lr){{{start}-{end}}}")
        start = end + 1
    return [
        rf"\begin{{tabular}}{{l{'r' * (len(columns) - 1)}}}",
        r"\toprule",
        *([rf"{' & '.join(above)} \\", " ".join(rules)] if rules else []),
        line([own for _, own in heads]),
        r"\midrule",
        *map(line, zip(*columns.values())),
        r"\bottomrule",
        r"\end{tabular}",
    ]
