"""The papers' tables and figures of results, by their numbers.

>>> from tff_reg.tasks.recipes import artifacts
>>> [each.name for each in artifacts.artifacts()][:2]
['fedalign/table1', 'fedalign/table2']
>>> artifacts.artifact("fedmlb/figure3").title
'FedMLB and other local objectives, CIFAR-100, Dir(0.3), 100 clients'

Figures without results (FedAlign's Fig. 2, FedMLB's Fig. 1) are left out.
"""

from __future__ import annotations

import difflib
import functools
import re
from collections.abc import Mapping, Sequence
from typing import Any

from tff_reg.experiment.config import identity
from tff_reg.experiment.series.reproduction import Artifact, Cell
from tff_reg.tasks import recipes
from tff_reg.tasks.recipes import figures, paper_tables

_BEST = (
    "Accuracy, lambda_max and H_T are those of the best round's model, which the"
    " authors' code keeps. H_N and H_D compare the clients' models after one more"
    " round, each model with itself included, as in their code.",
)
# Tables whose numbers do not come from the server's final weights.
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
    """Raised for an unknown name of a table or figure; lists similar names."""


def artifacts(where: str = "") -> tuple[Artifact, ...]:
    """Returns all tables and figures, paper by paper, tables before figures.

    `where` is as in `recipes.recipes`.
    """
    return tuple(_tables(where)) if recipes.file_of(where) else _of_papers()


@functools.cache
def _of_papers() -> tuple[Artifact, ...]:
    found = [*_tables(), _man_table3(), *figures.figures()]
    papers = list(dict.fromkeys(table.paper.name for table in paper_tables.tables()))
    return tuple(sorted(found, key=lambda each: papers.index(each.name.split("/")[0])))


def artifact(name: str) -> Artifact:
    """Returns the table or figure of a name.

    Args:
      name: Such as `fedalign/table1`, `fedmlb/figure6`, or `paper.toml/table1` of a
        paper's file.

    Returns:
      The table or figure.

    Raises:
      UnknownArtifactError: If there is no table or figure of that name.
      ValueError: If the name's file is no paper.
    """
    known = {each.name: each for each in artifacts(name)}
    if name not in known:
        near = difflib.get_close_matches(name.lower(), known, n=3, cutoff=0.5)
        hint = f" (did you mean {', '.join(near)}?)" if near else ""
        raise UnknownArtifactError(f"There is no table or figure {name!r}{hint}.")
    return known[name]


def runs(of: Artifact) -> list[tuple[str, Mapping[str, Any]]]:
    """Returns the runs of one seed: pairs of a recipe and its changed settings."""
    found = {
        (canonical(recipe), tuple(cell.settings.items())): cell.settings
        for cell in of.cells
        for recipe in cell.recipes
    }
    return [(name, settings) for (name, _), settings in found.items()]


def canonical(name: str) -> str:
    """Returns the first recipe of the same run: some runs are in several tables."""
    if recipes.file_of(name):
        return _canonical(recipes.recipes(name))[name]
    return _canonical_of_papers()[name]


@functools.cache
def _canonical_of_papers() -> Mapping[str, str]:
    return _canonical(recipes.recipes())


def _canonical(those: Sequence[recipes.Recipe]) -> Mapping[str, str]:
    first: dict[str, str] = {}
    return {
        recipe.name: first.setdefault(identity.key(recipe.settings), recipe.name)
        for recipe in those
    }


def _tables(where: str = "") -> list[Artifact]:
    found: dict[str, list[recipes.Recipe]] = {}
    for recipe in recipes.recipes(where):
        name = f"{recipe.table.paper.name}/table{recipe.table.number}"
        found.setdefault(name, []).append(recipe)
    result = []
    for name, those in found.items():
        if name == "fedmlb/table6":
            cells = _by_number_of_paths(those)
        else:
            cells = list(map(figures.cell_of, those))
        # Tables of two parts: (a) and (b).
        title = re.sub(
            r", \(a\) (.*), 100 clients.*",
            r", \1, 100 and 500 clients",
            those[0].table.title,
        )
        result.append(Artifact(name, title, tuple(cells), **_MORE.get(name, {})))
    return result


def _by_number_of_paths(those: Sequence[recipes.Recipe]) -> list[Cell]:
    """FedMLB's Table 6: a row is the mean over all choices of its number of paths."""
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
    """Evaluates the paper's formulae for one example on its CIFAR network."""
    convolutions = sum(c * i * k**2 * s**2 for c, i, k, s in _CONVOLUTIONS)
    layers = convolutions + sum(o * i for o, i in _DENSE)
    # The number of all activations after a non-linearity, so without the logits.
    activations = sum(c * s**2 for c, _, _, s in _CONVOLUTIONS) + sum(
        outputs for outputs, _ in _DENSE[:-1]
    )
    recipe = ("man/table1/fedavg+man",)
    # The cost of a step does not depend on the number of steps.
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
            " H_o W_o C_o and d_o of its regulariser, for an example. The published"
            " numbers are these formulae for the layers of this network; ours are"
            " counted in the graph that runs.",
        ),
    )
