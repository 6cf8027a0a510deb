"""The time of a local step with oneDNN's kernels and with Eigen's.

Eigen's kernels are TensorFlow's own. TensorFlow by itself uses oneDNN's only on CPUs
with AVX512-VNNI, AVX512-BF16 or AMX; `tff_reg.kernels` chooses oneDNN everywhere, and
these times are the reason. On a CPU with more than AVX2, oneDNN is also measured with
AVX2 only.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import statistics
import tempfile
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from absl import flags

from benchmarks.shared import asking, cases, subject
from tff_reg import kernels
from tff_reg.runtime import devices

_SIZES = {
    "resnet8": cases.Size("resnet8", "batch", (8, 8, 1), 1, 64 * 20, 64),
    "resnet8, FedAlign": cases.Size(
        "resnet8", "batch", (8, 8, 1), 1, 64 * 20, 64, "fedalign"
    ),
    "cnn": cases.Size("cnn", "none", (32, 32, 3), 1, 20 * 20, 20),
    "feddyn_cnn": cases.Size("feddyn_cnn", "none", (32, 32, 3), 1, 20 * 20, 20),
    "resnet20": cases.Size("resnet20", "group", (32, 32, 3), 1, 20 * 10, 20),
    "resnet56": cases.Size("resnet56", "batch", (32, 32, 3), 1, 64 * 3, 64),
    "resnet18": cases.Size("resnet18", "group", (32, 32, 3), 1, 16 * 3, 16),
}
# Measured rounds of each, in full and with `--quick`.
_ROUNDS = (9, 3)


def measure(
    *, quick: bool = False, report: Callable[[str], None] = lambda line: None
) -> list[dict[str, Any]]:
    """Times steps on one thread; takes about ten minutes, or five if `quick`.

    Args:
      quick: Fewer rounds.
      report: Called with a line now and then, to show progress.

    Returns:
      JSON values by name, for each network and kernels.
    """
    rows = []
    for name, size in _SIZES.items():
        steps = size.examples // size.batch_size
        seconds: dict[str, list[float]] = {}
        with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
            path = os.path.join(folder, "case.npz")
            cases.write(path, size)
            # As many clients at a time as cores: one thread an operation.
            command = cases.own_program(path, "in_process", devices.cores())
            programs = {
                kind: stack.enter_context(
                    asking.Program(command, environment={**os.environ, **variables})
                )
                for kind, variables in _kinds().items()
            }
            for program in programs.values():
                program.ask("round")
            for _ in range(_ROUNDS[quick]):
                for kind, program in programs.items():
                    seconds.setdefault(kind, []).append(program.ask("round"))
        eigen = statistics.median(seconds["eigen"])
        rows += [
            {
                "network": name,
                "kernels": kind,
                "milliseconds_median": round(1e3 * statistics.median(found) / steps, 3),
                "milliseconds_min": round(1e3 * min(found) / steps, 3),
                "milliseconds_max": round(1e3 * max(found) / steps, 3),
                "ratio_to_eigen": round(statistics.median(found) / eigen, 4),
            }
            for kind, found in seconds.items()
        ]
        report(f"{name}: done")
    return rows


def _kinds() -> dict[str, dict[str, str]]:
    """Environment variables by what is measured."""
    kinds = {
        "eigen": {kernels.VARIABLE: "0"},
        "onednn": {kernels.VARIABLE: "1"},
    }
    if "avx512" in pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8"):
        as_avx2 = {kernels.VARIABLE: "1", "ONEDNN_MAX_CPU_ISA": "AVX2"}
        kinds["onednn, AVX2 only"] = as_avx2
    return kinds


def table(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """The lines of a table of what `measure` returns."""
    return subject.to_markdown(
        [
            {
                "network": row["network"],
                "kernels": row["kernels"],
                "ms a step (median)": f"{row['milliseconds_median']:.2f}",
                "least - most": (
                    f"{row['milliseconds_min']:.2f} - {row['milliseconds_max']:.2f}"
                ),
                "to Eigen": f"{row['ratio_to_eigen']:.2f}",
            }
            for row in rows
        ]
    )


def _run(given: flags.FlagValues) -> None:
    rows = measure(quick=given.quick, report=subject.say)
    subject.finish(given, rows, table(rows))


SUBJECT = subject.Subject(
    run=_run,
    help="""\
bin/bench kernels [--quick] [--json=FILE]
  A local step of FedAvg on seven networks with oneDNN's kernels and with Eigen's. Ten
  minutes, or five with --quick.""",
)
