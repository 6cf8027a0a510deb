"""The papers' experiments as flag files: `bin/run -flagfile=tasks/recipes/...`.

`tables` describes every table of the four papers; from that description the files

    tasks/recipes/<paper>/<table>/<row>[-<column>].flags

are written by `bin/launch -m tasks.recipes`, never by hand. A file is complete: it
gives every setting that the paper or its authors' code determines, so that it stays
what it is when a default changes.

    recipes()      all of them
    render(recipe) the text of a recipe's file
    write(root)    writes all files

TensorFlow is not loaded here.
"""

from __future__ import annotations

import dataclasses
import pathlib
import re
import textwrap
from collections.abc import Mapping
from typing import Any

from tasks.recipes import tables
from tff_reg.experiment import settings

ROOT = pathlib.Path(__file__).parent
_WIDTH = 88


@dataclasses.dataclass(frozen=True)
class Recipe:
    """One cell of a paper's table.

    Attributes:
      table: The table.
      row: The row's name, as the paper prints it.
      column: The column's name.
      flags: The flags of `bin/run` by name.
      published: The number or numbers of the cell, as printed.
      notes: In what the run differs from the paper's, or what the paper leaves open.
    """

    table: tables.Table
    row: str
    column: str
    flags: Mapping[str, Any]
    published: str
    notes: tuple[str, ...]

    @property
    def path(self) -> str:
        """Where its file is, below `ROOT`."""
        return f"{self.table.paper.name}/table{self.table.number}/{self.name}.flags"

    @property
    def name(self) -> str:
        """The file's name without its ending; also the run's."""
        parts = [self.row, self.table.part]
        if self.column != self.table.basic_column:
            parts.append(self.column)
        return "-".join(filter(None, map(slug, parts)))


def slug(name: str) -> str:
    """A row's or column's name as part of a file's name.

    `GradAug (n = 2)` becomes `gradaug-n2`, `FedAvgM + FedMLB` `fedavgm+fedmlb`.
    """
    name = re.sub(r"\s*([=+])\s*", r"\1", name.lower()).replace("=", "")
    name = re.sub(r"\s+x\s+", "x", name)
    return re.sub(r"[^a-z0-9.+]+", "-", name).strip("-")


def recipes() -> list[Recipe]:
    """All recipes, in the order of the papers' tables."""
    return [recipe for table in tables.TABLES for recipe in _cells(table)]


def _cells(table: tables.Table) -> list[Recipe]:
    header, *lines = (
        [cell.strip() for cell in line.split("|")]
        for line in table.numbers.strip().splitlines()
    )
    result = []
    for row, *published in lines:
        for column, numbers in zip(header[1:], published):
            variants = [
                table.paper.base,
                table.base,
                table.rows[row],
                table.columns[column],
                table.exceptions.get((row, column), tables.Variant()),
            ]
            flags, notes = {}, []
            for variant in variants:
                flags.update(variant.flags)
                notes += [note for note in variant.notes if note not in notes]
            flags = {name: value for name, value in flags.items() if value is not None}
            result.append(Recipe(table, row, column, flags, numbers, tuple(notes)))
    return result


def render(recipe: Recipe) -> str:
    """The text of a recipe's file."""
    table = recipe.table
    cell = [f"Row {recipe.row}"]
    if len(table.columns) > 1:
        cell.append(f"column {recipe.column}")
    texts = [
        f"{table.paper.title}. Table {table.number}: {table.title}.",
        f"{', '.join(cell)}. Published: {recipe.published}"
        f" ({table.measures.get(recipe.column, table.measure)}).",
        *recipe.notes,
    ]
    comments = [
        line
        for text in texts
        for line in textwrap.wrap(
            text,
            _WIDTH,
            initial_indent="# ",
            subsequent_indent="#   ",
            break_on_hyphens=False,
        )
    ]
    order = [option.name for option in settings.OPTIONS]
    rank = {name: number for number, name in enumerate(order)}
    run = recipe.path.removesuffix(".flags")
    flags = {**recipe.flags, "output_dir": f"runs/{run}-seed{{seed}}"}
    lines = [
        f"--{name}={_text(flags[name])}"
        for name in sorted(flags, key=lambda name: rank.get(name, len(rank)))
    ]
    return "\n".join([*comments, *lines]) + "\n"


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def write(root: pathlib.Path = ROOT) -> int:
    """Writes the files of all recipes, and deletes flag files that are none.

    Args:
      root: Where the papers' folders are.

    Returns:
      How many recipes there are.
    """
    texts = {root / recipe.path: render(recipe) for recipe in recipes()}
    for path in set(root.glob("*/*/*.flags")) - set(texts):
        path.unlink()
    for path, text in texts.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
    return len(texts)
