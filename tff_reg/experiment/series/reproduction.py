"""A paper's table or figure from runs: which runs, and the numbers beside the paper's.

    table.csv    a row a number: row, column, quantity, published, here, mean, ...
    table.md     the table as the paper has it, published and here side by side

The picture of a figure is `tff_reg.analysis.figures`'s.
"""

from __future__ import annotations

import dataclasses
import json
import os
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any, Optional

from tff_reg import files, lazy, tables
from tff_reg.experiment.config import scale as scale_lib
from tff_reg.experiment.config.run_config import RunConfig, identity
from tff_reg.experiment.report import comparison, finished_runs, protocol
from tff_reg.experiment.series import artifact as artifact_lib, batch, plan as series
from tff_reg.experiment.series.artifact import Artifact, Cell
from tff_reg.methods import catalogue
from tff_reg.settings import SettingError

_WIDTH = 88
_NONE = "-"
# Networks that stand for deep ones where a run is tiny: as many blocks, few layers.
_TINY_NETWORKS = {
    "resnet56": "resnet8",
    "resnet18": "resnet10",
    "resnet18_imagenet": "resnet10",
    "resnet18_feduv": "resnet10",
    "vgg9": "cnn",
    "mobilenet": "cnn",
    "shufflenet": "cnn",
    "squeezenet": "cnn",
}
_TINY_IMAGE = 32
_TINY_HESSIAN = {
    "examples": 24,
    "trace_samples": 2,
    "diagonal_samples": 2,
    "clients": 2,
}
_TINY_MOST = {"eigenvalues": 4, "density_samples": 1}
_TINY_NOTE = (
    "At scale tiny small networks stand for deep ones, and a Hessian is of 24 examples:"
    " what is here means nothing."
)


@dataclasses.dataclass(frozen=True)
class Number:
    """A number of a cell.

    Attributes:
      cell: The cell.
      quantity: What it is.
      published: What the paper prints; None for nothing.
      here: What there is here, as the paper would print it; `-` for nothing.
      mean: In the paper's units; None where a run never reached the target.
      deviation: Over seeds, or over the recipes of the cell if there are several; None
        for one.
      seeds: How many runs of each recipe there are.
    """

    cell: Cell
    quantity: str
    published: Optional[str]
    here: str
    mean: Optional[float]
    deviation: Optional[float]
    seeds: int


class Reproduction:
    """The runs of a table or figure, and what comes of them."""

    def __init__(
        self,
        artifact: Artifact,
        common: RunConfig,
        *,
        seeds: Sequence[int] = (0,),
        runs_dir: str,
        tasks: Any = lazy.tasks,
    ):
        """Plans; nothing is started or written.

        Args:
          artifact: What is reproduced.
          common: What is asked of all runs beside their recipes, strengths of those
            methods that have them.
          seeds: Every recipe runs with each.
          runs_dir: Holds the runs, in `RECIPE-seedN`.
          tasks: The module `tasks`, or what has its functions.

        Raises:
          SettingError: If a run cannot be.
          DirectoryError: If a run's directory holds something else, or another run.
        """
        self.artifact = artifact
        self.seeds = tuple(seeds)
        self.is_tiny = common.scale == scale_lib.TINY
        self.is_random = bool(common.synthetic_data)
        self.runs_dir = runs_dir
        self._common, self._tasks = common, tasks
        series.check_each_once(series.SEEDS, self.seeds)
        # The planned runs of each recipe with the settings of a cell, by seed.
        self._runs: dict[Any, list[series.PlannedRun]] = {}
        by_content: dict[Any, series.PlannedRun] = {}
        for cell in artifact.cells:
            for recipe in cell.recipes:
                planned = [self._plan(cell, recipe, seed) for seed in seeds]
                self._runs[self._key(cell, recipe)] = [
                    by_content.setdefault(_content(run), run) for run in planned
                ]
        self._check_strengths()
        self.planned = list(by_content.values())

    @staticmethod
    def _key(cell: Cell, recipe: str) -> Any:
        return recipe, tuple(sorted(cell.settings.items()))

    def _plan(self, cell: Cell, recipe: str, seed: int) -> series.PlannedRun:
        sets = self._tasks.recipes.settings(recipe)
        more = dict(cell.settings)
        if self.is_tiny:
            more.update(self._tiny_settings(sets))
        given = {**more, **self._common.given()}
        own = {each.flag for each in catalogue.strengths(sets["process"])}
        given = {
            name: value
            for name, value in given.items()
            if name in own or name not in self._common.strengths
        }
        name = self._tasks.recipes.artifacts.canonical(recipe)
        variant = "-".join(
            value if isinstance(value, str) else f"{key}{value}"
            for key, value in cell.settings.items()
        )
        where = f"{name}-{variant}" if variant else name
        return series.plan_run(
            RunConfig.of(
                {
                    **given,
                    "recipe": recipe,
                    "seed": seed,
                    "output_dir": os.path.join(self.runs_dir, f"{where}-seed{seed}"),
                }
            ),
            self._tasks,
            name=f"{where}, seed {seed}",
        )

    def _tiny_settings(self, sets: Mapping[str, Any]) -> dict[str, Any]:
        model = sets["model"]
        found: dict[str, Any] = {"model": _TINY_NETWORKS.get(model, model)}
        if "image_size" in self._tasks.defaults(sets["task"]).options:
            found["image_size"] = _TINY_IMAGE
        return found

    def _check_strengths(self) -> None:
        processes = {run.config.process for runs in self._runs.values() for run in runs}
        series.check_strengths(self._common, sorted(processes))

    def runs_of(self, cell: Cell) -> list[list[series.PlannedRun]]:
        """The runs of a cell: a list of seeds for each of its recipes."""
        return [self._runs[self._key(cell, recipe)] for recipe in cell.recipes]

    def protocols(self) -> list[str]:
        """What the runs of a column have in common, and in what its rows differ."""
        columns: dict[str, list[str]] = {}
        for column in self.artifact.columns:
            rows = {
                cell.row: [self.runs_of(cell)[0][0].config.dump()]
                for cell in self.artifact.cells
                if cell.column == column
            }
            columns.setdefault(protocol.of(rows).in_short(), []).append(column)
        return [f"{', '.join(names)}: {text}" for text, names in columns.items()]

    @property
    def hessian(self) -> dict[str, Any]:
        """Settings of `bin/analyze hessian`, where not its defaults."""
        found = dict(self.artifact.hessian)
        if self.is_tiny:
            found = {n: min(value, _TINY_MOST[n]) for n, value in found.items()}
            found.update(_TINY_HESSIAN)
        return found

    def analyses(self, finished: Sequence[series.PlannedRun]) -> list[batch.Analysis]:
        """What `bin/analyze` has to do with finished runs for the table's numbers."""
        columns: dict[str, list[str]] = {}
        for cell in self.artifact.cells:
            asked = [artifact_lib.analysed(name) for name in cell.quantities]
            for runs in self.runs_of(cell):
                for run in runs:
                    own = columns.setdefault(run.directory, [])
                    own += [name for name in asked if name and name not in own]
        return [
            analysis
            for run in finished
            for analysis in batch.analyses_for(
                run.directory,
                run.name,
                columns[run.directory],
                self.artifact.weights,
                self.hessian,
            )
        ]

    def numbers(self, finished: Sequence[series.PlannedRun]) -> list[Number]:
        """The numbers of the table, cell by cell.

        Args:
          finished: The runs that there are.

        Returns:
          As many as the paper prints.

        Raises:
          ComparisonError: If one was not analysed as a number needs it.
        """
        there = {run.directory for run in finished}
        return [
            number for cell in self.artifact.cells for number in self._of(cell, there)
        ]

    def _of(self, cell: Cell, there: set[str]) -> list[Number]:
        columns = [name for name in map(artifact_lib.analysed, cell.quantities) if name]
        read: list[list[_Values]] = []
        for runs in self.runs_of(cell):
            done = [run for run in runs if run.directory in there]
            read.append([self._read(cell, run, columns) for run in done])
        found = []
        for quantity, published in zip(cell.quantities, cell.published):
            of_recipes = [[one.of(quantity) for one in each] for each in read]
            found.append(_number(cell, quantity, published, of_recipes, read))
        return found

    def _read(
        self, cell: Cell, run: series.PlannedRun, columns: Sequence[str]
    ) -> _Values:
        sets = self._tasks.recipes.settings(cell.recipes[0])
        share = run.config.total_rounds / sets["total_rounds"]
        rounds, targets = {}, []
        for kind, at in map(artifact_lib.split, cell.quantities):
            if kind == "ema" and at is not None:
                rounds[at] = max(1, round(int(at) * share))
            elif kind == "rounds" and at is not None:
                targets.append(float(at))
        wanted = {
            "accuracy_at_rounds": list(rounds.values()),
            "target_accuracies": targets,
        }
        weights = self.artifact.weights
        found = finished_runs.read(run.directory, wanted, columns, weights)
        return _Values(found, rounds)

    def write(self, output_dir: files.PathLike, numbers: Sequence[Number]) -> None:
        """Writes `table.csv` and `table.md`.

        Args:
          output_dir: Where; made if it is not there.
          numbers: From `numbers`.

        Raises:
          SettingError: If nothing can be written there.
        """
        directory = files.make_directory(output_dir, "output_dir")
        files.delete_leftovers(directory)
        rows = [_csv_row(number) for number in numbers]
        files.write_text(directory / "table.csv", tables.to_csv(rows))
        files.write_text(directory / "table.md", self._markdown(numbers))

    def _markdown(self, numbers: Sequence[Number]) -> str:
        artifact = self.artifact
        paper, which = artifact.name.split("/")
        lines = [f"# {paper}, {which}: {artifact.title}", ""]
        quantities = {cell.quantities for cell in artifact.cells}
        if len(quantities) == 1 and len(artifact.cells[0].quantities) == 1:
            ((quantity,),) = quantities
            heads = {(column, quantity): column for column in artifact.columns}
            lines += [f"{artifact_lib.head(quantity)}", ""]
            lines += [*_block(artifact.rows, heads, numbers), ""]
        else:
            for column in artifact.columns:
                cells = [cell for cell in artifact.cells if cell.column == column]
                heads = {
                    (column, name): artifact_lib.head(name)
                    for cell in cells
                    for name in cell.quantities
                }
                rows = list(dict.fromkeys(cell.row for cell in cells))
                if len(artifact.columns) > 1:
                    lines += [f"## {column}", ""]
                lines += [*_block(rows, heads, numbers), ""]
        for note in self._notes(numbers):
            lines += [
                *textwrap.wrap(
                    note, _WIDTH, initial_indent="- ", subsequent_indent="  "
                )
            ]
        return "\n".join([*lines, ""])

    def _notes(self, numbers: Sequence[Number]) -> list[str]:
        seeds = sorted({number.seeds for number in numbers})
        said = " to ".join(map(str, dict.fromkeys((seeds[0], seeds[-1]))))
        plural = "" if seeds == [1] else "s"
        notes = [
            f"Here: {said} seed{plural}, mean ± sample deviation (n - 1) where there"
            " are several."
        ]
        kinds = {artifact_lib.split(number.quantity)[0] for number in numbers}
        if "ema" in kinds:
            notes.append(
                "EMA: exponential moving average with momentum 0.9 over the evaluated"
                " rounds."
            )
        configs = [run.config for run in self.planned]
        scale = configs[0].scale
        if scale is not None:
            notes.append(
                f"Runs at scale {scale}: rounds, and the rounds of columns, are so"
                " many fewer."
            )
        if self.is_tiny:
            notes.append(_TINY_NOTE)
        if self.is_random:
            notes.append("On random images in place of the data.")
        notes += self.protocols()
        notes += self.artifact.notes
        for cell in self.artifact.cells:
            for recipe in map(self._tasks.recipes.recipe, cell.recipes):
                notes += [note for note in recipe.notes if note not in notes]
        return notes


class _Values:
    """What a run has to say."""

    def __init__(self, run: finished_runs.Run, rounds: Mapping[str, int]):
        self.run = run
        self._rounds = rounds

    def of(self, quantity: str) -> Optional[float]:
        """A quantity in the paper's units; None if there is none."""
        summary = self.run.summary
        kind, at = artifact_lib.split(quantity)
        if kind == "rounds" and at is not None:
            return summary["rounds_to_target"][str(float(at))]
        if at is not None:
            found = summary["accuracy_at_rounds"][str(self._rounds[at])]
            return _percent(found["ema_accuracy"])
        if quantity in artifact_lib.SHARES:
            return _percent(summary[artifact_lib.SHARES[quantity][1]])
        if quantity == artifact_lib.SECONDS:
            return summary["median_round_seconds"]
        if quantity == "gflops":
            return self.run.analyses["mflops"] / 1000
        return self.run.analyses[quantity]


def _percent(share: Optional[float]) -> Optional[float]:
    return None if share is None else 100 * share


def _content(run: series.PlannedRun) -> str:
    """What a run does, whatever it is called."""
    return json.dumps(identity(run.config.dump()), sort_keys=True)


def _number(
    cell: Cell,
    quantity: str,
    published: Optional[str],
    of_recipes: Sequence[Sequence[Optional[float]]],
    read: Sequence[Sequence[_Values]],
) -> Number:
    seeds = min(map(len, of_recipes))
    if not seeds:
        return Number(cell, quantity, published, _NONE, None, None, 0)
    means = [comparison.mean(values) for values in of_recipes]
    spread = means if len(means) > 1 else of_recipes[0]
    mean, deviation = comparison.mean(means), comparison.deviation(spread)
    digits = _digits(published)
    if mean is not None and quantity.startswith("rounds@"):
        here = f"{mean:.1f}".removesuffix(".0")
    elif mean is not None:
        here = _shown(mean, digits)
    elif quantity.startswith("rounds@"):
        here = f"{max(one.run.summary['rounds'] for each in read for one in each)}+"
    else:
        here = _NONE
    if deviation is not None:
        here += f" ± {_shown(deviation, digits)}"
    return Number(cell, quantity, published, here, mean, deviation, seeds)


def _digits(published: Optional[str]) -> int:
    """As many decimals as the paper prints; two where it prints nothing."""
    if published is None:
        return 2
    return len(published.split()[0].rstrip("+").partition(".")[2])


def _shown(value: float, digits: int) -> str:
    text = f"{value:.{digits}f}"
    # A small number keeps two digits that say something.
    is_small = 0 < abs(value) < 10.0 ** (1 - digits)
    return f"{value:.2g}" if is_small else text


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
        "recipes": " ".join(number.cell.recipes),
    }


def _block(
    rows: Sequence[str],
    heads: Mapping[tuple[str, str], str],
    numbers: Sequence[Number],
) -> list[str]:
    """A table: a row a method, for each head what is published and what is here."""
    found = {(each.cell.row, each.cell.column, each.quantity): each for each in numbers}
    columns: list[tuple[str, list[str]]] = [("", ["", *rows])]
    for (column, quantity), text in heads.items():
        own = [found.get((row, column, quantity)) for row in rows]
        published = [(each and each.published) or _NONE for each in own]
        here = [each.here if each else _NONE for each in own]
        columns += [(text, ["published", *published]), ("", ["here", *here])]
    return tables.to_markdown(columns)


def check_runs_dir(common: RunConfig, runs_dir: str) -> None:
    """Refuses a directory that cannot hold the runs.

    Raises:
      SettingError: If no runs can be asked for so.
      DirectoryError: If it is a file, or the directory of a run.
    """
    if common.recipe is not None or common.process is not None:
        name = "recipe" if common.recipe is not None else "process"
        reason = "leave it out: the table says what runs."
        raise SettingError(name, getattr(common, name), reason)
    series.check_directory(runs_dir)
