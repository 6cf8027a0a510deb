"""Measures how far results move when nothing but rounding changes.

The same runs with oneDNN's kernels and with TensorFlow's own: same seeds, splits,
initial weights, cohorts and batches, other last bits.
"""

from __future__ import annotations

import os
import pathlib
import statistics
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from absl import flags

from benchmarks.shared import subject
from tff_reg import commands
from tff_reg.experiment.report import finished_runs, quantities

_SEEDS, _QUICK_SEEDS = 11, 2
METHODS = ("fedavg", "scaffold", "univarfl", "fedsam")
QUANTITIES = ("score", "last_five", "ema")
_KERNELS = {"oneDNN": "1", "TensorFlow": "0"}
# As the studies on digits (tasks/studies/digits_two_classes.toml).
_PROTOCOL = (
    *("--task=digits", "--model=cnn", "--norm=group", "--augmentation=none"),
    *("--num_clients=20", "--clients_per_round=5", "--partition=shards"),
    "--classes_per_client=2",
)


def measure(
    num_seeds: int,
    *,
    methods: Sequence[str] = METHODS,
    protocol: Sequence[str] = (*_PROTOCOL, "--total_rounds=20"),
    report: Callable[[str], None],
) -> list[dict[str, Any]]:
    """Runs methods with both kinds of kernels.

    Args:
      num_seeds: Seeds of each.
      methods: Their names.
      protocol: Flags of all runs.
      report: Called with a line after each kind.

    Returns:
      For each method and quantity the mean with oneDNN `mean`, the change of the mean
      over the seeds `change`, the mean size of a seed's change `of_a_seed`, and the
      standard deviation over seeds `deviation`, all in points.
    """
    values: dict[str, dict[tuple[str, str], list[float]]] = {}
    for name, value in _KERNELS.items():
        with tempfile.TemporaryDirectory() as folder:
            command = [*commands.START, "compare", f"--processes={','.join(methods)}"]
            command += [*protocol, f"--seeds={num_seeds}", f"--output_dir={folder}"]
            kernels = {"TF_ENABLE_ONEDNN_OPTS": value}
            done = subprocess.run(
                command, env={**os.environ, **kernels}, capture_output=True, text=True
            )
            if done.returncode:
                raise subject.RefusedError(done.stderr.strip().splitlines()[-1])
            values[name] = _values(pathlib.Path(folder), methods, num_seeds)
        report(f"runs with {name}'s kernels")
    one, other = values.values()
    return [
        {
            "method": method,
            "quantity": quantity,
            "mean": statistics.fmean(one[key]),
            "change": statistics.fmean(other[key]) - statistics.fmean(one[key]),
            "of_a_seed": statistics.fmean(
                abs(b - a) for a, b in zip(one[key], other[key])
            ),
            "deviation": statistics.stdev(one[key]),
        }
        for key in one
        for method, quantity in [key]
    ]


def _values(
    folder: pathlib.Path, methods: Sequence[str], num_seeds: int
) -> dict[tuple[str, str], list[float]]:
    found: dict[tuple[str, str], list[float]] = {}
    for method in methods:
        for seed in range(num_seeds):
            run = finished_runs.read(folder / f"{method}-seed{seed}")
            table = quantities.judged(run.score)
            for name in QUANTITIES:
                value = table[name].for_people(run)
                assert value is not None  # Accuracies are finite.
                found.setdefault((method, name), []).append(value)
    return found


def table(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Returns the lines of a table of results."""
    cells = [
        {
            "method": row["method"],
            "quantity": row["quantity"],
            "mean (%)": f"{row['mean']:.2f}",
            "its change by rounding": f"{row['change']:+.2f}",
            "mean change of a seed": f"{row['of_a_seed']:.2f}",
            "deviation over seeds": f"{row['deviation']:.2f}",
        }
        for row in rows
    ]
    return subject.to_markdown(cells)


def _run(given: flags.FlagValues) -> None:
    rows = measure(_QUICK_SEEDS if given.quick else _SEEDS, report=subject.say)
    subject.finish(given, rows, table(rows))


SUBJECT = subject.Subject(
    run=_run,
    help="""\
bin/bench rounding [--quick] [--json=FILE]
  How far the last accuracy, the mean of the last five rounds and the moving average of
  four methods move if only last bits change: oneDNN's kernels and TensorFlow's own,
  eleven seeds. Ten minutes; with --quick two seeds, two minutes.""",
)
