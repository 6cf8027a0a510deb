"""Tables: CSV for programs, Markdown whose source is a table, too."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from typing import Any, Union


def to_csv(rows: Sequence[Mapping[str, Any]]) -> str:
    """A CSV with a line a row, the keys of the first as its head; None is empty."""
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return buffer.getvalue()


def from_csv(text: str) -> list[dict[str, str]]:
    """The rows of what `to_csv` made, as strings; empty ones for None."""
    return list(csv.DictReader(io.StringIO(text)))


def to_markdown(
    columns: Union[Mapping[str, Sequence[str]], Sequence[tuple[str, Sequence[str]]]],
) -> list[str]:
    """Makes a Markdown table, the first column to the left, others to the right.

    Args:
      columns: The cells of each column by its head, or heads that may be the same
        with the cells; at least one column.
    """
    pairs = columns.items() if isinstance(columns, Mapping) else columns
    heads, cells = zip(*pairs)
    widths = [max(map(len, [head, *own])) for head, own in zip(heads, cells)]

    def line(cells: Sequence[str]) -> str:
        first = cells[0].ljust(widths[0])
        others = [cell.rjust(width) for cell, width in zip(cells[1:], widths[1:])]
        return f"| {' | '.join([first, *others])} |"

    rule = ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])]
    return [line(heads), line(rule), *map(line, zip(*cells))]
