"""Papers' tables: settings of rows and columns, and the printed cells.

The settings of a cell are those of the paper, the table, the row and the column
together; later ones override earlier ones. A paper is a TOML file:

    title = "Title, authors and year"
    like = "other_paper"      # If it has that paper's base, rows and columns, too.
    [base]                    # The settings that all its experiments share.
    [parts.<name>]            # Settings for use elsewhere.
    [rows]                    # Settings by row, [columns] by column; the name of a row
    <row> = {fedprox_strength = 0.1}    # may also be a column.
    [[tables]]
    key = "1 (500 clients)"   # The table's number, in brackets its part.
    title = "Subject"
    printed = '''             # A line of column names, in which a star marks the column
            | *alpha = 0.1    # whose recipes are named by the row alone; and a line for
    <row>   | 44.3 ± 0.1      # each row. A row without settings is a process.
    '''
    total_rounds = 100        # Settings that all its cells share.
    columns.<column> = {}     # Columns that only this table has.
    [[tables.exceptions]]     # Settings of cells by patterns of `rows` and `columns`.

Beside settings of a run a group may have `paper`, a name in `methods.papers`, and
`like`, names of parts and rows, whose settings come first; `without`, the settings that
it removes; `notes`, where it departs from the paper; `measure`, the meaning of the
printed numbers; and `quantities`, their names among the columns of `bin/compare`. There
`ema@*` and `rounds@*` stand for one for each of the run's `score_at_rounds` and
`targets`. A number is printed as `71.2` or, with its deviation, `71.2 ± 0.4`, and as
`unknown` if it is not known; several are divided by commas or in brackets.

MAN's Table 3 is left out, because it counts operations by formulae.
"""

from __future__ import annotations

import dataclasses
import fnmatch
import functools
import pathlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tff_reg.methods import catalogue, papers

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
      quantities: The quantities of the numbers.
    """

    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    notes: tuple[str, ...] = ()
    measure: str = ""
    quantities: tuple[str, ...] = ()

    def __or__(self, other: Variant) -> Variant:
        return Variant(
            {**self.settings, **other.settings},
            (*self.notes, *other.notes),
            other.measure or self.measure,
            other.quantities or self.quantities,
        )


@dataclasses.dataclass(frozen=True)
class Paper:
    """A paper.

    Attributes:
      name: Prefix of its recipes' names: the path of a file of one's own.
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
      title: Its subject.
      printed: Its lines as printed: the header, and a line a row.
      base: The settings that all its cells share.
      columns: The columns that only this table has, by name.
      exceptions: Additional settings of some cells: a pattern of the row's name, a
        pattern of the column's name, and the settings.
    """

    paper: Paper
    key: str
    title: str
    printed: Sequence[str]
    base: Variant = Variant()
    columns: Mapping[str, Variant] = dataclasses.field(default_factory=dict)
    exceptions: Sequence[tuple[str, str, Variant]] = ()

    @property
    def number(self) -> str:
        """The table's number."""
        return self.key.split()[0]

    @property
    def part(self) -> str:
        """The part's name in recipes, such as `500 clients`; empty for part (a)."""
        return self.key.partition("(")[2].rstrip(")")

    def cells(self) -> Iterator[tuple[str, str, bool, str]]:
        """Yields each cell: row, column, whether the column is marked, printed text."""
        header, *lines = (
            [cell.strip() for cell in line.split("|")] for line in self.printed
        )
        if sum(column.startswith("*") for column in header) > 1:
            raise self._wrong("a star marks one column alone")
        for row, *printed in lines:
            if len(printed) != len(header) - 1:
                numbers = f"{len(printed)} numbers for {len(header) - 1} columns"
                raise self._wrong(f"{row or 'a row'} has {numbers}")
            for column, numbers in zip(header[1:], printed):
                yield row, column.lstrip("*"), column.startswith("*"), numbers

    def variants(self, row: str, column: str) -> list[Variant]:
        """Returns the variants that set a cell, the strongest last."""
        columns = {**self.paper.columns, **self.columns}
        if column not in columns:
            why = f"the column {column!r} has no settings; [columns] names each"
            raise self._wrong(f"{why}, if only as {{}}")
        return [
            self.paper.base,
            self.base,
            self._row(row),
            columns[column],
            *(
                added
                for rows, columns, added in self.exceptions
                if _matches(row, rows) and _matches(column, columns)
            ),
        ]

    def _row(self, row: str) -> Variant:
        """Returns a row's settings; one named like a process is this process."""
        process = row.lower().replace(" ", "")
        known = {*catalogue.names(), *catalogue.REFERENCES, "fedavg"}
        is_known = {*process.split("+")} <= known
        named = Variant({"process": process}) if is_known else Variant()
        if row not in self.paper.rows and not is_known:
            named = Variant({"process": row.lower()})
        return named | self.paper.rows.get(row, Variant())

    def check_exceptions(self) -> None:
        """Refuses exceptions that no cell has."""
        cells = [(row, column) for row, column, *_ in self.cells()]
        for rows, columns, _ in self.exceptions:
            if not any(_matches(r, rows) and _matches(c, columns) for r, c in cells):
                raise self._wrong(f"no cell is in {rows!r}, {columns!r}")

    def _wrong(self, what: str) -> ValueError:
        return ValueError(f"{self.paper.name}, table {self.key}: {what}.")


def _matches(name: str, pattern: str) -> bool:
    return name == pattern or fnmatch.fnmatchcase(name, pattern)


@functools.cache
def tables() -> tuple[Table, ...]:
    """Returns every table with experiments of the papers here, paper by paper."""
    return tuple(table for name in _PAPERS for table in _known(name)[1])


@functools.cache
def _known(name: str) -> tuple[Paper, tuple[Table, ...]]:
    """Returns a paper that is here, and its tables."""
    if name not in _PAPERS:
        raise ValueError(f"like = {name!r}: the papers here are {', '.join(_PAPERS)}.")
    return _parsed(pathlib.Path(__file__).with_name(f"{name}.toml"), name)


def read(path: str) -> tuple[Table, ...]:
    """Reads the tables of a paper's file.

    Raises:
      ValueError: If the file is no paper, with the file's name and what is wrong.
    """
    try:
        return _parsed(pathlib.Path(path), path)[1]
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror}.") from error
    except KeyError as error:
        raise ValueError(f"{path}: {error.args[0]} is missing.") from error
    except (AttributeError, TypeError) as error:
        raise ValueError(
            f"{path} is no paper ({error}); bin/recipes --new writes one to fill in."
        ) from error
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def _parsed(path: pathlib.Path, name: str) -> tuple[Paper, tuple[Table, ...]]:
    """Reads a paper's file."""
    given = tomllib.loads(path.read_text("utf-8"))
    other = _known(given["like"])[0] if "like" in given else _NO_PAPER
    rows, columns = given.get("rows", {}), given.get("columns", {})
    named = {**rows, **given.get("parts", {})}

    def of(group: Mapping[str, Any]) -> Variant:
        values: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value
            for name, value in group.items()
        }
        known = getattr(papers, values.pop("paper")) if "paper" in values else {}
        found = Variant(dict(known))
        for each in values.pop("like", ()):
            found |= of(named[each])
        said = {each: values.pop(each, ()) for each in ("notes", "quantities")}
        measure, removed = values.pop("measure", ""), values.pop("without", ())
        values |= dict.fromkeys(removed)
        return found | Variant(values, measure=measure, **said)

    def each_of(groups: Mapping[str, Any]) -> dict[str, Variant]:
        return {name: of(group) for name, group in groups.items()}

    def table_of(table: dict[str, Any]) -> Table:
        columns, exceptions = table.pop("columns", {}), table.pop("exceptions", ())
        return Table(
            paper,
            table.pop("key"),
            table.pop("title"),
            table.pop("printed").strip("\n").splitlines(),
            of(table),
            each_of(columns),
            [(each.pop("rows"), each.pop("columns"), of(each)) for each in exceptions],
        )

    rows = {**other.rows, **each_of(rows)}
    columns = {**rows, **other.columns, **each_of(columns)}
    base = other.base | of(given.get("base", {}))
    paper = Paper(name, given["title"], base, rows, columns)
    return paper, tuple(map(table_of, given["tables"]))
