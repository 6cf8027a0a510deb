"""The papers' tables: settings of rows and columns, and the printed cells.

The settings of a cell are those of the paper, the table, the row and the column
together; later ones override earlier ones. A paper is a file `<name>.toml`:

    title = "Title, authors and year"
    like = "other_paper"      # If it has that paper's base, rows and columns, too.
    [base]                    # The settings that all its experiments share.
    [parts.<name>]            # Settings for use elsewhere.
    [rows]                    # Settings by row, [columns] by column; the name of a row
    <row> = {fedprox_strength = 0.1}    # may also be a column.
    [[tables]]
    key = "1 (500 clients)"   # The table's number, in brackets its part.
    settings = {}             # Those that all its cells share.
    columns.<column> = {}     # Columns that only this table has.
    [[tables.exceptions]]     # Settings of cells by patterns of `rows` and `columns`.

Beside settings of a run a group may have `paper`, a name in `methods.papers`, and
`like`, names of parts and rows, whose settings come first; `without`, the settings that
it removes; `notes`; and `measure`, the meaning of the numbers.

The tables as printed are in `printed.txt`, one after another: a line with the paper,
the table's key and subject; a line of column names, in which a star marks the column
whose recipes are named by the row alone; and a line for each row. Cells are separated
by '|'. MAN's Table 3 is left out, because it counts operations by formulae.
"""

from __future__ import annotations

import dataclasses
import fnmatch
import functools
import pathlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tff_reg.methods import papers

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_PAPERS = (
    *("fedalign", "fedmlb", "man", "univarfl", "fl_simulator", "fedsmoo", "fedinit"),
    *("asd", "fedrcl", "fedexp"),
)


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


_NO_PAPER = Paper("", "", Variant(), {}, {})


@dataclasses.dataclass(frozen=True)
class Table:
    """A table of a paper.

    Attributes:
      paper: The paper.
      key: The table's number, and in brackets its part if it has two.
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
            self.paper.rows.get(row, Variant({"process": row.lower()})),
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


@functools.cache
def tables() -> tuple[Table, ...]:
    """Returns every table with experiments of the papers, paper by paper."""
    return tuple(table for name in _PAPERS for table in _read(name)[1])


@functools.cache
def _read(name: str) -> tuple[Paper, tuple[Table, ...]]:
    """Reads a paper's file."""
    text = pathlib.Path(__file__).with_name(f"{name}.toml").read_text("utf-8")
    given = tomllib.loads(text)
    other = _read(given["like"])[0] if "like" in given else _NO_PAPER
    rows, columns = given.get("rows", {}), given.get("columns", {})
    named = {**rows, **given.get("parts", {})}

    def of(group: Mapping[str, Any]) -> Variant:
        values = dict(group)
        known = getattr(papers, values.pop("paper")) if "paper" in values else {}
        found = Variant(dict(known))
        for each in values.pop("like", ()):
            found |= of(named[each])
        notes, measure = tuple(values.pop("notes", ())), values.pop("measure", "")
        removed = dict.fromkeys(values.pop("without", ()))
        values = {k: tuple(v) if isinstance(v, list) else v for k, v in values.items()}
        return found | Variant({**values, **removed}, notes, measure)

    def each_of(groups: Mapping[str, Any]) -> dict[str, Variant]:
        return {name: of(group) for name, group in groups.items()}

    rows = {**other.rows, **each_of(rows)}
    columns = {**rows, **other.columns, **each_of(columns)}
    paper = Paper(name, given["title"], other.base | of(given["base"]), rows, columns)
    made = [
        Table(
            paper,
            table["key"],
            of(table.get("settings", {})),
            each_of(table.get("columns", {})),
            [
                (each.pop("rows"), each.pop("columns"), of(each))
                for each in table.get("exceptions", ())
            ],
        )
        for table in given["tables"]
    ]
    return paper, tuple(made)
