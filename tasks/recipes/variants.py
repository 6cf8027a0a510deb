"""The form of the papers' tables: settings of rows and columns, printed cells.

The settings of a cell are those of the paper, the table, the row and the column
together; later ones override earlier ones, and None removes a setting. The tables as
printed are in `printed.txt`, one after another: a line with the paper, the table's
number (with a part in brackets if there are two) and subject; a line of column names,
in which a star marks the column whose recipes are named by the row alone; and a line
for each row. Cells are separated by '|'.
"""

from __future__ import annotations

import dataclasses
import fnmatch
import functools
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any


@dataclasses.dataclass(frozen=True)
class Variant:
    """Settings of a paper, a table, a row or a column; in `a | b`, b overrides a.

    Attributes:
      settings: Settings of a run by name; None removes a setting.
      notes: Differences from the paper, and what it leaves open; whole sentences.
      measure: The unit or meaning of the numbers.
    """

    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    notes: tuple[str, ...] = ()
    measure: str = ""

    def __or__(self, other: Variant) -> Variant:
        return Variant(
            {**self.settings, **other.settings},
            (*self.notes, *other.notes),
            other.measure or self.measure,
        )


@dataclasses.dataclass(frozen=True)
class Paper:
    """A paper.

    Attributes:
      name: Prefix of its recipes' names.
      title: Title, authors and year.
      base: The settings that all its experiments share.
      rows: The rows of its tables, by name.
      columns: The columns of its tables, by name.
    """

    name: str
    title: str
    base: Variant
    rows: Mapping[str, Variant]
    columns: Mapping[str, Variant]


@dataclasses.dataclass(frozen=True)
class Table:
    """A table of a paper.

    Attributes:
      paper: The paper.
      key: The table's number in `printed.txt`, and in brackets its part if it has two.
      base: The settings that all its cells share.
      columns: The columns that only this table has, by name.
      exceptions: Additional settings of some cells: a pattern of the row's name, a
        pattern of the column's name, and the settings.
    """

    paper: Paper
    key: str
    base: Variant = Variant()
    columns: Mapping[str, Variant] = dataclasses.field(default_factory=dict)
    exceptions: Sequence[tuple[str, str, Variant]] = ()

    @property
    def _printed(self) -> tuple[str, Sequence[str]]:
        return _printed()[f"{self.paper.name} {self.key}"]

    @property
    def number(self) -> int:
        """The table's number."""
        return int(self.key.split()[0])

    @property
    def part(self) -> str:
        """The part's name in recipes, such as `500 clients`; empty for part (a)."""
        return self.key.partition("(")[2].rstrip(")")

    @property
    def title(self) -> str:
        """The subject of the table."""
        return self._printed[0]

    def cells(self) -> Iterator[tuple[str, str, bool, str]]:
        """Yields each cell: row, column, whether the column is marked, printed text."""
        header, *lines = (
            [cell.strip() for cell in line.split("|")] for line in self._printed[1]
        )
        for row, *printed in lines:
            for column, numbers in zip(header[1:], printed):
                yield row, column.lstrip("*"), column.startswith("*"), numbers

    def variants(self, row: str, column: str) -> list[Variant]:
        """Returns the variants that set a cell, the strongest last."""
        return [
            self.paper.base,
            self.base,
            self.paper.rows[row],
            {**self.paper.columns, **self.columns}[column],
            *(
                added
                for rows, columns, added in self.exceptions
                if fnmatch.fnmatchcase(row, rows)
                and fnmatch.fnmatchcase(column, columns)
            ),
        ]


@functools.cache
def _printed() -> dict[str, tuple[str, Sequence[str]]]:
    """Returns the subject and the lines of each printed table, by paper and key."""
    text = pathlib.Path(__file__).with_name("printed.txt").read_text("utf-8")
    found = {}
    for block in text.split("\n\n"):
        heading, *lines = block.strip().splitlines()
        key, _, subject = heading.partition(": ")
        found[key] = subject, lines
    return found


def variant(*notes: str, measure: str = "", **settings: Any) -> Variant:
    """Returns a `Variant` of these settings."""
    return Variant(settings, notes, measure)


def added(base: Variant, method: str) -> Variant:
    """Returns the variant with a method added to its combination."""
    parts = [base.settings["process"], method]
    process = "+".join(part for part in parts if part != "fedavg")
    return base | variant(process=process)


THREE_RUNS = "accuracy in %, mean and deviation of three runs"
SEEDS = variant("The paper runs it three times: --seed=0, 1 and 2.")
