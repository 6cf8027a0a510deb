"""The quantities that a recipe's cell prints, in tables and in figures."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Optional

from tff_reg.experiment.series.reproduction import Cell
from tff_reg.tasks import recipes

# The quantities of a table's cells in their printed order, for all columns or by
# column. A name with @* stands for one quantity for each of the recipe's
# `accuracy_at_rounds` or `target_accuracies`.
_PROTOCOL = ("ema@*", "rounds@*")
_COSTS = ("accuracy", "mflops", "params")
_QUANTITIES: Mapping[str, Any] = {
    "fedalign/table1": ("best", "lambda_max", "trace", "h_n_code", "h_d_code"),
    "fedalign/table2": ("accuracy",),
    "fedalign/table3": ("accuracy",),
    "fedalign/table4": ("accuracy",),
    "fedalign/table5": (*_COSTS, "seconds"),
    "fedalign/table6": ("accuracy",),
    "fedalign/table7": {
        "CIFAR-10, C = 16": _COSTS,
        "CIFAR-10, C = 64 x 0.25 (100)": ("accuracy",),
        "ImageNet-200, C = 16": ("accuracy", "gflops", "params"),
        "ImageNet-200, C = 32 x 0.125 (50)": ("accuracy",),
    },
    **{f"fedmlb/table{number}": _PROTOCOL for number in (1, 2, 3, 4, 10, 11)},
    **{f"fedmlb/table{number}": ("ema",) for number in (5, 6, 7, 8, 9)},
    "man/table1": ("all_clients", "rounds@*"),
    "man/table2": ("lambda_max", "trace"),
    "univarfl/table1": ("accuracy",),
    "univarfl/table2": ("accuracy",),
    "fl_simulator/table1": {
        **dict.fromkeys(("IID", "Dir-0.6", "Dir-0.3", "Dir-0.1"), ("best",)),
        "Time / round": ("seconds",),
    },
    "fedsmoo/table1": ("best",),
    "fedinit/table1": ("best",),
    "asd/table2": ("accuracy",),
    "fedexp/table1": ("accuracy",),
    "fedrcl/table1": ("accuracy",),
}


def cell(
    recipe: recipes.Recipe,
    quantities: Sequence[str],
    *,
    row: Optional[str] = None,
    column: Optional[str] = None,
) -> Cell:
    """Returns the cell of a recipe in a paper's table or figure."""
    expanded = _expanded(quantities, recipe)
    printed = _printed(recipe)
    return Cell(
        row=row or recipe.row,
        column=column or column_of(recipe),
        recipes=(recipe.name,),
        quantities=expanded,
        published=tuple(printed.get(quantity) for quantity in expanded),
    )


def column_of(recipe: recipes.Recipe) -> str:
    """Returns a recipe's column, with the table's part if it has two."""
    return ", ".join(part for part in (recipe.table.part, recipe.column) if part)


def quantities_of(recipe: recipes.Recipe) -> Sequence[str]:
    """Returns the quantities of a recipe's cell in its table."""
    found = _QUANTITIES[f"{recipe.table.paper.name}/table{recipe.table.number}"]
    return found[recipe.column] if isinstance(found, Mapping) else found


def _printed(recipe: recipes.Recipe) -> dict[str, str]:
    """Returns the paper's printed numbers of a recipe, by quantity."""
    names = _expanded(quantities_of(recipe), recipe)
    numbers = [each for each in re.split(r",\s*|\s*\(|\)", recipe.published) if each]
    assert len(names) == len(numbers), (recipe.name, names, numbers)
    # A number that is not known is none.
    return {name: number for name, number in zip(names, numbers) if number != "unknown"}


def _expanded(quantities: Sequence[str], recipe: recipes.Recipe) -> tuple[str, ...]:
    asked = {
        "ema@*": recipe.settings.get("accuracy_at_rounds", ()),
        "rounds@*": recipe.settings.get("target_accuracies", ()),
    }
    return tuple(
        name
        for quantity in quantities
        for name in (
            [quantity.replace("*", str(each)) for each in asked[quantity]]
            if quantity in asked
            else [quantity]
        )
    )
