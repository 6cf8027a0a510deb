"""The second-order numbers of a run: FedAlign's Table 1, MAN's Table 2.

Of the server's model, or of other weights of the run: the eigenvalues of largest
magnitude of the Hessian of the loss, and its trace. Of the clients' models, each after
one more round of its own training (after the last one, at that round's rate): H_N and
H_D of FedAlign's Eqs. 3 and 4 from the Hessians' diagonals, and as its code has them
from sums over each parameter tensor (`h_n_code`, `h_d_code`); how far the clients went
and whether in one direction, and whether their gradients at the server's model agree.
A diagonal is an estimate: where it is drowned in its noise, H_N and H_D are None.

All Hessians are of training examples without augmentation, the same for all clients, as
the FedAlign authors' code has it (there augmented anew for every product), with the
model in evaluation mode. Results are written as they come, and what is written is not
computed again:

    hessian.json      everything, and what it is of
    hessian.csv       quantity, value, standard error
    eigenvalues.csv   the largest eigenvalues
    density.csv       the spectral density, if asked for
    clients.csv       a row a client
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
from tff_reg.experiment.report import finished_runs, trained
from tff_reg.lazy import np, tf
from tff_reg.settings import SettingError, check, setting

_FILE, _SUM = "hessian.json", "sum"
_DIAGONALS = "client_diagonals"
_BATCH_SIZE = 64


@dataclasses.dataclass(frozen=True)
class Settings:
    """What is measured, and how accurately."""

    examples: int = setting(
        512,
        help="training examples, drawn once from all clients' (and from each client's,"
        " for its gradient)",
        minimum=1,
    )
    eigenvalues: int = setting(1, help="how many, of largest magnitude", minimum=1)
    trace_tolerance: float = setting(
        0.02, help="the trace's standard error, as a share of it", above=0
    )
    trace_samples: int = setting(
        200, help="random vectors at most for the trace", minimum=2
    )
    density_samples: int = setting(
        0, help="random vectors for the spectral density; 0 leaves it out", minimum=0
    )
    clients: int = setting(
        16, help="how many clients, the first ones; 0 leaves them out", minimum=0
    )
    client_examples: str = setting(
        "global",
        help="global, on which all clients' Hessians are of the same examples, or own",
        choices=("global", "own"),
    )
    diagonal_samples: int = setting(
        30, help="random vectors for a client's diagonal", minimum=2
    )
    seed: int = setting(
        0, help="of the examples and the vectors", minimum=0, maximum=keys.LARGEST_SEED
    )

    def __post_init__(self):
        """Checks all of them.

        Raises:
          SettingError: If one cannot be.
        """
        check(self)
        if self.clients == 1:
            reason = "it must be 0, or at least 2 to be compared."
            raise SettingError("clients", self.clients, reason)


def measure(
    run: trained.TrainedRun,
    settings: Settings,
    output_dir: files.PathLike,
    *,
    report: Callable[[str], None] = lambda line: None,
    progress: bool = False,
) -> dict[str, Any]:
    """Measures a run, or what is left of it, and writes the files.

    Args:
      run: The run; TFF's runtime must be chosen.
      settings: What is measured.
      output_dir: Where the files are written.
      report: Called with a line before each part.
      progress: Whether to draw progress bars.

    Returns:
      What `hessian.json` holds.

    Raises:
      SettingError: If clients are asked for with other weights than the server's, or
        nothing can be written to `output_dir`.
      TrainedRunError: If a client's state is damaged, or its training is not finite.
      NonFiniteError: If a loss has no finite Hessian.
    """
    if settings.clients and run.kind != "server":
        reason = f"it must be 0 with weights={run.kind}: they train the server's model."
        raise SettingError("clients", settings.clients, reason)
    if settings.clients:
        run.check_client_states()
    return _Measuring(run, settings, pathlib.Path(output_dir), report, progress).all()


def read(output_dir: files.PathLike) -> Optional[dict[str, Any]]:
    """What an earlier `measure` wrote; None where there is nothing whole."""
    try:
        found = files.read_json(pathlib.Path(output_dir) / _FILE)
    except files.DamagedError:
        return None
    return found if found.pop(_SUM, None) == _sum(found) else None


def _sum(found: dict[str, Any]) -> str:
    """What tells whether somebody has changed the results."""
    return hashlib.sha256(json.dumps(found).encode()).hexdigest()


def global_examples(
    run: trained.TrainedRun, count: int, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """Training examples drawn from all clients', the same at every call.

    Args:
      run: The run.
      count: How many at most.
      seed: Of the draw.

    Returns:
      Images as the model takes them, and labels.
    """
    parts = [run.client_examples(name) for name in run.task.client_data.client_ids]
    everything = [np.concatenate(each) for each in zip(*parts)]
    return _drawn(everything, count, seed, "global")


def _drawn(examples, count, seed, whose):
    x, y = examples
    generator = keys.driver_generator("analysis", seed, whose)
    chosen = np.sort(generator.permutation(len(x))[:count])
    return x[chosen], y[chosen]


class _Measuring:
    def __init__(self, run, settings, directory, report, progress):
        self._run, self._settings = run, settings
        self._directory, self._report, self._progress = directory, report, progress
        self._of = {
            "round_num": run.round_num,
            "settings": dataclasses.asdict(settings),
            "weights": [run.kind, run.digest],
        }
        files.make_directory(directory, "output_dir")
        files.delete_leftovers(directory)
        found = read(directory)
        if not found or found["of"] != self._of:
            files.delete(directory / _DIAGONALS)
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

    # What is slow to make is made when it is first needed, and once.

    @functools.cached_property
    def _model(self):
        return self._run.model()

    @functools.cached_property
    def _hessian(self):
        """Of the global examples, at the weights that `_model` has at the time."""
        return hessian_lib.Hessian(self._model, self._global_examples())

    def _global_examples(self):
        settings = self._settings
        return global_examples(self._run, settings.examples, settings.seed)

    def _own_examples(self, name):
        settings = self._settings
        return _drawn(
            self._run.client_examples(name), settings.examples, settings.seed, name
        )

    def _eigenvalues(self):
        pairs = self._hessian.top_eigenvalues(
            min(self._settings.eigenvalues, self._hessian.size),
            seed=self._settings.seed,
            progress=self._progress,
        )
        return {"values": pairs.values.tolist(), "errors": pairs.errors.tolist()}

    def _trace(self):
        found = self._hessian.trace(
            tolerance=self._settings.trace_tolerance,
            max_samples=self._settings.trace_samples,
            seed=self._settings.seed,
            progress=self._progress,
        )
        return found._asdict()

    def _density(self):
        found = self._hessian.spectral_density(
            samples=self._settings.density_samples,
            seed=self._settings.seed,
            progress=self._progress,
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
        start = np.concatenate([w.ravel() for w in began.trainable])
        steps = [
            np.concatenate([w.ravel() for w in models[name].trainable]) - start
            for name in client_ids
        ]
        gradients = [self._gradient(*self._own_examples(name)) for name in client_ids]
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
            self._report(f"No H_N and H_D, take more diagonal_samples: {error}")
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
        """The mean cosine between clients; None where one has no direction."""
        if not all(np.any(vector) for vector in vectors):
            self._report(f"No {name}: a client did not move, or its gradient is 0.")
            return None
        return dissimilarity.gradient_agreement(vectors).agreement

    def _diagonal(self, number, name, weights):
        """A client's diagonal and its standard errors, kept until all are there."""
        path = self._directory / _DIAGONALS / f"{number}.npz"
        with contextlib.suppress(files.DamagedError, KeyError):
            stored = files.read_npz(path)
            return stored["values"], stored["errors"]
        weights.assign_weights_to(self._model)
        hessian = self._hessian
        if self._settings.client_examples == "own":
            hessian = hessian_lib.Hessian(self._model, self._own_examples(name))
        found = hessian.diagonal(
            samples=self._settings.diagonal_samples,
            # Vectors of its own: the noise of clients that share them would be alike.
            seed=self._settings.seed + 1 + number,
            progress=self._progress,
        )
        self._run.weights.assign_weights_to(self._model)
        path.parent.mkdir(exist_ok=True)
        kept = {"values": found.values, "errors": found.standard_errors}
        files.write_bytes(path, files.npz(kept))
        return found.values, found.standard_errors

    @functools.cached_property
    def _batch_gradient(self):
        """The gradient of a batch's summed loss at the server's weights."""
        model = self._model

        @tf.function(reduce_retracing=True)
        def gradient(x, y):
            with tf.GradientTape() as tape:
                loss = model.forward_pass({"x": x, "y": y}, training=False).loss
                loss *= tf.cast(tf.shape(y)[0], loss.dtype)
            found = tape.gradient(
                loss,
                model.trainable_variables,
                unconnected_gradients=tf.UnconnectedGradients.ZERO,
            )
            return [tf.cast(tf.reshape(g, [-1]), tf.float64) for g in found]

        return gradient

    def _gradient(self, x, y):
        total = 0.0
        for start in range(0, len(x), _BATCH_SIZE):
            end = start + _BATCH_SIZE
            parts = self._batch_gradient(tf.constant(x[start:end]), y[start:end])
            total = total + np.concatenate([part.numpy() for part in parts])
        return total / len(x)

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
    """The grid and the density of `measure`'s results; None where there is none."""
    if "density" not in results:
        return None
    return tuple(np.asarray(results["density"][name]) for name in ("grid", "density"))


def rows(found: dict[str, Any]) -> list[dict[str, Any]]:
    """The numbers of `hessian.csv`.

    Args:
      found: What `measure` returned.

    Returns:
      Rows of quantity, value and standard error (None where there is none):
      lambda_max (the eigenvalue of largest magnitude, which may be negative), trace,
      and with clients h_n, h_d (None where they are drowned in noise), h_n_code,
      h_d_code, drift, drift_agreement and gradient_agreement.
    """
    results = found["results"]
    numbers = {
        "lambda_max": (results["eigenvalues"]["values"][0], None),
        "trace": (results["trace"]["mean"], results["trace"]["standard_error"]),
    }
    for name in finished_runs.CLIENTS_COLUMNS if "clients" in results else ():
        numbers[name] = (results["clients"][name], None)
    return [
        {"quantity": name, "value": value, "standard_error": error}
        for name, (value, error) in numbers.items()
    ]
