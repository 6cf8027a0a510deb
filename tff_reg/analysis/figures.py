"""A paper's figure from finished runs: `figure.png`, and the analyses that it needs.

A panel shows all curves of one setting, as in the paper, with the paper's axes.
Landscapes and spectra are measured by `bin/analyze` first, which writes them to the
runs' directories.
"""

from __future__ import annotations

import pathlib
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from tff_reg import curves, files, tables
from tff_reg.analysis import curvature, estimates, landscape, plane, spectra
from tff_reg.experiment.report import finished_runs, quantities, table
from tff_reg.experiment.rounds import metrics, summary as summary_lib
from tff_reg.experiment.series import batch, plan as series, reproduction
from tff_reg.lazy import np
from tff_reg.settings import settings_of

FILES = ("figure.png", "density.png")
# For each kind of picture: the subject of `bin/analyze`, and the file that it writes.
_MEASURED = {
    "landscape": ("landscape", "landscape.csv"),
    "eigenvalues": ("hessian", "eigenvalues.csv"),
    "singular_values": ("singular_values", "singular_values.csv"),
}
_TINY_POINTS = 3
_OF = {
    "ema": "Moving average of the {} accuracy (%)",
    "accuracy": "Accuracy ({}, %)",
    "all_clients": "Accuracy ({}, %) of the mean of all clients",
}


def hessian_defaults() -> dict[str, Any]:
    """Returns the default settings of `bin/analyze hessian`."""
    return {each.name: each.default for each in settings_of(curvature.Settings)}


def analyses(
    made: reproduction.Reproduction, finished: Sequence[series.PlannedRun]
) -> list[batch.Analysis]:
    """Returns the analyses that a figure still needs."""
    measured = _MEASURED.get(made.artifact.picture)
    if measured is None:
        return []
    subject, name = measured
    weights = made.artifact.weights
    if subject == "hessian":
        how = {**made.hessian, "clients": 0}, hessian_defaults()
        layout = table.Layout(columns=("lambda_max",), weights=weights)
        return [
            analysis
            for run in finished
            for analysis in batch.analyses_for(run.directory, run.name, layout, *how)
        ]
    how = {}
    if subject == "landscape" and made.is_tiny:
        how = {"points": _TINY_POINTS, "examples": made.hessian["examples"]}
    more = [f"--weights={weights}", *(f"--{key}={how[key]}" for key in how)]
    found = []
    for run in finished:
        folder = finished_runs.analysis_folder(run.directory, weights)
        path, rounds = folder / name, pathlib.Path(run.directory) / "metrics.csv"
        is_made = path.exists() and path.stat().st_mtime >= rounds.stat().st_mtime
        if subject == "landscape":
            is_made &= plane.is_made(folder, weights, plane.Settings(**how))
        if not is_made:
            found.append(batch.Analysis(subject, run.directory, run.name, tuple(more)))
    return found


def write(
    made: reproduction.Reproduction,
    finished: Sequence[series.PlannedRun],
    output_dir: files.PathLike,
) -> list[str]:
    """Draws the figure of the finished runs, if there is one; returns its files."""
    directory = pathlib.Path(output_dir)
    for name in FILES:
        files.delete(directory / name)
    cells = made.groups(finished)  # By panel and curve.
    path, picture = directory / FILES[0], cells and made.artifact.picture
    if picture == "curves":
        _write_curves(path, made, cells)
    elif picture == "compute_time":
        _write_compute_time(path, made, cells)
    elif picture:
        _write_of_weights(directory, made, cells)
    return [name for name in FILES if (directory / name).exists()]


_Cells = Mapping[tuple[str, str], Sequence[str]]


def _series(path: str, curve: str) -> dict[int, float]:
    """Returns a run's curve: accuracies from 0 to 1 by round."""
    run = finished_runs.read(path)
    values = run.all_clients if curve == "all_clients" else run.accuracies
    if curve != "ema":
        return dict(values)
    return dict(zip(values, summary_lib.moving_average(list(values.values()))))


def _write_curves(
    path: pathlib.Path, made: reproduction.Reproduction, cells: _Cells
) -> None:
    curve = made.artifact.curve
    panels: dict[str, list[curves.Curve]] = {}
    for (column, row), paths in cells.items():
        found = [_series(each, curve) for each in paths]
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
    if panels:
        curves.write_panels(path, panels, up=_measured(made))


def _write_compute_time(
    path: pathlib.Path, made: reproduction.Reproduction, cells: _Cells
) -> None:
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
    if drawn:
        curves.write_panels(
            path,
            {"": drawn},
            across="Seconds per round",
            up=_measured(made),
            has_points=True,
        )


def _write_of_weights(
    directory: pathlib.Path, made: reproduction.Reproduction, cells: _Cells
) -> None:
    """Draws landscapes, spectra or singular values of each curve's first seed."""
    artifact = made.artifact
    folders = {
        row: finished_runs.analysis_folder(paths[0], artifact.weights)
        for (_, row), paths in cells.items()
    }
    path = directory / FILES[0]
    if artifact.picture == "landscape":
        found = {row: _landscape(folder) for row, folder in folders.items()}
        landscape.write_landscapes(path, found)
    elif artifact.picture == "singular_values":
        values = {
            row: _column(folder / "singular_values.csv", "singular_value")
            for row, folder in folders.items()
        }
        spectra.write_singular_values(path, values)
    else:
        eigenvalues = {
            row: _column(folder / "eigenvalues.csv", "eigenvalue")
            for row, folder in folders.items()
        }
        spectra.write_eigenvalues(path, eigenvalues)
        densities = {
            row: estimates.SpectralDensity(
                np.array(_column(folder / "density.csv", "eigenvalue")),
                np.array(_column(folder / "density.csv", "density")),
            )
            for row, folder in folders.items()
        }
        spectra.write_densities(directory / FILES[1], densities)


def _column(path: pathlib.Path, name: str) -> list[float]:
    rows = tables.from_csv(path.read_text("utf-8"))
    return [float(row[name]) for row in rows]


def _landscape(folder: pathlib.Path) -> landscape.Landscape:
    losses = np.array(_column(folder / "landscape.csv", "loss"))
    points = round(len(losses) ** 0.5)
    first = np.array(_column(folder / "landscape.csv", "first"))[:points]
    return landscape.Landscape(first, losses.reshape(points, points))


def _measured(made: reproduction.Reproduction) -> str:
    tested = metrics.tested(made.planned[0].config.dump())
    return _OF[made.artifact.curve].format(tested)
