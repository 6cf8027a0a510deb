"""Every table and figure of the four papers that shows results, by its number.

`tables` has the cells; here is what each of their numbers is, and which cells a figure
draws. What shows no results (FedAlign's Fig. 2, FedMLB's Fig. 1) is left out.

    artifacts()     all of them: `fedalign/table1`, ..., `univarfl/figure1`
    artifact(name)  one of them
    work(artifact)  how much training one is
"""

from __future__ import annotations

import csv
import difflib
import functools
import pathlib
import re
import types
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Optional

from tff_reg.experiment.config.identity import identity
from tff_reg.experiment.series.artifact import Artifact, Cell
from tff_reg.tasks import recipes
from tff_reg.tasks.recipes import paper_tables

# Of what the tables print, in the order in which a cell has it: by paper and number,
# for all columns or by column. What ends with @* stands for as many as the recipe asks
# for: rounds (`accuracy_at_rounds`), targets (`target_accuracies`).
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
}
_BEST = (
    "The authors' code keeps the model of the best round: accuracy, lambda_max and H_T"
    " are of it. H_N and H_D are of the clients' models after one more round, with the"
    " pairs of a client with itself among them, as in their code.",
)
# What is not as usual in a table.
_MORE: Mapping[str, Mapping[str, Any]] = {
    "fedalign/table1": {"weights": "best", "notes": _BEST},
    "man/table2": {
        "weights": "all_clients",
        "notes": (
            "Of the mean of all clients' last models, whose accuracy Table 1 reports.",
        ),
    },
}


class UnknownArtifactError(ValueError):
    """Raised when there is no table or figure of a name; says which are near."""


@functools.cache
def artifacts() -> tuple[Artifact, ...]:
    """All of them, paper by paper, tables before figures."""
    found = [*_tables(), _man_table3(), *_figures()]
    papers = list(dict.fromkeys(table.paper.name for table in paper_tables.TABLES))
    return tuple(sorted(found, key=lambda each: papers.index(each.name.split("/")[0])))


def artifact(name: str) -> Artifact:
    """The table or figure of a name.

    Args:
      name: Such as `fedalign/table1`, or `fedmlb/figure6`.

    Returns:
      It.

    Raises:
      UnknownArtifactError: If there is none.
    """
    known = {each.name: each for each in artifacts()}
    if name not in known:
        near = difflib.get_close_matches(name.lower(), known, n=3, cutoff=0.5)
        hint = f" (did you mean {', '.join(near)}?)" if near else ""
        raise UnknownArtifactError(f"There is no table or figure {name!r}{hint}.")
    return known[name]


class Work(NamedTuple):
    """How much training something is.

    Attributes:
      core_hours: Hours of a core of the machine that `bin/bench recipes` measured on.
      multiply_adds: Of all its local steps, forward and back.
    """

    core_hours: float
    multiply_adds: float

    @property
    def gpu_hours(self) -> float:
        """Hours of an RTX 2080 Ti with the FedAlign authors' code, by their Table 5.

        There a round of FedAvg takes 137.2 s on four.
        """
        fedavg = _work()["fedalign/table1/fedavg"].multiply_adds / 25  # Rounds.
        return self.multiply_adds / fedavg * 4 * 137.2 / 3600


def runs(of: Artifact) -> list[tuple[str, Mapping[str, Any]]]:
    """The runs of a table or figure with one seed: recipes, and what they change."""
    found = {
        (canonical(recipe), tuple(cell.settings.items())): cell.settings
        for cell in of.cells
        for recipe in cell.recipes
    }
    return [(name, settings) for (name, _), settings in found.items()]


def work(of: Artifact) -> Optional[Work]:
    """What training the runs of a table or figure takes with one seed.

    Returns:
      The sum over its runs; None where one was not measured.
    """
    hours = multiply_adds = 0.0
    for name, settings in runs(of):
        if name not in _work():
            return None
        share = 1.0
        for each in ("total_rounds", "local_epochs"):
            whole = recipes.recipe(name).settings[each]
            share *= settings.get(each, whole) / whole
        hours += share * _work()[name].core_hours
        multiply_adds += share * _work()[name].multiply_adds
    return Work(hours, multiply_adds)


@functools.cache
def _work() -> Mapping[str, Work]:
    text = pathlib.Path(__file__).with_name("work.csv").read_text("utf-8")
    return {
        row["recipe"]: Work(
            float(row["core_hours"]),
            float(row["examples_m"]) * float(row["step_mflops"]) * 1e12,
        )
        for row in csv.DictReader(text.splitlines())
    }


def canonical(name: str) -> str:
    """The first recipe that is the same run: papers print some in several tables."""
    return _canonical()[name]


@functools.cache
def _canonical() -> Mapping[str, str]:
    first: dict[Any, str] = {}
    return {
        recipe.name: first.setdefault(
            tuple(sorted(identity(recipe.settings).items())),
            recipe.name,
        )
        for recipe in recipes.recipes()
    }


def _tables() -> list[Artifact]:
    found: dict[str, list[recipes.Recipe]] = {}
    for recipe in recipes.recipes():
        name = f"{recipe.table.paper.name}/table{recipe.table.number}"
        found.setdefault(name, []).append(recipe)
    result = []
    for name, those in found.items():
        if name == "fedmlb/table6":
            cells = _by_number_of_paths(those)
        else:
            cells = [_cell(recipe, _quantities(recipe)) for recipe in those]
        # Tables of two parts: (a) and (b).
        title = re.sub(
            r", \(a\) (.*), 100 clients.*",
            r", \1, 100 and 500 clients",
            those[0].table.title,
        )
        result.append(Artifact(name, title, tuple(cells), **_MORE.get(name, {})))
    return result


def _cell(
    recipe: recipes.Recipe,
    quantities: Sequence[str],
    *,
    row: Optional[str] = None,
    column: Optional[str] = None,
) -> Cell:
    """A recipe's cell, of its table or of a figure."""
    expanded = _expanded(quantities, recipe)
    printed = _printed(recipe)
    return Cell(
        row=row or recipe.row,
        column=column or _column(recipe),
        recipes=(recipe.name,),
        quantities=expanded,
        published=tuple(printed.get(quantity) for quantity in expanded),
    )


def _column(recipe: recipes.Recipe) -> str:
    """A recipe's column, of a table of two parts with the part's name."""
    return ", ".join(part for part in (recipe.table.part, recipe.column) if part)


def _quantities(recipe: recipes.Recipe) -> Sequence[str]:
    """What a recipe's cell shows in its table."""
    found = _QUANTITIES[f"{recipe.table.paper.name}/table{recipe.table.number}"]
    return found[recipe.column] if isinstance(found, Mapping) else found


def _printed(recipe: recipes.Recipe) -> dict[str, str]:
    """What the paper prints of a recipe, by quantity."""
    names = _expanded(_quantities(recipe), recipe)
    numbers = [each for each in re.split(r",\s*|\s*\(|\)", recipe.published) if each]
    assert len(names) == len(numbers), (recipe.name, names, numbers)
    return dict(zip(names, numbers))


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


def _by_number_of_paths(those: Sequence[recipes.Recipe]) -> list[Cell]:
    """FedMLB's Table 6: a row is the mean over all choices of so many paths."""
    groups: dict[int, list[recipes.Recipe]] = {}
    for recipe in those:
        groups.setdefault(len(recipe.settings["fedmlb_paths"]), []).append(recipe)
    return [
        Cell(
            row=f"{size} paths" if size > 1 else "1 path",
            column=group[0].column,
            recipes=tuple(recipe.name for recipe in group),
            quantities=("ema",),
            published=(group[0].published,),
        )
        for size, group in sorted(groups.items())
    ]


# FedDyn's CNN on CIFAR-100: outputs and inputs of its convolutions, the sides of their
# kernels and outputs; outputs and inputs of its dense layers.
_CONVOLUTIONS = ((64, 3, 5, 28), (64, 64, 5, 10))
_DENSE = ((384, 1600), (192, 384), (100, 192))


def _man_table3() -> Artifact:
    """The paper has formulae: here they are for one example on its CIFAR network."""
    convolutions = sum(c * i * k**2 * s**2 for c, i, k, s in _CONVOLUTIONS)
    layers = convolutions + sum(o * i for o, i in _DENSE)
    # Of all activations after a non-linearity: not of the logits.
    activations = sum(c * s**2 for c, _, _, s in _CONVOLUTIONS) + sum(
        outputs for outputs, _ in _DENSE[:-1]
    )
    recipe = ("man/table1/fedavg+man",)
    # What a step costs does not depend on how many there are.
    once = {"total_rounds": 1, "local_epochs": 1}
    column = "FedDyn's CNN, CIFAR-100"
    return Artifact(
        "man/table3",
        "Computation without the regulariser, and of the regulariser alone",
        tuple(
            Cell(row, column, recipe, (quantity,), (f"{count / 1e6:.4g}",), once)
            for row, quantity, count in (
                ("without the regulariser", "mflops", layers),
                ("only the regulariser", "rest_mflops", activations),
            )
        ),
        notes=(
            "The paper prints formulae: C_o H_o W_o C_i K^2 and d_i d_o of a layer, and"
            " H_o W_o C_o and d_o of its regulariser, for an example. Published is what"
            " they come to for the layers of this network; here is counted in the graph"
            " that runs.",
        ),
    )


# Figures ------------------------------------------------------------------------------


_AFTER = ("ema@500", "ema@1000")
# The figures write FedAvg+ for FedAvg + FedMLB.
_FEDAVG_FEDMLB = {"FedMLB": "FedAvg + FedMLB"}


def _of_table(name: str, rows: Sequence[str] = ()) -> list[recipes.Recipe]:
    """The recipes of a table, or of some of its rows."""
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
    """Cells of columns of a table, panels by the columns' names there."""
    return tuple(
        _cell(recipe, quantities, row=names.get(recipe.row), column=title)
        for name, title in columns.items()
        for recipe in _of_table(table, rows)
        if _column(recipe) == name
    )


# What most figures are.
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
            "Our text of the paper has lost which of its splits the figure is of; here"
            " all three.",
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


def _figures() -> list[Artifact]:
    methods = ("FedAvg", "FedLS-NTD", "FedGKD", "FedMLB")
    steps = [
        ("K = 50" if recipe.column == "100 clients" else recipe.column, recipe)
        for table in ("fedmlb/table2", "fedmlb/table3")
        for recipe in _of_table(table, methods)
        if recipe.column != "500 clients"
    ]
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
        _figure(
            "fedmlb/figure2",
            "FedMLB on four server-side baselines, CIFAR-100, Dir(0.3), 100 clients",
            _curves(
                "fedmlb/table1",
                _AFTER,
                {"CIFAR-100": "CIFAR-100"},
                names=_FEDAVG_FEDMLB,
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
                _cell(recipe, ("ema@1000", "seconds"), column=column)
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
        _figure(
            "univarfl/figure1",
            "Singular values of the classifier's weights, CIFAR-100",
            (*singular, Cell(*reference)),
            picture="singular_values",
            notes=(
                "The IID reference is FedAvg with the same number of clients, whose"
                " examples are dealt at random; the paper prints no accuracy of it.",
            ),
        ),
    ]
