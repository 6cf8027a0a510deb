"""The curvature measurements of a run: FedAlign's Table 1, MAN's Table 2.

For the server's model, or other weights of the run: the Hessian's eigenvalues of
largest magnitude, and its trace. For the clients' models after one more round of local
training at the last round's learning rate: H_N and H_D of FedAlign's Eqs. 3 and 4 from
the Hessians' diagonals; H_N and H_D from the diagonal's sum over each parameter tensor,
as in FedAlign's code (`h_n_code`, `h_d_code`); the distance that the clients moved; the
agreement of their directions; and the agreement of their gradients at the server's
model. The diagonals are estimates: H_N and H_D are None if a diagonal is smaller than
its noise.

Hessians use training examples without augmentation and the model in evaluation mode. By
default all clients share the examples, as in the FedAlign authors' code (which augments
them anew for every product). Each result is written when it is ready, and not computed
again: `hessian.json` has all results with their run and settings, `hessian.csv` the
quantities with value and standard error, `eigenvalues.csv` the largest eigenvalues,
`density.csv` the spectral density, and `clients.csv` one row per client.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import json
import pathlib
from collections.abc import Callable
from typing import Any, Optional

from tff_reg import files, tables
from tff_reg.analysis import dissimilarity, hessian as hessian_lib
from tff_reg.data import keys
from tff_reg.experiment.report import quantities, trained
from tff_reg.lazy import np
from tff_reg.methods import catalogue
from tff_reg.settings import SettingError, check, setting

_FILE, _SUM = "hessian.json", "sum"
_DIAGONALS = "client_diagonals"
# All that is written of one measurement beside its results, pictures among them.
_FILES = (
    *(_DIAGONALS, "hessian.csv", "clients.csv", "density.csv", "density.png"),
    *("eigenvalues.csv", "eigenvalues.png"),
)


@dataclasses.dataclass(frozen=True)
class Settings:
    """The quantities to measure, and their accuracy."""

    examples: int = setting(
        512,
        help="number of training examples, drawn once from all clients (and from each"
        " client for its gradient)",
        minimum=1,
    )
    eigenvalues: int = setting(
        1, help="number of eigenvalues of largest magnitude", minimum=1
    )
    trace_tolerance: float = setting(
        0.02, help="standard error of the trace as a share of the trace", above=0
    )
    trace_samples: int = setting(
        200, help="largest number of random vectors for the trace", minimum=2
    )
    density_samples: int = setting(
        0,
        help="number of random vectors for the spectral density; 0 leaves it out",
        minimum=0,
    )
    clients: int = setting(
        16, help="number of clients to compare, the first ones; 0 for none", minimum=0
    )
    client_examples: str = setting(
        "global",
        help="examples of the clients' Hessians: global (the same for all clients, as"
        " in FedAlign's code) or own",
        choices=("global", "own"),
    )
    diagonal_samples: int = setting(
        30, help="number of random vectors for a client's diagonal", minimum=2
    )
    seed: int = setting(
        0,
        help="seed of the examples and the random vectors",
        minimum=0,
        maximum=keys.LARGEST_SEED,
    )

    def __post_init__(self):
        """Checks all settings."""
        check(self)
        if self.clients == 1:
            reason = "it must be 0, or at least 2 for a comparison."
            raise SettingError("clients", self.clients, reason)


def measure(
    run: trained.TrainedRun,
    settings: Settings,
    output_dir: files.PathLike,
    *,
    report: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """Measures a run and writes the files; resumes an interrupted call."""
    if settings.clients and run.config.process in catalogue.POOLED:
        why = "it must be 0: central has one client."
        raise SettingError("clients", settings.clients, why)
    if settings.clients and run.kind != "server":
        reason = f"it must be 0 with weights={run.kind}: clients train the server's."
        raise SettingError("clients", settings.clients, reason)
    if settings.clients:
        run.check_client_states()
    return _Measuring(run, settings, pathlib.Path(output_dir), report).all()


def read(output_dir: files.PathLike) -> Optional[dict[str, Any]]:
    """Returns the results of an earlier `measure`; None if missing or damaged."""
    try:
        found = files.read_json(pathlib.Path(output_dir) / _FILE)
    except files.DamagedError:
        return None
    return found if found.pop(_SUM, None) == _sum(found) else None


def _sum(found: dict[str, Any]) -> str:
    """Returns a digest of the results, to detect changes of the file."""
    return hashlib.sha256(json.dumps(found).encode()).hexdigest()


def global_examples(
    run: trained.TrainedRun, count: int, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """Draws training examples of all clients, the same at every call."""
    parts = [run.client_examples(name) for name in run.task.client_data.client_ids]
    everything = [np.concatenate(each) for each in zip(*parts)]
    return _drawn(everything, count, seed, "global")


def _drawn(examples, count, seed, whose):
    x, y = examples
    generator = keys.driver_generator("analysis", seed, whose)
    chosen = np.sort(generator.permutation(len(x))[:count])
    return x[chosen], y[chosen]


class _Measuring:
    def __init__(self, run, settings, directory, report):
        self._run, self._settings = run, settings
        self._directory, self._report = directory, report
        self._of = {
            "round_num": run.round_num,
            "settings": dataclasses.asdict(settings),
            "weights": [run.kind, run.digest],
        }
        files.make_directory(directory, "output_dir")
        files.delete_leftovers(directory)
        found = read(directory)
        if not found or found["of"] != self._of:
            for name in _FILES:
                files.delete(directory / name)
            found = {"of": self._of, "results": {}}
        self._found = found

    def all(self) -> dict[str, Any]:
        self._part("eigenvalues", self._eigenvalues)
        self._part("trace", self._trace)
        if self._settings.density_samples:
            self._part("density", self._density)
        if self._settings.clients:
            self._part("clients", self._clients)
        self._write_tables()
        return self._found

    def _part(self, name, compute):
        if name not in self._found["results"]:
            self._report(f"{name} of round {self._run.round_num}")
            self._found["results"][name] = compute()
            kept = {**self._found, _SUM: _sum(self._found)}
            text = json.dumps(kept, indent=2, allow_nan=False)
            files.write_text(self._directory / _FILE, text + "\n")

    # The following properties are built at first use, because building is slow.

    @functools.cached_property
    def _model(self):
        return self._run.model(is_exact=True)

    @functools.cached_property
    def _hessian(self):
        """The Hessian on the global examples, at the current weights of `_model`."""
        settings = self._settings
        examples = global_examples(self._run, settings.examples, settings.seed)
        return self._hessian_on(examples)

    def _hessian_on(self, examples):
        return hessian_lib.Hessian(self._model, examples)

    def _own_examples(self, name):
        settings = self._settings
        return _drawn(
            self._run.client_examples(name), settings.examples, settings.seed, name
        )

    def _eigenvalues(self):
        pairs = self._hessian.top_eigenvalues(
            min(self._settings.eigenvalues, self._hessian.size),
            seed=self._settings.seed,
        )
        return {"values": pairs.values.tolist(), "errors": pairs.errors.tolist()}

    def _trace(self):
        found = self._hessian.trace(
            tolerance=self._settings.trace_tolerance,
            max_samples=self._settings.trace_samples,
            seed=self._settings.seed,
        )
        return found._asdict()

    def _density(self):
        found = self._hessian.spectral_density(
            samples=self._settings.density_samples,
            seed=self._settings.seed,
        )
        return {"grid": found.grid.tolist(), "density": found.density.tolist()}

    def _clients(self):
        client_ids = self._run.task.client_data.client_ids[: self._settings.clients]
        began, models = self._run.train_clients(client_ids)
        diagonals, errors = [], []
        for number, name in enumerate(client_ids):
            self._report(f"client {number + 1} of {len(client_ids)}")
            values, spread = self._diagonal(number, name, models[name])
            diagonals.append(values)
            errors.append(spread)
        ends, starts = (
            [np.concatenate([w.ravel() for w in each[n].trainable]) for n in client_ids]
            for each in (models, began)
        )
        steps = np.subtract(ends, starts)
        gradients = [
            self._hessian_on(self._own_examples(name)).gradient() for name in client_ids
        ]
        published = dissimilarity.published_hessian_dissimilarity(
            [
                [np.sum(part) for part in self._hessian.unflatten(diagonal)]
                for diagonal in diagonals
            ]
        )
        try:
            alike = dissimilarity.hessian_dissimilarity(diagonals, errors)
            h_n, h_d = alike.norm, alike.direction
        except ValueError as error:
            self._report(f"No H_N and H_D, increase diagonal_samples: {error}")
            h_n = h_d = None
        drifts = np.linalg.norm(steps, axis=1).tolist()
        files.delete(self._directory / _DIAGONALS)
        return {
            "h_n": h_n,
            "h_d": h_d,
            "h_n_code": published.norm,
            "h_d_code": published.direction,
            "drift": float(np.mean(drifts)),
            "drift_agreement": self._agreement("drift_agreement", steps),
            "gradient_agreement": self._agreement("gradient_agreement", gradients),
            "rows": [
                {
                    "client": name,
                    "examples": int(size),
                    "diagonal_norm": float(np.linalg.norm(diagonal)),
                    "drift": drift,
                    "gradient_norm": float(np.linalg.norm(gradient)),
                }
                for name, size, diagonal, drift, gradient in zip(
                    client_ids,
                    self._run.task.client_data.client_sizes,
                    diagonals,
                    drifts,
                    gradients,
                )
            ],
        }

    def _agreement(self, name, vectors):
        """Returns the mean cosine between clients; None if a client's vector is 0."""
        if not all(np.any(vector) for vector in vectors):
            self._report(f"No {name}: a client did not move, or its gradient is 0.")
            return None
        return dissimilarity.gradient_agreement(vectors).agreement

    def _diagonal(self, number, name, weights):
        """Reads or computes a client's Hessian diagonal and its standard errors."""
        path = self._directory / _DIAGONALS / f"{number}.npz"
        with contextlib.suppress(files.DamagedError, KeyError):
            stored = files.read_npz(path)
            return stored["values"], stored["errors"]
        weights.assign_weights_to(self._model)
        hessian = self._hessian
        if self._settings.client_examples == "own":
            hessian = self._hessian_on(self._own_examples(name))
        found = hessian.diagonal(
            samples=self._settings.diagonal_samples,
            # Shared random vectors would make the clients' noise alike.
            seed=self._settings.seed + 1 + number,
        )
        self._run.weights.assign_weights_to(self._model)
        path.parent.mkdir(exist_ok=True)
        kept = {"values": found.values, "errors": found.standard_errors}
        files.write_bytes(path, files.npz(kept))
        return found.values, found.standard_errors

    def _write_tables(self):
        results = self._found["results"]
        written = {"hessian.csv": rows(self._found)}
        written["eigenvalues.csv"] = [
            {"eigenvalue": value, "error": error}
            for value, error in zip(*results["eigenvalues"].values())
        ]
        if "density" in results:
            written["density.csv"] = [
                {"eigenvalue": value, "density": density}
                for value, density in zip(*results["density"].values())
            ]
        if "clients" in results:
            written["clients.csv"] = results["clients"]["rows"]
        for name, lines in written.items():
            files.write_text(self._directory / name, tables.to_csv(lines))


def density(results: dict[str, Any]) -> Optional[tuple]:
    """Returns the grid and density from `measure`'s results; None if not measured."""
    if "density" not in results:
        return None
    return tuple(np.asarray(results["density"][name]) for name in ("grid", "density"))


def rows(found: dict[str, Any]) -> list[dict[str, Any]]:
    """Returns the rows of `hessian.csv`."""
    results = found["results"]
    numbers = {
        "lambda_max": (results["eigenvalues"]["values"][0], None),
        "trace": (results["trace"]["mean"], results["trace"]["standard_error"]),
    }
    of_clients = quantities.measured([*quantities.TABLE], quantities.OF_CLIENTS)
    for name in of_clients if "clients" in results else ():
        numbers[name] = (results["clients"][name], None)
    return [
        {"quantity": name, "value": value, "standard_error": error}
        for name, (value, error) in numbers.items()
    ]
