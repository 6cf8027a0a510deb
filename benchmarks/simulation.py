"""What the measurements of a simulation cost beside its rounds.

A run of 100 clients of the digits, all of them in every round and one epoch each, is
done with each measurement and without any, in turns. The numbers are processor seconds
of a round with its evaluation, medians after the first two rounds; of the report the
seconds that it takes once.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from absl import flags

from benchmarks.shared import measuring, subject
from tff_reg import experiment, runtime
from tff_reg.experiment.report import comparison
from tff_reg.experiment.rounds import progress, runs

_PLAIN = "nothing"
_WAYS: dict[str, dict[str, Any]] = {
    _PLAIN: {},
    "client_evaluation": {"client_evaluation": 1},
    "drift": {"drift": True},
    "track=wandb (offline)": {"track": ("wandb:bench",)},
    "track=mlflow (files)": {"track": ("mlflow:bench",)},
}
_SETTINGS: dict[str, Any] = {"process": "fedavg", "settings_of": "task"}
_SETTINGS |= {"num_clients": 100, "clients_per_round": 100, "local_epochs": 1}


def measure(
    quick: bool = False, report: Callable[[str], None] = lambda line: None
) -> list[dict[str, Any]]:
    """Times rounds; takes about three minutes, or one if `quick`.

    Returns:
      JSON values by name: `what`, and `seconds`; of rounds also their `share` of those
      without measurements.
    """
    turns = 4 if quick else 30
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        os.environ |= {
            "WANDB_MODE": "offline",
            "WANDB_DIR": folder,
            "MLFLOW_ALLOW_FILE_STORE": "true",
            "MLFLOW_TRACKING_URI": f"file:{folder}/mlruns",
        }
        stack.enter_context(runtime.running("in_process"))
        found: dict[str, list[float]] = {}
        rounds = {}
        for what, changes in _WAYS.items():
            packages = [each.split(":")[0] for each in changes.get("track", ())]
            if all(map(importlib.util.find_spec, packages)):
                where = os.path.join(folder, f"run {len(rounds)}")
                given = {**_SETTINGS, "total_rounds": turns + 2, "output_dir": where}
                checked = runs.CheckedRun(experiment.RunConfig(**given, **changes))
                prepared = checked.prepare(progress.Silence())
                rounds[what] = stack.enter_context(prepared)
                rounds[what].begin()
        for _ in range(turns + 2):
            for what, each in rounds.items():
                began = time.process_time()
                each.do_one()
                found.setdefault(what, []).append(time.process_time() - began)
        rounds["client_evaluation"].finish()
        path = os.path.join(folder, "run 1")
        of_report = measuring.seconds(lambda: comparison.report_run(path, "bin/run"))
    medians = {what: statistics.median(each[2:]) for what, each in found.items()}
    rows: list[dict[str, Any]] = [
        {"what": what, "seconds": each, "share": each / medians[_PLAIN] - 1}
        for what, each in medians.items()
    ]
    for row in rows:
        report(f"{row['what']}: {row['seconds']:.3f} s a round")
    return [*rows, {"what": "report.html", "seconds": of_report}]


def table(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """The lines of a table of what `measure` returns."""
    return subject.to_markdown(
        [
            {
                "with": row["what"],
                "seconds": f"{row['seconds']:.3f}",
                "more than a round": f"{row['share']:+.1%}" if "share" in row else "-",
            }
            for row in rows
        ]
    )


def _run(given: flags.FlagValues) -> None:
    rows = measure(given.quick, subject.say)
    subject.finish(given, rows, table(rows))


SUBJECT = subject.Subject(
    run=_run,
    help="""\
bin/bench simulation [--quick] [--json=FILE]
  What each client's accuracy, the clients' drift, trackers and a report cost beside a
  round of 100 clients. Three minutes, or one with --quick.""",
)
