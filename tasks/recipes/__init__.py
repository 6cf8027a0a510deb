"""The papers' experiments by name: `bin/run --recipe=fedalign/table2/mixup-alpha0.1`.

`paper_tables` has every table of the papers; a recipe is one cell of one,
`<paper>/table<number>/<row>[-<column>]`. It gives every setting that the paper or its
authors' code determines, so that it stays what it is when a default changes. Where the
name begins with the path of a paper's TOML file, `paper.toml/table1/fedavg`, it is in
that file.

>>> from tff_reg.tasks import recipes
>>> recipes.recipe("fedalign/table2/mixup-alpha0.1").published
'44.3 ± 0.1'
>>> recipes.settings("fedalign/table2/mixup-alpha0.1")["num_clients"]
16
>>> len(recipes.matching("fedmlb/table2/*"))
14

TensorFlow is not loaded here.
"""

from __future__ import annotations

import dataclasses
import difflib
import fnmatch
import functools
import pathlib
import re
import types
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Optional

from tff_reg import files, lazy
from tff_reg.experiment.config import run_config
from tff_reg.methods import catalogue
from tff_reg.tasks.recipes import paper_tables

figures = lazy.module("tff_reg.tasks.recipes.figures")
reproduction = lazy.module("tff_reg.experiment.series.reproduction")

_MOST_NEAR_NAMES = 3


class UnknownRecipeError(ValueError):
    """Raised for an unknown name of a recipe; lists similar names."""


@dataclasses.dataclass(frozen=True)
class Recipe:
    """One cell of a paper's table.

    Attributes:
      name: The recipe's name, also the path of its runs below `runs/`.
      table: The table.
      row: The row's name, as the paper prints it.
      column: The column's name.
      settings: Settings of a run by name.
      beneath: The settings that remain if the row, column or table that names the
        process is left out.
      published: The number or numbers of the cell, as printed.
      measure: The unit or meaning of these numbers.
      quantities: Their quantities, in the printed order.
      notes: How the run differs from the paper's, and what the paper leaves open.
    """

    name: str
    table: paper_tables.Table
    row: str
    column: str
    settings: Mapping[str, Any]
    beneath: Mapping[str, Any]
    published: str
    measure: str
    quantities: tuple[str, ...]
    notes: tuple[str, ...]


def recipes(where: str = "") -> list[Recipe]:
    """Returns all recipes, in the order of the papers' tables.

    `where` is a name; one that begins with a paper's file asks for this file's recipes.
    """
    return list(_by_name(where).values())


def recipe(name: str) -> Recipe:
    """Returns the recipe of a name.

    Raises:
      UnknownRecipeError: If there is no such recipe.
      ValueError: If the name's file is no paper.
    """
    known = _by_name(name)
    if name not in known:
        path = file_of(name)
        lists = f"bin/recipes {path}".strip()
        raise UnknownRecipeError(
            f"There is no recipe {name!r}{_near_names(name)}; {lists} lists them."
        )
    return known[name]


def settings(name: str, process: Optional[str] = None) -> dict[str, Any]:
    """Returns a recipe's settings, for a `tff_reg.experiment.RunConfig`.

    Args:
      name: The recipe's name.
      process: Another process for the settings. Settings of methods that this process
        lacks, such as FedAvgM's server momentum, are left out.

    Returns:
      Settings by name, including `process`, `task` and hyperparameters. Settings that
      the paper does not mention are missing. `output_dir` contains `{seed}`.

    Raises:
      UnknownRecipeError: If there is no such recipe.
    """
    found = recipe(name)
    chosen = dict(found.settings)
    if process is not None:
        left_out = catalogue.without(chosen["process"], process)
        for each in (
            catalogue.required_settings(left_out, chosen).keys() & chosen.keys()
        ):
            del chosen[each]
            if each in found.beneath:
                chosen[each] = found.beneath[each]
    return chosen


def matching(pattern: str) -> list[Recipe]:
    """Returns the recipes whose names match a pattern.

    Args:
      pattern: A part of a name; with `*`, `?` or `[` a pattern for whole names, as in
        a shell: `fedmlb/table2/*`. Case does not matter.

    Returns:
      At least one recipe, in the order of `recipes`.

    Raises:
      UnknownRecipeError: If there is none.
    """
    known = recipes(pattern)
    if not set("*?[") & set(pattern):
        found = [each for each in known if pattern.lower() in each.name.lower()]
    else:
        asked = pattern.lower()
        found = [r for r in known if fnmatch.fnmatchcase(r.name.lower(), asked)]
    if not found:
        raise UnknownRecipeError(
            f"No recipe's name matches {pattern!r}{_near_names(pattern)}; bin/recipes"
            " lists them."
        )
    return found


def _near_names(name: str) -> str:
    """Returns ` (did you mean A, B or C?)`: names that contain it or end similarly."""
    names = list(_by_name(name))
    name = name.lower()
    near = [known for known in names if name in known.lower()]
    if not near:
        ends = {}
        for known in names:
            end = "/".join(known.split("/")[-1 - name.count("/") :])
            ends.setdefault(end, known)
        similar = difflib.get_close_matches(name, ends, _MOST_NEAR_NAMES)
        near = [ends[end] for end in similar]
    if not near:
        return ""
    *others, last = near[:_MOST_NEAR_NAMES]
    listed = f"{', '.join(others)} or {last}" if others else last
    return f" (did you mean {listed}?)"


def file_of(name: str) -> str:
    """Returns the file of a name's recipes; empty for the papers that are here."""
    path, is_file, rest = name.partition(".toml")
    return path + is_file if is_file and rest[:1] in ("", "/") else ""


def place_of(name: str) -> str:
    """Returns the path below a directory of runs of what is in a paper's file."""
    path = file_of(name)
    return f"{pathlib.Path(path).stem}{name[len(path) :]}" if path else name


def _by_name(where: str = "") -> Mapping[str, Recipe]:
    path = file_of(where)
    return _of_file(path, *files.state(path)) if path else _of_papers()


@functools.cache
def _of_file(path: str, *state: int) -> Mapping[str, Recipe]:
    """Returns the recipes of a paper's file, checked; `state` is its `files.state`."""
    del state
    found = _of_tables(paper_tables.read(path))
    for each in found.values():
        try:
            run_config.RunConfig.of(each.settings)
            for quantity in figures.cell_of(each).quantities:
                reproduction.quantity_of(quantity)
        except ValueError as error:
            where = f"{path}, table {each.table.key}, row {each.row}"
            raise ValueError(f"{where}: {error}") from error
    return found


@functools.cache
def _of_papers() -> Mapping[str, Recipe]:
    return _of_tables(paper_tables.tables())


def _of_tables(tables: Iterable[paper_tables.Table]) -> Mapping[str, Recipe]:
    found: dict[str, Recipe] = {}
    for table in tables:
        table.check_exceptions()
        for each in _cells(table):
            if each.name in found:
                raise ValueError(
                    f"Two cells would be {each.name}: their rows, columns or tables"
                    " need names that differ in letters or digits."
                )
            if "process" not in each.settings:
                raise ValueError(f"{each.name}: the row {each.row} has no process.")
            found[each.name] = each
    return types.MappingProxyType(found)


def _cells(table: paper_tables.Table) -> Iterator[Recipe]:
    for row, column, is_basic, published in table.cells():
        whole, beneath = paper_tables.Variant(), paper_tables.Variant()
        for variant in table.variants(row, column):
            whole |= variant
            if variant is table.paper.base or "process" not in variant.settings:
                beneath |= variant
        parts = [row, table.part, "" if is_basic else column]
        cell = "-".join(_slug(part) for part in parts if part)
        name = f"{table.paper.name}/table{table.number}/{cell}"
        output_dir = {"output_dir": f"runs/{place_of(name)}-seed{{seed}}"}
        yield Recipe(
            name=name,
            table=table,
            row=row,
            column=column,
            settings=_without_none({**whole.settings, **output_dir}),
            beneath=_without_none(beneath.settings),
            published=published,
            measure=whole.measure,
            quantities=whole.quantities or ("accuracy",),
            notes=tuple(dict.fromkeys(whole.notes)),
        )


def _without_none(settings: Mapping[str, Any]) -> Mapping[str, Any]:
    return types.MappingProxyType(
        {key: value for key, value in settings.items() if value is not None}
    )


def _slug(name: str) -> str:
    """Returns a row's or column's name as part of a recipe's name.

    `GradAug (n = 2)` becomes `gradaug-n2`, `FedAvgM + FedMLB` `fedavgm+fedmlb`.
    """
    name = re.sub(r"\s*([=+])\s*", r"\1", name.lower()).replace("=", "")
    name = re.sub(r"\s+x\s+", "x", name)
    return re.sub(r"[^a-z0-9.+]+", "-", name).strip("-")
