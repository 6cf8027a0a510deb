"""The cells of the papers' tables, and the figures that draw them."""

from __future__ import annotations

import functools
import re
import types
from collections.abc import Mapping, Sequence
from typing import Any, Optional

from tff_reg.experiment.series.reproduction import Artifact, Cell
from tff_reg.tasks import recipes

_AFTER = ("ema@500", "ema@1000")
# 300+ is a number of rounds that were too few.
_NUMBER = re.compile(r"unknown|-?\d+(\.\d+)?\+?(\s+±\s+\d+(\.\d+)?)?")
# The figures write FedAvg+ for FedAvg + FedMLB.
_FEDAVG_FEDMLB = {"FedMLB": "FedAvg + FedMLB"}


def cell_of(
    recipe: recipes.Recipe,
    quantities: Sequence[str] = (),
    *,
    row: Optional[str] = None,
    column: Optional[str] = None,
) -> Cell:
    """Returns the cell of a recipe in a table or, with its `quantities`, a figure."""
    expanded = _expanded(quantities or recipe.quantities, recipe)
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


def _printed(recipe: recipes.Recipe) -> dict[str, str]:
    """Returns the paper's printed numbers of a recipe, by quantity."""
    names = _expanded(recipe.quantities, recipe)
    numbers = [each for each in re.split(r",\s*|\s*\(|\)", recipe.published) if each]
    if len(names) != len(numbers) or not all(map(_NUMBER.fullmatch, numbers)):
        raise ValueError(
            f"{recipe.published!r} must have a number for each of {', '.join(names)},"
            " such as 71.2, 71.2 ± 0.4 or 300+; unknown stands for none."
        )
    # A number that is not known is none.
    return {name: number for name, number in zip(names, numbers) if number != "unknown"}


def _expanded(quantities: Sequence[str], recipe: recipes.Recipe) -> tuple[str, ...]:
    asked = {
        "ema@*": recipe.settings.get("score_at_rounds", ()),
        "rounds@*": recipe.settings.get("targets", ()),
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


def _of_table(name: str, rows: Sequence[str] = ()) -> list[recipes.Recipe]:
    """Returns the recipes of a table, or of some of its rows."""
    return [
        recipe
        for recipe in recipes.recipes()
        if recipe.name.startswith(f"{name}/") and (not rows or recipe.row in rows)
    ]


def _curves(
    table: str,
    quantities: Sequence[str],
    columns: Mapping[str, str],
    rows: Sequence[str] = (),
    names: Mapping[str, str] = types.MappingProxyType({}),
) -> tuple[Cell, ...]:
    """Returns the cells of some of a table's columns; `columns` maps them to panels."""
    return tuple(
        cell_of(recipe, quantities, row=names.get(recipe.row), column=title)
        for name, title in columns.items()
        for recipe in _of_table(table, rows)
        if column_of(recipe) == name
    )


# Most figures draw curves.
_figure = functools.partial(Artifact, picture="curves")


def _convergence_of_fedmlb(number: int, data_set: str) -> Artifact:
    """FedMLB's Figs. 6 and 7: six settings of a data set."""
    return _figure(
        f"fedmlb/figure{number}",
        f"Convergence on {data_set} in six settings",
        tuple(
            cell
            for split, table in (("Dir(0.3)", 1), ("Dir(0.6)", 10), ("IID", 11))
            for cell in _curves(
                f"fedmlb/table{table}",
                _AFTER,
                {
                    data_set: f"{split}, 100 clients, 5 %",
                    f"500 clients, {data_set}": f"{split}, 500 clients, 2 %",
                },
                names=_FEDAVG_FEDMLB,
            )
        ),
    )


def _convergence_of_man(number: int, data_set: str) -> Artifact:
    """MAN's Figs. 2 and 3."""
    splits = ("delta = 0.3", "delta = 0.6", "iid")
    names = ("FedAvg", "FedDyn", "FedDC")
    return _figure(
        f"man/figure{number}",
        f"Convergence on {data_set}, with and without MAN",
        _curves(
            "man/table1",
            ("all_clients", "rounds@*"),
            {f"{data_set}, {split}": split for split in splits},
            [*names, *(f"{name} + MAN" for name in names)],
        ),
        curve="all_clients",
        notes=(
            "Our text of the paper does not show which split the figure uses; here all"
            " three.",
        ),
    )


def _curvature_of_man(number: int, title: str, *names: str, **options: Any) -> Artifact:
    """MAN's Figs. 1 and 4."""
    rows = [f"{name}{more}" for name in names for more in ("", " + MAN")]
    columns = {"delta = 0.3": "delta = 0.3"}
    return _figure(
        f"man/figure{number}",
        f"{title}, CIFAR-100, delta = 0.3",
        _curves("man/table2", ("lambda_max", "trace"), columns, rows),
        weights="all_clients",
        **options,
    )


def _paths_of_fedmlb() -> tuple[Cell, ...]:
    """FedMLB's Fig. 5: all hybrid paths, then each alone."""

    def cell(row, recipe, published):
        return Cell(row, "CIFAR-100", (recipe,), ("ema",), (published,))

    published = {1: "50.79", 5: "48.45"}
    alone = {
        recipe.settings["fedmlb_paths"][0]: recipe.name
        for recipe in _of_table("fedmlb/table6")
        if len(recipe.settings["fedmlb_paths"]) == 1
    }
    return (
        cell("FedMLB", "fedmlb/table5/paths-12345", "54.58"),
        *(
            cell(f"hybrid path {path}", name, published.get(path))
            for path, name in alone.items()
        ),
    )


def _of_fedalign() -> list[Artifact]:
    return [
        _figure(
            "fedalign/figure1",
            "Loss landscape of each method's global model, CIFAR-100",
            _curves(
                "fedalign/table1",
                ("lambda_max", "trace"),
                {"Acc., lambda_max, H_T, H_N, H_D": "CIFAR-100"},
            ),
            weights="best",
            picture="landscape",
            notes=("Of the model of the best round, as Table 1.",),
        ),
    ]


def _of_fedmlb() -> list[Artifact]:
    methods = ("FedAvg", "FedLS-NTD", "FedGKD", "FedMLB")
    steps = [
        ("K = 50" if recipe.column == "100 clients" else recipe.column, recipe)
        for table in ("fedmlb/table2", "fedmlb/table3")
        for recipe in _of_table(table, methods)
        if recipe.column != "500 clients"
    ]
    return [
        _figure(
            "fedmlb/figure2",
            "FedMLB on four server-side baselines, CIFAR-100, Dir(0.3), 100 clients",
            _curves(
                "fedmlb/table1", _AFTER, {"CIFAR-100": "CIFAR-100"}, (), _FEDAVG_FEDMLB
            ),
        ),
        _figure(
            "fedmlb/figure3",
            "FedMLB and other local objectives, CIFAR-100, Dir(0.3), 100 clients",
            _curves("fedmlb/table2", _AFTER, {"100 clients": "CIFAR-100"}),
        ),
        _figure(
            "fedmlb/figure4",
            "Accuracy by local computation: K = 50, 100 and 200 local iterations",
            tuple(
                cell_of(recipe, ("ema@1000", "seconds"), column=column)
                for column, recipe in steps
            ),
            picture="compute_time",
            notes=("The paper prints no seconds: they stand in its figure alone.",),
        ),
        _figure(
            "fedmlb/figure5",
            "The benefit of each hybrid path, CIFAR-100, Dir(0.3), 100 clients",
            _paths_of_fedmlb(),
            notes=(
                "Table 5 prints two of the paths; the others are in the figure alone.",
            ),
        ),
        _convergence_of_fedmlb(6, "CIFAR-100"),
        _convergence_of_fedmlb(7, "Tiny-ImageNet"),
        _figure(
            "fedmlb/figure8",
            "FedMLB and other local objectives, CIFAR-100, Dir(0.3)",
            _curves(
                "fedmlb/table2",
                _AFTER,
                {"100 clients": "100 clients, 5 %", "500 clients": "500 clients, 2 %"},
            ),
        ),
        _figure(
            "fedmlb/figure9",
            "More local iterations, CIFAR-100, Dir(0.3), 100 clients",
            _curves(
                "fedmlb/table3", _AFTER, {"K = 100": "K = 100", "K = 200": "K = 200"}
            ),
        ),
    ]


def _of_man() -> list[Artifact]:
    return [
        _curvature_of_man(
            1, "Loss surface with and without MAN", "FedAvg", picture="landscape"
        ),
        _convergence_of_man(2, "CIFAR-100"),
        _convergence_of_man(3, "Tiny-ImageNet"),
        _curvature_of_man(
            4,
            "Top 200 eigenvalues and spectral density",
            "FedAvg",
            "FedSAM",
            hessian={"eigenvalues": 200, "density_samples": 10},
            picture="eigenvalues",
        ),
    ]


def _of_univarfl() -> list[Artifact]:
    column = "CIFAR-100, alpha = 0.01"
    singular = _curves("univarfl/table1", ("accuracy",), {column: column})
    iid = {"partition": "iid"}
    reference = (
        "FedAvg, IID",
        column,
        singular[0].recipes,
        ("accuracy",),
        (None,),
        iid,
    )
    return [
        _figure(
            "univarfl/figure1",
            "Singular values of the classifier's weights, CIFAR-100",
            (*singular, Cell(*reference)),
            picture="singular_values",
            notes=(
                "The IID reference is FedAvg with the same number of clients and an IID"
                " partition; the paper prints no accuracy for it.",
            ),
        ),
    ]


def figures() -> list[Artifact]:
    """Returns the figures of all papers that show results."""
    return [*_of_fedalign(), *_of_fedmlb(), *_of_man(), *_of_univarfl()]
