"""Measures what people wait for at the commands."""

from __future__ import annotations

import functools
import pathlib
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from typing import Any, Callable

from benchmarks.shared import measuring, subject
from tff_reg import commands
from tff_reg.lazy import flags

_TURNS, _QUICK_TURNS = 5, 1

_BIN = pathlib.Path(__file__).resolve().parent.parent / "bin"
_RUN = (*commands.START, "run")
_WAITS = {
    "Python": (sys.executable, "-I", "-S", "-c", ""),
    "bin/launch and Python": (str(_BIN / "launch"), "-I", "-S", "-c", ""),
    "import tff_reg": (sys.executable, "-c", "import tff_reg, tff_reg.quiet"),
    "bin/run --help": (*_RUN, "--help"),
    "bin/run with a wrong flag": (*_RUN, "--process=fedavg", "--batchsize=3"),
}


def measure(turns: int, *, report: Callable[[str], None]) -> list[dict[str, Any]]:
    """Measures every wait, in turns.

    Args:
      turns: How often.
      report: Called with a line after each.

    Returns:
      For each wait `what` it is, `seconds_median` and `turns`.
    """
    ways = {
        name: functools.partial(subprocess.run, command, capture_output=True)
        for name, command in _WAITS.items()
    }
    found = {}
    for turn in range(turns):
        taken = {name: each for name, (each,) in measuring.in_turns(ways, 1).items()}
        for name, each in {**taken, **_seconds_of_a_run()}.items():
            found.setdefault(name, []).append(each)
        report(f"turn {turn + 1}")
    return [
        {"what": name, "seconds_median": statistics.median(each), "turns": len(each)}
        for name, each in found.items()
    ]


def _seconds_of_a_run() -> dict[str, float]:
    """Until the first round is printed, and from Ctrl-C to the end."""
    with tempfile.TemporaryDirectory() as folder:
        arguments = ("--process=fedavg", "--total_rounds=100000")
        began = time.perf_counter()
        process = subprocess.Popen(
            [*_RUN, *arguments, f"--output_dir={folder}/run"],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert process.stdout is not None  # It is a pipe.
        for line in process.stdout:
            if line.startswith("round "):
                break
        else:
            raise RuntimeError("bin/run ended before its first round.")
        printed = time.perf_counter()
        process.send_signal(signal.SIGINT)
        process.communicate()
        ended = time.perf_counter()
    return {
        "bin/run to the first round": printed - began,
        "Ctrl-C to the end": ended - printed,
    }


def table(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """The lines of a table of what `measure` returns."""
    return subject.to_markdown(
        [
            {"what": row["what"], "seconds": f"{row['seconds_median']:.2f}"}
            for row in rows
        ]
    )


def _run(given: flags.FlagValues) -> None:
    rows = measure(_QUICK_TURNS if given.quick else _TURNS, report=subject.say)
    subject.finish(given, rows, table(rows))


SUBJECT = subject.Subject(
    run=_run,
    help="""\
bin/bench commands [--quick] [--json=FILE]
  What people wait for: bin/launch, `import tff_reg`, help, a wrong flag, the first
  round, the end after Ctrl-C. Two minutes, or half a minute with --quick.""",
)
