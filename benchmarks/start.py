"""Measures how long people wait at the commands, above all for a first round."""

from __future__ import annotations

import functools
import pathlib
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from absl import flags

from benchmarks.shared import measuring, subject
from tff_reg import commands, tables
from tff_reg.experiment.rounds import metrics

_TURNS, _QUICK_TURNS = 5, 1

_DIGITS = ("--process=fedavg", "--local_epochs=1")
_CIFAR = ("--task=cifar10", "--synthetic_data", "--scale=0.02")
_COHORT = ("--num_clients=200", "--clients_per_round=2", "--local_epochs=1")
# The runs whose first round is waited for, by name, with their flags.
_RUNS = {
    "FedAvg on digits": _DIGITS,
    "FedAlign on ResNet-56": (
        "--process=fedalign",
        "--model=resnet56",
        *_CIFAR,
        *_COHORT,
    ),
    "FedMLB on ResNet-18": ("--process=fedmlb", "--model=resnet18", *_CIFAR, *_COHORT),
}
_BIN = pathlib.Path(__file__).resolve().parent.parent / "bin"
_RUN = (*commands.START, "run")
_WAITS = {
    "Python": (sys.executable, "-I", "-S", "-c", ""),
    "bin/launch and Python": (str(_BIN / "launch"), "-I", "-S", "-c", ""),
    "import tensorflow": (sys.executable, "-c", "import tensorflow"),
    "import tff_reg": (sys.executable, "-c", "import tff_reg, tff_reg.quiet"),
    "bin/run --help": (*_RUN, "--help"),
    "bin/run with a wrong flag": (*_RUN, "--process=fedavg", "--batchsize=3"),
}


def measure(
    turns: int,
    *,
    runs: Sequence[str] = tuple(_RUNS),
    report: Callable[[str], None],
) -> list[dict[str, Any]]:
    """Measures every wait, in turns.

    Args:
      turns: How often.
      runs: Some of `_RUNS`.
      report: Called with a line after each.

    Returns:
      For each wait `what` it is, `seconds_median` and `turns`.
    """
    ways = {
        name: functools.partial(subprocess.run, command, capture_output=True)
        for name, command in _WAITS.items()
    }
    found = {name: [] for name in ways}
    for turn in range(turns):
        for name, (each,) in measuring.in_turns(ways, 1).items():
            found[name].append(each)
        report(f"turn {turn + 1}")
    for name in runs:
        for _ in range(turns):
            for what, seconds in _seconds_of_a_run(name).items():
                found.setdefault(what, []).append(seconds)
        report(f"first rounds of {name}")
    return [
        {"what": name, "seconds_median": statistics.median(each), "turns": len(each)}
        for name, each in found.items()
    ]


# Parts of a run until its first round has ended, by what its output then begins with.
_PARTS = {
    "Clients run": "imports of TensorFlow and tff_reg",
    "process": "import of TFF, data, evaluation",
    "round": "trial and process",
}


def _seconds_of_a_run(name: str) -> dict[str, float]:
    """Seconds until the first round is printed, of its parts, and of the end."""
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        began = before = time.perf_counter()
        process = subprocess.Popen(
            [*_RUN, *_RUNS[name], "--total_rounds=100000", f"--output_dir={folder}"],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert process.stdout is not None  # It is a pipe.
        for line in process.stdout:
            for start, part in _PARTS.items():
                if line.startswith(f"{start} ") and part not in found:
                    now = time.perf_counter()
                    found[part], before = now - before, now
            if line.startswith("round "):
                break
        else:
            raise RuntimeError("bin/run ended before its first round.")
        process.send_signal(signal.SIGINT)
        process.communicate()
        ended = time.perf_counter()
        table = pathlib.Path(folder, "metrics.csv").read_text("utf-8")
    (first, *_) = tables.from_csv(table)
    found["first round"] = float(first[metrics.SECONDS])
    found["trial and process"] -= found["first round"]
    found = {f"{name}: {part}": seconds for part, seconds in found.items()}
    found[f"bin/run to the end of the first round of {name}"] = before - began
    return {**found, "Ctrl-C to the end": ended - before}


def table(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """The lines of a table of what `measure` returns."""
    return subject.to_markdown(
        [
            {"what": row["what"], "seconds": f"{row['seconds_median']:.2f}"}
            for row in rows
        ]
    )


def _run(given: flags.FlagValues) -> None:
    runs = tuple(_RUNS)[:1] if given.quick else tuple(_RUNS)
    turns = _QUICK_TURNS if given.quick else _TURNS
    rows = measure(turns, runs=runs, report=subject.say)
    subject.finish(given, rows, table(rows))


SUBJECT = subject.Subject(
    run=_run,
    help="""\
bin/bench start [--quick] [--json=FILE]
  What people wait for: bin/launch, imports, help, a wrong flag, the parts of three
  runs up to the end of their first round, the end after Ctrl-C. Six minutes; with
  --quick the first run only, half a minute.""",
)
