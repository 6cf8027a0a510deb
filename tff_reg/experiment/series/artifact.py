"""A table or figure of a paper: its cells, and its numbers beside the runs' numbers.

    table.csv    one row per number: row, column, quantity, published, here, mean, ...
    table.md     the table as the paper has it, published and here side by side
    report.html  both, the curves and where the numbers come from

`tff_reg.tasks.recipes.artifacts` lists the tables and figures. TensorFlow is not loaded
here.
"""

from __future__ import annotations

import dataclasses
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Optional

from tff_reg import files, tables
from tff_reg.experiment.report import comparison, finished_runs, page, quantities

_WIDTH = 88
_NONE = "-"

# What papers print otherwise than tables of comparisons do.
_OTHERS: Mapping[str, Mapping[str, Any]] = {
    "ema@": {"head": "EMA after {} rounds (%)"},
    "gflops": {
        "name": "mflops",
        "head": "GFLOPs",
        "read": lambda run: run.cost("forward_mflops") / 1000,
    },
}


@dataclasses.dataclass(frozen=True)
class Cell:
    """A cell of a table, or a curve of a figure.

    Attributes:
      row: The row's name, as the paper prints it; in a figure, the curve's name.
      column: The column's name; in a figure, the panel's name.
      recipes: The recipes of its runs; several are averaged.
      quantities: The quantities that it shows.
      published: The paper's text for each quantity; None if it prints nothing.
      settings: The settings of the runs beside the recipe.
    """

    row: str
    column: str
    recipes: tuple[str, ...]
    quantities: tuple[str, ...]
    published: tuple[Optional[str], ...]
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Artifact:
    """A table or figure.

    Attributes:
      name: Its name, such as `fedmlb/table2` or `man/figure4`.
      title: Its subject.
      cells: Its cells, row by row or column by column.
      weights: The kind of weights whose flatness is measured: those whose accuracy is
        reported.
      hessian: Settings of `bin/analyze hessian` that differ from the defaults.
      picture: How the figure is drawn: curves, compute_time, landscape, eigenvalues or
        singular_values; empty for a table.
      curve: The accuracy that the curves show: accuracy, ema or all_clients.
      notes: Notes below the table, whole sentences.
    """

    name: str
    title: str
    cells: tuple[Cell, ...]
    weights: str = finished_runs.WEIGHTS.default
    hessian: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    picture: str = ""
    curve: str = "ema"
    notes: tuple[str, ...] = ()

    @property
    def columns(self) -> list[str]:
        """The names of its columns, in their order."""
        return list(dict.fromkeys(cell.column for cell in self.cells))

    @property
    def rows(self) -> list[str]:
        """The names of its rows, in their order."""
        return list(dict.fromkeys(cell.row for cell in self.cells))


@dataclasses.dataclass(frozen=True)
class Number:
    """A number of a cell.

    Attributes:
      cell: The cell.
      quantity: Its quantity.
      published: The paper's text; None for none.
      here: The text for the runs, as the paper would print it; `-` for none.
      mean: Mean in the paper's units; None if a run never reached the target.
      deviation: Deviation over seeds, or over the cell's recipes if there are several;
        None for one.
      seeds: Number of runs of each recipe, the smallest if they differ.
      round_num: The runs' round, if the quantity is at a round of the paper's.
    """

    cell: Cell
    quantity: str
    published: Optional[str]
    here: str
    mean: Optional[float]
    deviation: Optional[float]
    seeds: int
    round_num: Optional[int] = None


def split(name: str) -> tuple[str, Optional[float]]:
    """Splits the name of a quantity after its @, into the number there; None of none.

    `ema@R` is the moving average after R rounds, `rounds@T` the number of rounds to the
    accuracy T (0 to 1).
    """
    kind, is_at, at = name.partition("@")
    if not is_at:
        return kind, None
    return f"{kind}@", float(at) if kind == "rounds" else int(at)


def quantity_of(name: str, at: Optional[float] = None) -> quantities.Quantity:
    """Returns the quantity of a name; `at` replaces the number after its @."""
    kind, own = split(name)
    others: Any = {"name": kind, **_OTHERS.get(kind, {})}
    found = dataclasses.replace(quantities.TABLE[others["name"]], **others)
    return found if own is None else found.at(own if at is None else at)


def number(
    cell: Cell,
    quantity: str,
    published: Optional[str],
    values: Sequence[Sequence[Optional[float]]],
    last_round: int,
) -> Number:
    """Makes a number of a cell."""
    seeds = min(map(len, values))
    if not seeds:
        return Number(cell, quantity, published, _NONE, None, None, 0)
    means = [quantities.mean(each) for each in values]
    mean = quantities.mean(means)
    deviation = quantities.deviation(means if len(means) > 1 else values[0])
    digits = _digits(published)
    if mean is not None and quantity.startswith("rounds@"):
        here = f"{mean:.1f}".removesuffix(".0")
    elif mean is not None:
        here = _shown(mean, digits)
    else:
        here = f"{last_round}+" if quantity.startswith("rounds@") else _NONE
    if deviation is not None:
        here += f" ± {_shown(deviation, digits)}"
    return Number(cell, quantity, published, here, mean, deviation, seeds)


def _digits(published: Optional[str]) -> int:
    """Returns the number of decimals in the paper's text; two without a text."""
    if published is None:
        return 2
    return len(published.split()[0].rstrip("+").partition(".")[2])


def _shown(value: float, digits: int) -> str:
    text = f"{value:.{digits}f}"
    # A small number keeps two significant digits.
    is_small = 0 < abs(value) < 10.0 ** (1 - digits)
    return f"{value:.2g}" if is_small else text


def write(
    artifact: Artifact,
    numbers: Sequence[Number],
    notes: Sequence[str],
    output_dir: files.PathLike,
    runs: Mapping[str, page.Groups] = {},
    command: str = "",
) -> None:
    """Writes `table.csv`, `table.md` and `report.html`.

    `runs` are the finished runs by column and row; the report names the `command`.
    """
    rows = [_csv_row(number) for number in numbers]
    title = f"{artifact.name.replace('/', ', ')}: {artifact.title}"
    lines, parts = [f"# {title}", ""], []
    for name, block in _blocks(artifact, numbers):
        lines += [f"## {name}", "", *tables.to_markdown(block), ""]
        parts += [page.heading(name), page.table(block, [])]
    for note in notes:
        lines += textwrap.wrap(
            note, _WIDTH, initial_indent="- ", subsequent_indent="  "
        )
    parts.append(page.paragraph("\n\n".join(notes)))
    for column, groups in runs.items():
        parts += [page.heading(column), page.curves_of(comparison.by_round(groups))]
    groups = {f"{r}, {c}": each for c, own in runs.items() for r, each in own.items()}
    text = page.page(title, [*parts, page.clients_of(groups)], groups, command)
    texts = (tables.to_csv(rows), "\n".join([*lines, ""]), text)
    contents: dict[str, Any] = dict(zip(("table.csv", "table.md", page.FILE), texts))
    files.write_only(output_dir, contents, [*contents])


def _blocks(
    artifact: Artifact, numbers: Sequence[Number]
) -> Iterator[tuple[str, tables.Columns]]:
    """Yields the name and the cells of each table."""
    shown = {cell.quantities for cell in artifact.cells}
    if len(shown) == 1 and len(artifact.cells[0].quantities) == 1:
        ((name,),) = shown
        heads = {(column, name): column for column in artifact.columns}
        yield quantity_of(name).head, _block(artifact.rows, heads, numbers)
        return
    for column in artifact.columns:
        cells = [cell for cell in artifact.cells if cell.column == column]
        heads = {
            (column, name): quantity_of(name).head
            for cell in cells
            for name in cell.quantities
        }
        rows = list(dict.fromkeys(cell.row for cell in cells))
        yield column, _block(rows, heads, numbers)


def _csv_row(number: Number) -> dict[str, Any]:
    return {
        "row": number.cell.row,
        "column": number.cell.column,
        "quantity": number.quantity,
        "published": number.published,
        "here": number.here,
        "mean": number.mean,
        "deviation": number.deviation,
        "seeds": number.seeds,
        "round": number.round_num,
        "recipes": " ".join(number.cell.recipes),
    }


def _block(
    rows: Sequence[str],
    heads: Mapping[tuple[str, str], str],
    numbers: Sequence[Number],
) -> tables.Columns:
    """Makes a table with one row per method: published and own values by heading."""
    found = {(each.cell.row, each.cell.column, each.quantity): each for each in numbers}
    columns: list[tuple[str, list[str]]] = [("", ["", *rows])]
    for (column, quantity), text in heads.items():
        own = [found.get((row, column, quantity)) for row in rows]
        published = [(each and each.published) or _NONE for each in own]
        here = [each.here if each else _NONE for each in own]
        rounds = sorted({each.round_num for each in own if each and each.round_num})
        at = f", round {quantities.span(rounds)}" if rounds else ""
        columns += [(text, ["published", *published]), ("", [f"here{at}", *here])]
    return columns
