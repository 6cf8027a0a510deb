"""A paper's table or figure: its cells, their runs, and both their numbers.

    table.csv    one row per number: row, column, quantity, published, here, mean, ...
    table.md     the table as the paper has it, published and here side by side
    report.html  both, the curves and where the numbers come from

`tff_reg.tasks.recipes.artifacts` lists the tables and figures, `tff_reg.analysis.
figures` draws the pictures of figures. TensorFlow is not loaded here.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import os
import textwrap
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, Optional

from tff_reg import lazy, scores, tables
from tff_reg.experiment.config import resolution, scale as scale_lib
from tff_reg.experiment.config.run_config import RunConfig
from tff_reg.experiment.report import (
    comparison,
    finished_runs,
    page,
    protocol,
    quantities,
)
from tff_reg.experiment.report.table import Layout
from tff_reg.experiment.series import plan as series
from tff_reg.settings import near_names

_FILES = ("table.md", "table.csv", page.FILE)
_WIDTH = 88
_NONE = "-"

# What papers print otherwise than tables of comparisons do.
_OTHERS: Mapping[str, Mapping[str, Any]] = {
    "ema@": {"head": "EMA after {} rounds (%)"},
    "accuracy": {"name": "score"},
    "gflops": {
        "name": "mflops",
        "head": "GFLOPs",
        "read": lambda run: run.cost("forward_mflops") / 1000,
    },
}
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

    def row(self) -> dict[str, Any]:
        """Returns the row of `table.csv`."""
        own = {"row": self.cell.row, "column": self.cell.column, **vars(self)}
        own["round"] = own.pop("round_num")
        own["recipes"] = " ".join(own.pop("cell").recipes)
        return own


def split(name: str) -> tuple[str, Optional[float]]:
    """Splits the name of a quantity after its @, into the number there; None of none.

    `ema@R` is the moving average after R rounds, `rounds@T` the number of rounds to the
    accuracy T (0 to 1).
    """
    kind, is_at, at = name.partition("@")
    if not is_at:
        return kind, None
    return f"{kind}@", float(at) if kind == "rounds" else int(at)


def quantity_of(name: str, share: float = 1.0) -> quantities.Quantity:
    """Returns the quantity of a name, of runs of a share of the paper's rounds."""
    kind, at = split(name)
    others: Any = {"name": kind, **_OTHERS.get(kind, {})}
    score = scores.Score()  # Papers print accuracies.
    table = quantities.judged(score)
    if others["name"] not in table:
        known = {**table, **_OTHERS}
        near = near_names(name, [*known])
        raise ValueError(
            f"There is no quantity {name!r}{near}; choose from {', '.join(known)}."
        )
    found = dataclasses.replace(table[others["name"]], **others)
    if at is None:
        return found
    if kind == "ema@":
        return found.at(max(1, round(at * share)))
    return found.at(at, score.scale)


def planned(
    artifact: Artifact,
    common: RunConfig,
    *,
    seeds: Sequence[int] = (0,),
    runs_dir: str,
    kind: Optional[Callable[..., Paper]] = None,
) -> series.Study:
    """Plans the runs of a table or figure, whose sheet is of a kind of `Paper`."""
    seeds = tuple(dict.fromkeys(seeds))
    sheet = (kind or Paper)(artifact, common, len(seeds))
    study = series.Study(sheet, shares=True)
    for cell in artifact.cells:
        for recipe, seed in itertools.product(cell.recipes, seeds):
            asked, where = _request(cell, recipe, common)
            asked |= {"seed": seed}
            asked["output_dir"] = os.path.join(runs_dir, f"{where}-seed{seed}")
            run = RunConfig.of(asked), lazy.tasks, f"{where}, seed {seed}"
            study.add(cell.row, cell.column, *run)
    processes = {run.config.process for run in study.runs}
    resolution.check_owned(common.hyperparameters, sorted(processes))
    return study


def _request(cell: Cell, recipe: str, common: RunConfig) -> tuple[dict[str, Any], str]:
    """Returns the settings of a cell's runs, and the name of their directories."""
    sets = lazy.tasks.recipes.settings(recipe)
    given = dict(cell.settings)
    if common.scale == scale_lib.TINY:
        if "model" in sets:
            given["model"] = _TINY_NETWORKS.get(sets["model"], sets["model"])
        task = sets.get("task")
        if task and "image_size" in lazy.tasks.defaults(task).options:
            given["image_size"] = _TINY_IMAGE
    others = common.hyperparameters.keys() - resolution.owned(
        common.hyperparameters, sets["process"]
    )
    given = {n: v for n, v in {**given, **common.given()}.items() if n not in others}
    variant = "-".join(
        value if isinstance(value, str) else f"{key}{value}"
        for key, value in cell.settings.items()
    )
    recipes = lazy.tasks.recipes
    name = recipes.place_of(recipes.artifacts.canonical(recipe))
    return {**given, "recipe": recipe}, f"{name}-{variant}" if variant else name


class Paper(series.Sheet):
    """A paper's table or figure, published and here side by side.

    Attributes:
      artifact: The table or figure.
      is_tiny: Whether small networks stand for deep ones.
    """

    def __init__(self, artifact: Artifact, common: RunConfig, num_seeds: int):
        """Stores what is to be shown of runs with the `common` settings."""
        self.artifact, self.weights = artifact, artifact.weights
        self.is_tiny = common.scale == scale_lib.TINY
        self._common, self._num_seeds = common, num_seeds
        self.hessian = dict(artifact.hessian)
        if self.is_tiny:
            self.hessian = {n: min(v, _TINY_MOST[n]) for n, v in self.hessian.items()}
            self.hessian.update(_TINY_HESSIAN)

    def protocol(self, study: series.Study, **recorded: Any) -> list[str]:
        texts = self._protocols(study)
        wrapped = [textwrap.wrap(t, _WIDTH, break_on_hyphens=False) for t in texts]
        return [line for lines in wrapped for line in [*lines, ""]]

    def _protocols(self, study: series.Study) -> list[str]:
        """Returns each column's common settings and the differences of its rows."""
        columns: dict[str, dict[str, Any]] = {}
        for row, column, run in study.trials:
            columns.setdefault(column, {}).setdefault(row, [run.config.dump()])
        texts: dict[str, list[str]] = {}
        for column, rows in columns.items():
            texts.setdefault(protocol.of(rows).in_short(), []).append(column)
        return [f"{', '.join(names)}: {text}" for text, names in texts.items()]

    def quantities_of(self, row: str, column: str) -> Sequence[str]:
        asked = ["lambda_max"] if self.artifact.picture == "eigenvalues" else []
        for cell in self.artifact.cells:
            if (cell.row, cell.column) == (row, column):
                asked += [quantity_of(name).name for name in cell.quantities]
        return quantities.measured(asked, *quantities.ANALYSES)

    def contents(
        self,
        study: series.Study,
        columns: Collection[str],
        is_last: bool,
        **of_files: str,
    ) -> list[series.Written]:
        """Returns the parts at the end, when the analyses are there."""
        make = functools.partial(self._contents, study, **of_files)
        return [("", _FILES, make)] if is_last else []

    def numbers(self, study: series.Study) -> list[Number]:
        """Computes the numbers of the table, cell by cell."""
        left = (run for _, _, run in study.trials)
        count = self._num_seeds
        return [
            number
            for cell in self.artifact.cells
            for runs in [[*itertools.islice(left, count * len(cell.recipes))]]
            for number in self._numbers(cell, runs)
        ]

    def _numbers(
        self, cell: Cell, runs: Sequence[series.PlannedRun]
    ) -> Iterator[Number]:
        sets = lazy.tasks.recipes.settings(cell.recipes[0])
        rounds = runs[0].config.total_rounds
        share = rounds / sets.get("total_rounds", rounds)
        found = {name: quantity_of(name, share) for name in cell.quantities}
        layout = Layout(
            weights=self.weights,
            score_at_rounds=[q.place for q in found.values() if q.name == "ema@"],
            targets=[q.place for q in found.values() if q.name == "rounds@"],
        )
        count = self._num_seeds
        read = [  # Seed by seed, recipe by recipe.
            [layout.read(r.directory) for r in runs[n : n + count] if r.is_finished]
            for n in range(0, len(runs), count)
        ]
        for named, published in zip(found.items(), cell.published):
            yield _number(cell, named, published, read)

    def _contents(self, study: series.Study, command: str = "") -> dict[str, Any]:
        """Makes `table.md`, `table.csv` and `report.html`."""
        runs = {
            column: {
                row: [finished_runs.read(run.directory) for run in own]
                for row, own in rows.items()
            }
            for column, rows in study.groups().items()
        }
        numbers = self.numbers(study)
        notes = [*self._notes(study, numbers), *_of_runs(runs)]
        name = lazy.tasks.recipes.place_of(self.artifact.name)
        title = f"{name.replace('/', ', ')}: {self.artifact.title}"
        lines, parts = [f"# {title}", ""], []
        for name, block in _blocks(self.artifact, numbers):
            lines += [f"## {name}", "", *tables.to_markdown(block), ""]
            parts += [page.heading(name), page.table(block, [])]
        for note in notes:
            lines += textwrap.wrap(
                note, _WIDTH, initial_indent="- ", subsequent_indent="  "
            )
        parts.append(page.paragraph("\n\n".join(notes)))
        for column, own in runs.items():
            curves = page.curves_of(comparison.by_round(own), scores.Score())
            parts += [page.heading(column), curves]
        groups = _by_name(runs)
        texts = (
            "\n".join([*lines, ""]),
            tables.to_csv([number.row() for number in numbers]),
            page.page(title, [*parts, page.clients_of(groups)], groups, command),
        )
        return dict(zip(_FILES, texts))

    def _notes(self, study: series.Study, numbers: Sequence[Number]) -> list[str]:
        seeds = sorted({number.seeds for number in numbers})
        said = " to ".join(map(str, dict.fromkeys((seeds[0], seeds[-1]))))
        plural = "" if seeds == [1] else "s"
        notes = [
            f"Here: {said} seed{plural}, mean ± sample deviation (n - 1) where there"
            " are several."
        ]
        if any(number.quantity.startswith("ema") for number in numbers):
            notes.append(
                "EMA: exponential moving average with momentum 0.9 over the evaluated"
                " rounds."
            )
        scale = self._common.scale
        if scale is not None:
            notes.append(f"Runs at scale {scale}: fewer rounds, clients and examples.")
        if self.is_tiny:
            notes.append(_TINY_NOTE)
        if self._common.synthetic_data:
            notes.append("On random images in place of the data.")
        notes += self._protocols(study)
        notes += self.artifact.notes
        for cell in self.artifact.cells:
            for recipe in map(lazy.tasks.recipes.recipe, cell.recipes):
                notes += [note for note in recipe.notes if note not in notes]
        return notes


def _of_runs(
    runs: Mapping[str, Mapping[str, Sequence[finished_runs.FinishedRun]]],
) -> Iterator[str]:
    """Yields notes on what went otherwise in runs than the table's numbers show."""
    groups = _by_name(runs)
    yield from finished_runs.troubles(groups)
    whole = [run for group in groups.values() for run in group]
    ends = [run.summary["rounds"] for run in whole if run.ends_itself]
    if ends:
        yield f"Runs that may end early ended after {quantities.span(ends)} rounds."
    yield from finished_runs.warnings(whole)


def _by_name(
    runs: Mapping[str, Mapping[str, Sequence[finished_runs.FinishedRun]]],
) -> dict[str, Sequence[finished_runs.FinishedRun]]:
    return {f"{r}, {c}": own for c, rows in runs.items() for r, own in rows.items()}


def _number(
    cell: Cell,
    named: tuple[str, quantities.Quantity],
    published: Optional[str],
    read: Sequence[Sequence[finished_runs.FinishedRun]],
) -> Number:
    """Makes a number of a cell from the runs of each recipe."""
    (name, quantity), seeds = named, min(map(len, read))
    round_num = quantity.place if quantity.name == "ema@" else None
    found = Number(cell, name, published, _NONE, None, None, seeds, round_num)
    if not seeds:
        return found
    values = [[quantity.for_people(run) for run in runs] for runs in read]
    own = [quantities.mean(each) for each in values] if len(read) > 1 else values[0]
    mean, deviation = quantities.mean(own), quantities.deviation(own)
    # As many decimals as the paper has; two if it prints nothing.
    first = (published or "0.00").split()[0]
    digits = len(first.rstrip("+").partition(".")[2])
    is_rounds, here = quantity.name == "rounds@", _NONE
    if mean is not None:
        text = f"{mean:.1f}".removesuffix(".0")
        here = text if is_rounds else _shown(mean, digits)
    elif is_rounds:
        here = f"{max(run.summary['rounds'] for runs in read for run in runs)}+"
    if deviation is not None:
        here += f" ± {_shown(deviation, digits)}"
    return dataclasses.replace(found, here=here, mean=mean, deviation=deviation)


def _shown(value: float, digits: int) -> str:
    text = f"{value:.{digits}f}"
    # A small number keeps two significant digits.
    is_small = 0 < abs(value) < 10.0 ** (1 - digits)
    return f"{value:.2g}" if is_small else text


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
