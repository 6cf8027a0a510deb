"""What the measurements of a simulation cost beside its rounds.

A run of 100 clients of the digits, all of them in every round and one epoch each, is
done with each measurement and without any, in turns. The numbers are processor seconds
of a round with its evaluation, medians after the first two rounds; of the report the
seconds that it takes once.
"""

from __future__ import annotations

import importlib.util
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from absl import flags

from benchmarks.shared import measuring, subject
from tff_reg import experiment
from tff_reg.experiment.report import comparison
from tff_reg.experiment.rounds import progress

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
    """Times rounds; takes about five minutes, or one if `quick`.

    Returns:
      JSON values by name: `what`, and `seconds`; of rounds also their `share` of those
      without measurements.
    """
    turns, rounds = (1, 4) if quick else (3, 12)
    found: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        os.environ |= {
            "WANDB_MODE": "offline",
            "MLFLOW_ALLOW_FILE_STORE": "true",
            "MLFLOW_TRACKING_URI": f"file:{folder}/mlruns",
        }
        for turn in range(turns):
            for number, (what, changes) in enumerate(_WAYS.items()):
                packages = [each.split(":")[0] for each in changes.get("track", ())]
                if all(map(importlib.util.find_spec, packages)):
                    where = os.path.join(folder, f"{turn}-{number}")
                    taken = _seconds(where, rounds, changes)
                    found.setdefault(what, []).extend(taken)
                    report(f"{what}: {statistics.median(taken):.3f} s a round")
        path = os.path.join(folder, "0-1")
        of_report = measuring.seconds(lambda: comparison.report_run(path, "bin/run"))
    medians = {what: statistics.median(each) for what, each in found.items()}
    rows: list[dict[str, Any]] = [
        {"what": what, "seconds": each, "share": each / medians[_PLAIN] - 1}
        for what, each in medians.items()
    ]
    return [*rows, {"what": "report.html", "seconds": of_report}]


def _seconds(where: str, rounds: int, changes: Mapping[str, Any]) -> list[float]:
    """Returns the processor seconds of a run's rounds after the first."""
    ends: list[float] = []
    given = {**_SETTINGS, "total_rounds": rounds, "output_dir": where, **changes}
    experiment.run(
        experiment.RunConfig(**given),
        progress=progress.Silence(),
        on_round=lambda row: ends.append(time.process_time()),
    )
    return [after - before for before, after in zip(ends[1:], ends[2:])]


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
  round of 100 clients. Five minutes, or one with --quick.""",
)
