"""A table or figure of a paper: the runs that make it up, and what it shows of them.

Which tables and figures there are says `tff_reg.tasks.recipes.artifacts`. TensorFlow is
not loaded here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Optional

from tff_reg.experiment.report import finished_runs

# Names of quantities: what a table's head calls them. `ema@R` is the moving average
# after R rounds, `rounds@T` the rounds to the accuracy T, a share.
_AT = {"ema": "EMA after {} rounds (%)", "rounds": "rounds to {} %"}
SHARES = {
    "accuracy": ("accuracy (%)", "final_accuracy"),
    "best": ("best (%)", "best_accuracy"),
    "ema": ("EMA (%)", "ema_accuracy"),
    "all_clients": ("all clients (%)", "all_clients_accuracy"),
}
SECONDS = "seconds"
_HEADS = {
    **{name: head for name, (head, _) in SHARES.items()},
    **finished_runs.HESSIAN_COLUMNS,
    **{name: head for name, (head, _) in finished_runs.COST_COLUMNS.items()},
    "gflops": "GFLOPs",
    SECONDS: "s a round",
}


@dataclasses.dataclass(frozen=True)
class Cell:
    """A cell of a table, or a curve of a figure.

    Attributes:
      row: The row's name, as the paper prints it; of a figure, the curve's.
      column: The column's; of a figure, the panel's.
      recipes: The recipes that it is of; the mean over several.
      quantities: What it shows.
      published: What the paper prints of each; None where it prints nothing.
      settings: What the runs have beside the recipe.
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
      name: Such as `fedmlb/table2` or `man/figure4`.
      title: What it is about.
      cells: Its cells, row by row or column by column.
      weights: Of which of a run's weights the flatness is: those whose accuracy is
        reported.
      hessian: Settings of `bin/analyze hessian`, where not its defaults.
      picture: How the figure is drawn: curves, compute_time, landscape, eigenvalues or
        singular_values; empty for a table.
      curve: What the curves are of: a name of `SHARES`.
      notes: What is to be known, whole sentences.
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


def split(quantity: str) -> tuple[str, Optional[str]]:
    """A quantity's kind and what stands behind its @, if anything does."""
    kind, is_at, at = quantity.partition("@")
    return kind, at if is_at else None


def head(quantity: str) -> str:
    """What a table calls a quantity.

    Raises:
      KeyError: If there is no such quantity.
    """
    kind, at = split(quantity)
    if at is None:
        return _HEADS[quantity]
    return _AT[kind].format(at if kind == "ema" else f"{100 * float(at):g}")


def analysed(quantity: str) -> Optional[str]:
    """The column of a run's analyses that a quantity is of, if it is of one."""
    column = "mflops" if quantity == "gflops" else quantity
    known = {*finished_runs.HESSIAN_COLUMNS, *finished_runs.COST_COLUMNS}
    return column if column in known else None
