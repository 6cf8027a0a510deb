"""The runs of a paper's table or figure, and their numbers beside the paper's.

`tff_reg.analysis.figures` draws the pictures of figures.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tff_reg import files, lazy
from tff_reg.experiment.config import resolution, scale as scale_lib
from tff_reg.experiment.config.run_config import RunConfig
from tff_reg.experiment.report import finished_runs, protocol, quantities
from tff_reg.experiment.series import artifact as artifact_lib, batch, plan as series
from tff_reg.experiment.series.artifact import Artifact, Cell, Number

# Replacements of deep networks in tiny runs: as many blocks, fewer layers.
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


class Reproduction:
    """The runs of a table or figure, and their results."""

    def __init__(
        self,
        artifact: Artifact,
        common: RunConfig,
        *,
        seeds: Sequence[int] = (0,),
        runs_dir: str,
    ):
        """Plans; nothing is started or written."""
        self.artifact = artifact
        self.seeds = seeds = tuple(dict.fromkeys(seeds))
        self.is_tiny = common.scale == scale_lib.TINY
        self.is_random = bool(common.synthetic_data)
        self.runs_dir = runs_dir
        self._common = common
        # The planned runs of each recipe with the settings of a cell, by seed.
        self._runs: dict[Any, list[series.PlannedRun]] = {}
        self._study = series.Study(shares=True)
        for cell in artifact.cells:
            for recipe in cell.recipes:
                planned = [self._plan(cell, recipe, seed) for seed in seeds]
                self._runs[self._key(cell, recipe)] = planned
        self.planned = self._study.runs
        processes = {run.config.process for run in self.planned}
        resolution.check_owned(common.strengths, sorted(processes))

    @staticmethod
    def _key(cell: Cell, recipe: str) -> Any:
        return recipe, tuple(sorted(cell.settings.items()))

    def _plan(self, cell: Cell, recipe: str, seed: int) -> series.PlannedRun:
        sets = lazy.tasks.recipes.settings(recipe)
        more = dict(cell.settings)
        if self.is_tiny:
            more.update(self._tiny_settings(sets))
        given = {**more, **self._common.given()}
        own = resolution.owned(self._common.strengths, sets["process"])
        given = {
            name: value
            for name, value in given.items()
            if name in own or name not in self._common.strengths
        }
        name = lazy.tasks.recipes.artifacts.canonical(recipe)
        variant = "-".join(
            value if isinstance(value, str) else f"{key}{value}"
            for key, value in cell.settings.items()
        )
        where = f"{name}-{variant}" if variant else name
        given |= {"recipe": recipe, "seed": seed}
        given["output_dir"] = os.path.join(self.runs_dir, f"{where}-seed{seed}")
        asked, name = RunConfig.of(given), f"{where}, seed {seed}"
        return self._study.add(cell.row, cell.column, asked, lazy.tasks, name)

    def _tiny_settings(self, sets: Mapping[str, Any]) -> dict[str, Any]:
        model = sets["model"]
        found: dict[str, Any] = {"model": _TINY_NETWORKS.get(model, model)}
        if "image_size" in lazy.tasks.defaults(sets["task"]).options:
            found["image_size"] = _TINY_IMAGE
        return found

    def runs_of(self, cell: Cell) -> list[list[series.PlannedRun]]:
        """Returns the runs of a cell: one list of seeds per recipe."""
        return [self._runs[self._key(cell, recipe)] for recipe in cell.recipes]

    def groups(
        self, finished: Sequence[series.PlannedRun]
    ) -> dict[tuple[str, str], list[str]]:
        """Returns the directories of finished runs by column and row."""
        return {
            (column, row): [run.directory for run in runs]
            for column in self.artifact.columns
            for row, runs in self._study.groups(finished, column).items()
        }

    def protocols(self) -> list[str]:
        """Returns each column's common settings and the differences of its rows."""
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
        """Settings of `bin/analyze hessian` that differ from the defaults."""
        found = dict(self.artifact.hessian)
        if self.is_tiny:
            found = {n: min(value, _TINY_MOST[n]) for n, value in found.items()}
            found.update(_TINY_HESSIAN)
        return found

    def analyses(
        self, finished: Sequence[series.PlannedRun], defaults: Mapping[str, Any] = {}
    ) -> list[batch.Analysis]:
        """Returns the analyses that the table's numbers need.

        `defaults` are those of `bin/analyze hessian`.
        """
        columns: dict[str, list[str]] = {}
        for cell in self.artifact.cells:
            asked = [artifact_lib.quantity_of(name).name for name in cell.quantities]
            asked = quantities.needing(asked, *quantities.ANALYSES)
            for runs in self.runs_of(cell):
                for run in runs:
                    own = columns.setdefault(run.directory, [])
                    own += [name for name in asked if name not in own]
        return [
            analysis
            for run in finished
            for analysis in batch.analyses_for(
                run.directory,
                run.name,
                columns[run.directory],
                self.artifact.weights,
                self.hessian,
                defaults,
            )
        ]

    def numbers(self, finished: Sequence[series.PlannedRun]) -> list[Number]:
        """Computes the numbers of the table, cell by cell."""
        there = {run.directory for run in finished}
        return [
            number for cell in self.artifact.cells for number in self._of(cell, there)
        ]

    def _of(self, cell: Cell, there: set[str]) -> list[Number]:
        rounds = self._rounds(cell)
        read = [
            [self._read(cell, run, rounds) for run in runs if run.directory in there]
            for runs in self.runs_of(cell)
        ]
        lengths = (run.summary["rounds"] for runs in read for run in runs)
        last_round = max(lengths, default=0)
        found = []
        for name, published in zip(cell.quantities, cell.published):
            quantity = artifact_lib.quantity_of(name, rounds.get(name))
            values = [[quantity.for_people(run) for run in runs] for runs in read]
            number = artifact_lib.number(cell, name, published, values, last_round)
            found.append(dataclasses.replace(number, round_num=rounds.get(name)))
        return found

    def _rounds(self, cell: Cell) -> dict[str, int]:
        """Returns the round of a cell's runs for each quantity at a paper's round."""
        sets = lazy.tasks.recipes.settings(cell.recipes[0])
        share = self.runs_of(cell)[0][0].config.total_rounds / sets["total_rounds"]
        return {
            quantity: max(1, round(at * share))
            for quantity in cell.quantities
            for kind, at in [artifact_lib.split(quantity)]
            if kind == "ema@" and at is not None
        }

    def _read(
        self, cell: Cell, run: series.PlannedRun, rounds: Mapping[str, int]
    ) -> finished_runs.Run:
        split = map(artifact_lib.split, cell.quantities)
        targets = [at for kind, at in split if kind == "rounds@"]
        wanted = {
            "accuracy_at_rounds": list(rounds.values()),
            "target_accuracies": targets,
        }
        weights = self.artifact.weights
        return finished_runs.read(run.directory, wanted, weights)

    def write(
        self,
        output_dir: files.PathLike,
        finished: Sequence[series.PlannedRun],
        command: str = "",
    ) -> None:
        """Writes `table.csv`, `table.md` and `report.html` of finished runs."""
        runs: dict[str, dict[str, list[finished_runs.Run]]] = {}
        for (column, row), paths in self.groups(finished).items():
            runs.setdefault(column, {})[row] = [*map(finished_runs.read, paths)]
        numbers = self.numbers(finished)
        notes = [*self._notes(numbers), *_of_runs(runs)]
        artifact_lib.write(self.artifact, numbers, notes, output_dir, runs, command)

    def _notes(self, numbers: Sequence[Number]) -> list[str]:
        seeds = sorted({number.seeds for number in numbers})
        said = " to ".join(map(str, dict.fromkeys((seeds[0], seeds[-1]))))
        plural = "" if seeds == [1] else "s"
        notes = [
            f"Here: {said} seed{plural}, mean ± sample deviation (n - 1) where there"
            " are several."
        ]
        kinds = {artifact_lib.split(number.quantity)[0] for number in numbers}
        if {"ema", "ema@"} & kinds:
            notes.append(
                "EMA: exponential moving average with momentum 0.9 over the evaluated"
                " rounds."
            )
        configs = [run.config for run in self.planned]
        scale = configs[0].scale
        if scale is not None:
            notes.append(f"Runs at scale {scale}: fewer rounds, clients and examples.")
        if self.is_tiny:
            notes.append(_TINY_NOTE)
        if self.is_random:
            notes.append("On random images in place of the data.")
        notes += self.protocols()
        notes += self.artifact.notes
        for cell in self.artifact.cells:
            for recipe in map(lazy.tasks.recipes.recipe, cell.recipes):
                notes += [note for note in recipe.notes if note not in notes]
        return notes


def _of_runs(
    runs: Mapping[str, Mapping[str, Sequence[finished_runs.Run]]],
) -> Iterator[str]:
    """Yields notes on what went otherwise in runs than the table's numbers show."""
    groups = {f"{r}, {c}": each for c, rows in runs.items() for r, each in rows.items()}
    yield from finished_runs.troubles(groups)
    whole = [run for group in groups.values() for run in group]
    ends = [run.summary["rounds"] for run in whole if run.ends_itself]
    if ends:
        yield f"Runs that may end early ended after {quantities.span(ends)} rounds."
    yield from finished_runs.warnings(whole)
