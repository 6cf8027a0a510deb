"""Compares each method's learning curve here with that of a plain PyTorch version.

This package and a loop of PyTorch train on the same digits, with the same split,
initial weights, clients of each round, network and optimiser. The order of the examples
and the methods' random numbers differ, so the curves of a seed are not equal; if both
implement the same method, the curves stay close for every seed.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import pathlib
import statistics
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from absl import flags

from benchmarks.shared import subject
from benchmarks.simulators import environments
from tff_reg import curves
from tff_reg.experiment.config import run_config as config_lib
from tff_reg.experiment.rounds import metrics, runs
from tff_reg.lazy import np

METHODS = ("fedavg", "fedalign", "moon", "gradaug", "fedmlb")
_SEEDS = (0, 1, 2)
_ROUNDS, _QUICK_ROUNDS = 15, 2
_ROOT = pathlib.Path(__file__).resolve().parent.parent
_HERE, _PYTORCH = "tff_reg", "PyTorch"


def _config(method: str, seed: int, rounds: int, folder: str) -> Any:
    """The settings of the README's table of all regularisers on digits."""
    return config_lib.RunConfig(
        process=method,
        seed=seed,
        output_dir=folder,
        total_rounds=rounds,
        partition="dirichlet_unbalanced",
        concentration=0.1,
        num_clients=16,
        clients_per_round=16,
        local_epochs=5,
        batch_size=32,
        client_learning_rate=0.01,
        client_momentum=0.9,
        client_nesterov=True,
        client_weight_decay=1e-4,
        learning_rate_schedule="constant",
        augmentation="none",
    ).resolved()


def _write(path: str, config: Any) -> None:
    """Writes the file with which the program of PyTorch trains."""
    task = runs.build_task(config)
    model = runs.build_model_fn(config, task)()
    arrays = {f"weight{i:04}": v for i, v in enumerate(model.trainable_variables)}
    for index, client_id in enumerate(task.client_data.client_ids):
        examples = task.client_data.client_examples(client_id)
        arrays[f"images{index}"] = task.normalize_fn(examples["x"])
        arrays[f"labels{index}"] = examples["y"]
    images, arrays["test_labels"] = task.test_arrays()
    arrays["test_images"] = task.normalize_fn(images)
    settings = {
        "method": config.process,
        "network": config.model,
        "norm": config.norm,
        "clients": config.num_clients,
        "rounds": config.total_rounds,
        "seed": config.seed,
        "epochs": config.local_epochs,
        "batch_size": config.batch_size,
        "learning_rate": config.client_learning_rate,
        "momentum": config.client_momentum,
        "weight_decay": config.client_weight_decay,
        "max_gradient_norm": config.max_gradient_norm or None,
    }
    kept: dict[str, Any] = {name: np.asarray(array) for name, array in arrays.items()}
    np.savez(path, settings=json.dumps(settings), **kept)


def _ours(config: Any) -> list[float]:
    """The test accuracy after each round."""
    with contextlib.redirect_stdout(io.StringIO()):
        runs.run(config)
    text = pathlib.Path(config.output_dir, "metrics.csv").read_text("utf-8")
    return metrics.MetricsTable.parse(text).column("evaluation/accuracy")


def _pytorchs(python: str, config: Any, folder: str) -> list[float]:
    path = os.path.join(folder, "case.npz")
    _write(path, config)
    command = [python, "-m", "benchmarks.simulators.pytorch_learning", path]
    done = subprocess.run(
        command, cwd=_ROOT, check=True, stdout=subprocess.PIPE, text=True
    )
    return json.loads(done.stdout.splitlines()[-1])


def measure(
    methods: Sequence[str] = METHODS,
    seeds: Sequence[int] = _SEEDS,
    rounds: int = _ROUNDS,
    *,
    report: Callable[[str], None] = lambda line: None,
) -> list[dict[str, Any]]:
    """Trains with both.

    Args:
      methods: Some of `METHODS`.
      seeds: The seeds of the runs.
      rounds: The rounds of each run.
      report: Called with a line now and then, to show progress.

    Returns:
      For each method, system and seed, as JSON values, the `accuracies`: shares of the
      test examples by round.

    Raises:
      RefusedError: If PyTorch cannot be installed.
    """
    python = environments.python("torch")
    rows = []
    for method in methods:
        for seed in seeds:
            with tempfile.TemporaryDirectory() as folder:
                config = _config(method, seed, rounds, os.path.join(folder, "run"))
                found = {
                    _HERE: _ours(config),
                    _PYTORCH: _pytorchs(python, config, folder),
                }
            for system, accuracies in found.items():
                rows.append(
                    {
                        "method": method,
                        "system": system,
                        "seed": seed,
                        "accuracies": accuracies,
                    }
                )
                report(f"{method}, seed {seed}, {system}: {accuracies[-1]:.1%}")
    return rows


def _accuracies(rows: Sequence[Mapping[str, Any]], method: str, system: str):
    """The accuracies by seed and round."""
    return [
        row["accuracies"]
        for row in rows
        if (row["method"], row["system"]) == (method, system)
    ]


def table(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """The lines of a table of what `measure` returns: the last accuracies, in %."""

    def cells(method: str) -> dict[str, str]:
        found = {"method": method}
        for system in (_HERE, _PYTORCH):
            last = [each[-1] for each in _accuracies(rows, method, system)]
            mean = f"{100 * statistics.fmean(last):.1f}"
            spread = f" ± {100 * statistics.stdev(last):.1f}" if last[1:] else ""
            by_seed = " / ".join(f"{100 * value:.1f}" for value in last)
            found[system] = f"{mean}{spread}"
            found[f"{system}, by seed"] = by_seed
        return found

    names = dict.fromkeys(row["method"] for row in rows)
    return subject.to_markdown([cells(name) for name in names])


def plot(rows: Sequence[Mapping[str, Any]], path: str) -> None:
    """Draws the means over the seeds, one curve for each method and system.

    Args:
      rows: What `measure` returns.
      path: The PNG.
    """
    drawn = []
    for method, system in dict.fromkeys((r["method"], r["system"]) for r in rows):
        by_round = list(zip(*_accuracies(rows, method, system)))
        drawn.append(
            curves.Curve(
                f"{method}, {system}",
                range(1, len(by_round) + 1),
                [statistics.fmean(each) for each in by_round],
                [0.0] * len(by_round),
            )
        )
    curves.write_curves(path, drawn, up="Test accuracy on digits, Dir(0.1) (%)")


def _run(given: flags.FlagValues) -> None:
    methods = given.methods.split(",") if given.methods else METHODS
    if not set(methods) <= set(METHODS):
        raise subject.RefusedError(f"--methods: some of {','.join(METHODS)}.")
    quick = {"seeds": _SEEDS[:1], "rounds": _QUICK_ROUNDS} if given.quick else {}
    rows = measure(methods, **quick, report=subject.say)
    if given.plot:
        plot(rows, given.plot)
    subject.finish(given, rows, table(rows))


def _define_flags(given: flags.FlagValues) -> None:
    flags.DEFINE_string("methods", None, "Some of them.", flag_values=given)
    flags.DEFINE_string("plot", None, "PNG to draw.", flag_values=given)


SUBJECT = subject.Subject(
    run=_run,
    define_flags=_define_flags,
    help="""\
bin/bench learning [--methods=NAME,...] [--quick] [--json=FILE] [--plot=PNG]
  The accuracies of FedAvg, FedAlign, MOON, GradAug and FedMLB on digits, here and in a
  loop of plain PyTorch with the same split, initial weights and optimiser, for three
  seeds of 15 rounds: ten minutes, or two with --quick, which is a seed of 2 rounds.""",
)
