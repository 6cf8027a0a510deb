"""The loss landscape of a run, written row by row: FedAlign's Fig. 1, MAN's Fig. 1.

`landscape.npz` has the losses computed so far, with their run and settings, and
`landscape.csv` the columns first, second (coordinates) and loss. Written losses are not
computed again.
"""

from __future__ import annotations

import dataclasses
import json
import pathlib

from tff_reg import files, tables
from tff_reg.analysis import curvature, hessian as hessian_lib, landscape
from tff_reg.data import keys
from tff_reg.experiment.report import trained
from tff_reg.lazy import np
from tff_reg.settings import SettingError, check, setting

_FILE = "landscape.npz"


@dataclasses.dataclass(frozen=True)
class Settings:
    """The plane, its points and the examples."""

    directions: str = setting(
        "eigenvectors",
        help="eigenvectors (of the two largest eigenvalues of the Hessian) or random"
        " (with the norms of the model's filters)",
        choices=("eigenvectors", "random"),
    )
    extent: float = setting(
        1.0, help="largest coordinate, in lengths of the directions", above=0
    )
    points: int = setting(
        21, help="points along each direction; an odd number", minimum=3
    )
    examples: int = setting(
        512, help="number of training examples whose mean loss is computed", minimum=1
    )
    seed: int = setting(
        0,
        help="seed of the examples and of random directions",
        minimum=0,
        maximum=keys.LARGEST_SEED,
    )

    def __post_init__(self):
        """Checks all settings."""
        check(self)
        if self.points % 2 == 0:
            raise SettingError("points", self.points, "it must be odd.")


def measure(
    run: trained.TrainedRun,
    settings: Settings,
    output_dir: files.PathLike,
) -> landscape.Landscape:
    """Computes a run's landscape and writes the files; resumes an interrupted call."""
    directory = files.make_directory(output_dir, "output_dir")
    files.delete_leftovers(directory)
    of = json.dumps([run.kind, run.digest, dataclasses.asdict(settings)])
    known = _read(directory / _FILE, of)
    if known is not None and not np.isnan(known).any():
        coordinates = np.linspace(-settings.extent, settings.extent, settings.points)
        found = landscape.Landscape(coordinates, known)
    else:
        examples = curvature.global_examples(run, settings.examples, settings.seed)
        hessian = hessian_lib.Hessian(run.model(is_exact=True), examples)
        if settings.directions == "random":
            directions = landscape.random_directions(hessian, settings.seed)
        else:
            directions = hessian.top_eigenvalues(2, seed=settings.seed).vectors
        found = landscape.loss_landscape(
            hessian,
            directions,
            extent=settings.extent,
            points=settings.points,
            known=known,
            after_row=lambda losses: _write(directory / _FILE, of, losses),
        )
    rows = [
        {"first": first, "second": second, "loss": float(found.losses[i, j])}
        for i, second in enumerate(found.coordinates.tolist())
        for j, first in enumerate(found.coordinates.tolist())
    ]
    files.write_text(directory / "landscape.csv", tables.to_csv(rows))
    return found


def is_made(folder: pathlib.Path, kind: str, settings: Settings) -> bool:
    """Returns whether a folder has a landscape of such weights with such settings."""
    try:
        stored = json.loads(str(files.read_npz(folder / _FILE)["of"]))
    except (files.DamagedError, KeyError, ValueError):
        return False
    return [stored[0], stored[2]] == [kind, dataclasses.asdict(settings)]


def _read(path: pathlib.Path, of: str):
    """Reads the losses of a file; None if they are missing or of another plane."""
    try:
        stored = files.read_npz(path)
        return stored["losses"] if str(stored["of"]) == of else None
    except (files.DamagedError, KeyError):
        return None


def _write(path: pathlib.Path, of: str, losses) -> None:
    files.write_bytes(path, files.npz({"of": np.array(of), "losses": losses}))
