"""A paper's figure from finished runs: `figure.png`, and the analyses that it needs.

A panel shows all curves of one setting, as in the paper, with the paper's axes.
Landscapes and spectra are measured by `bin/analyze` first, which writes them to the
runs' directories.
"""

from __future__ import annotations

import functools
import pathlib
import statistics
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from tff_reg import curves, tables
from tff_reg.analysis import curvature, estimates, landscape, plane, spectra
from tff_reg.experiment.report import finished_runs, quantities
from tff_reg.experiment.rounds import metrics, summary as summary_lib
from tff_reg.experiment.series import plan as series, reproduction
from tff_reg.lazy import np
from tff_reg.settings import settings_of

FILES = ("figure.png", "density.png")
# For each kind of picture: the subject of `bin/analyze`, and the file that it writes.
_MEASURED = {
    "landscape": ("landscape", "landscape.csv"),
    "singular_values": ("singular_values", "singular_values.csv"),
}
_TINY_POINTS = 3
_OF = {
    "ema": "Moving average of the {} accuracy (%)",
    "accuracy": "Accuracy ({}, %)",
    "all_clients": "Accuracy ({}, %) of the mean of all clients",
}


class Drawn(reproduction.Paper):
    """A paper's table or figure, with its picture if it has one."""

    def __init__(self, *args: Any):
        """Stores what is to be shown; all settings of Hessians are the table's."""
        super().__init__(*args)
        defaults = {each.name: each.default for each in settings_of(curvature.Settings)}
        self.hessian = {**defaults, **self.hessian}

    def pictured(self, study: series.Study) -> list[series.Analysis]:
        measured = _MEASURED.get(self.artifact.picture)
        if measured is None:
            return []
        subject, name = measured
        how = {}
        if subject == "landscape" and self.is_tiny:
            how = {"points": _TINY_POINTS, "examples": self.hessian["examples"]}
        more = [f"--weights={self.weights}", *(f"--{key}={how[key]}" for key in how)]
        found = []
        for run in study.runs:
            folder = finished_runs.analysis_folder(run.directory, self.weights)
            path, rounds = folder / name, pathlib.Path(run.directory) / "metrics.csv"
            is_made = path.exists() and path.stat().st_mtime >= rounds.stat().st_mtime
            if subject == "landscape":
                is_made &= plane.is_made(folder, self.weights, plane.Settings(**how))
            if run.is_finished and not is_made:
                found.append(series.Analysis(subject, run, tuple(more)))
        return found

    def contents(
        self,
        study: series.Study,
        columns: Collection[str],
        is_last: bool,
        **of_files: str,
    ) -> list[series.Written]:
        found = super().contents(study, columns, is_last, **of_files)
        draw = functools.partial(draw_figure, self.artifact, study)
        return [*found, ("", FILES, draw)] if is_last else found


def draw_figure(
    artifact: reproduction.Artifact, study: series.Study
) -> dict[str, bytes]:
    """Returns the PNGs of finished runs, by file name, if there is a figure of them."""
    cells = {  # By panel and curve.
        (column, row): [run.directory for run in runs]
        for column, rows in study.groups().items()
        for row, runs in rows.items()
    }
    draws = {"curves": _curves, "compute_time": _compute_time, "": lambda *_: []}
    draw = draws.get(artifact.picture, _of_weights)
    drawn = draw(artifact, cells) if cells else []
    return {name: curves.as_png(figure) for name, figure in zip(FILES, drawn)}


_Cells = Mapping[tuple[str, str], Sequence[str]]


def _series(path: str, curve: str) -> dict[int, float]:
    """Returns a run's curve: accuracies from 0 to 1 by round."""
    run = finished_runs.read(path)
    values = run.all_clients if curve == "all_clients" else run.tested
    if curve != "ema":
        return dict(values)
    return dict(zip(values, summary_lib.moving_average(list(values.values()))))


def _curves(artifact: reproduction.Artifact, cells: _Cells) -> list[Any]:
    panels: dict[str, list[curves.Curve]] = {}
    for (column, row), paths in cells.items():
        found = [_series(each, artifact.curve) for each in paths]
        rounds = sorted(set.intersection(*map(set, found)))
        values = [[each[number] for each in found] for number in rounds]
        if rounds:
            panels.setdefault(column, []).append(
                curves.Curve(
                    row,
                    rounds,
                    [statistics.fmean(each) for each in values],
                    [quantities.deviation(each) or 0.0 for each in values],
                )
            )
    up = _accuracy(artifact, cells)
    return [curves.draw_panels(panels, up=up)] if panels else []


def _compute_time(artifact: reproduction.Artifact, cells: _Cells) -> list[Any]:
    """Draws accuracy by seconds per round, one curve per method (FedMLB's Fig. 4)."""
    lines: dict[str, list[tuple[float, float, float]]] = {}
    for (_, row), paths in cells.items():
        found = [finished_runs.read(each).summary for each in paths]
        accuracies = [each["ema_accuracy"] for each in found]
        if None in accuracies:
            continue
        lines.setdefault(row, []).append(
            (
                statistics.fmean([each["median_round_seconds"] for each in found]),
                statistics.fmean(accuracies),
                quantities.deviation(accuracies) or 0.0,
            )
        )
    drawn = [
        curves.Curve(row, *map(list, zip(*sorted(points))))
        for row, points in lines.items()
    ]
    how: Any = {"across": "Seconds per round", "up": _accuracy(artifact, cells)}
    return [curves.draw_panels({"": drawn}, **how, has_points=True)] if drawn else []


def _of_weights(artifact: reproduction.Artifact, cells: _Cells) -> list[Any]:
    """Draws landscapes, spectra or singular values of each curve's first seed."""
    folders = {
        row: finished_runs.analysis_folder(paths[0], artifact.weights)
        for (_, row), paths in cells.items()
    }

    def columns(name: str, *wanted: str) -> dict[str, Any]:
        return {
            row: [np.array(_column(folder / name, each)) for each in wanted]
            for row, folder in folders.items()
        }

    if artifact.picture == "landscape":
        found = {row: _landscape(folder) for row, folder in folders.items()}
        return [landscape.draw(found)]
    if artifact.picture == "singular_values":
        values = columns("singular_values.csv", "singular_value")
        return [spectra.draw_singular_values({row: v for row, (v,) in values.items()})]
    values = columns("eigenvalues.csv", "eigenvalue")
    densities = columns("density.csv", "eigenvalue", "density")
    return [
        spectra.draw_eigenvalues({row: v for row, (v,) in values.items()}),
        spectra.draw_densities(
            {r: estimates.SpectralDensity(*pair) for r, pair in densities.items()}
        ),
    ]


def _column(path: pathlib.Path, name: str) -> list[float]:
    rows = tables.from_csv(path.read_text("utf-8"))
    return [float(row[name]) for row in rows]


def _landscape(folder: pathlib.Path) -> landscape.Landscape:
    losses = np.array(_column(folder / "landscape.csv", "loss"))
    points = round(len(losses) ** 0.5)
    first = np.array(_column(folder / "landscape.csv", "first"))[:points]
    return landscape.Landscape(first, losses.reshape(points, points))


def _accuracy(artifact: reproduction.Artifact, cells: _Cells) -> str:
    """Returns the label of the axis of accuracies."""
    (path, *_), *_ = cells.values()
    tested = metrics.tested(finished_runs.read(path).config)
    return _OF[artifact.curve].format(tested)
