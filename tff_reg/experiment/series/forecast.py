"""What runs will take: time, traffic and disk, from two rounds of each method."""

from __future__ import annotations

import dataclasses
import os
import tempfile
from collections.abc import Sequence
from typing import Any

from tff_reg import tables
from tff_reg.experiment.config import identity
from tff_reg.experiment.rounds import directory, metrics, progress
from tff_reg.experiment.series.plan import PlannedRun, plan_run

_ROUNDS = 2  # The first traces and compiles.


class Forecast:
    """The expectation of planned runs; in a `with` statement.

    Attributes:
      path: A temporary directory.
      planned: The runs to try there: of the seeds of a method the first.
    """

    def __init__(self, runs: Sequence[PlannedRun]):
        """Plans the trials."""
        self._folder = tempfile.TemporaryDirectory(prefix="tff_reg-dry-run-")
        self.path = self._folder.name
        self._left: dict[str, list[PlannedRun]] = {}
        self._num_finished = sum(run.is_finished for run in runs)
        for run in runs:
            if not run.is_finished:
                self._left.setdefault(run.name.rpartition(", seed")[0], []).append(run)
        self.planned = [
            self._trial(number, name, each[0])
            for number, (name, each) in enumerate(self._left.items())
        ]

    def _trial(self, number: int, name: str, run: PlannedRun) -> PlannedRun:
        where = os.path.join(self.path, str(number))
        rounds = min(_ROUNDS, run.config.total_rounds)
        asked = dataclasses.replace(run.asked, total_rounds=rounds, output_dir=where)
        return plan_run(asked, name=f"{name}, tried")

    def __enter__(self) -> Forecast:
        return self

    def __exit__(self, *_: Any) -> None:
        self._folder.cleanup()

    def lines(self, jobs: int = 1) -> list[str]:
        """Returns a table of what each method's runs take, and their sum."""
        rows, seconds, disk = [], 0.0, 0.0
        for trial, (name, runs) in zip(self.planned, self._left.items()):
            there = directory.RunDirectory(trial.directory)
            text = (there.path / "metrics.csv").read_text("utf-8")
            per_round = metrics.MetricsTable.parse(text).column(metrics.SECONDS)[-1]
            rounds = sum(run.config.total_rounds for run in runs)
            sent = (there.config or {}).get(identity.TRAFFIC)
            clients = rounds * runs[0].config.clients_per_round
            files = (path for path in there.path.rglob("*") if path.is_file())
            size = len(runs) * sum(path.stat().st_size for path in files) / 1e6
            rows.append(
                {
                    "method": name,
                    "runs": str(len(runs)),
                    "rounds": str(rounds),
                    "s a round": f"{per_round:.2f}",
                    "time": progress.duration(rounds * per_round),
                    "MB sent and received": f"{clients * sum(sent) / 1e6:,.0f}"
                    if sent
                    else "-",
                    "MB on disk": f"{size:,.0f}",
                }
            )
            seconds, disk = seconds + rounds * per_round, disk + size
        there = sum(map(len, self._left.values()))
        total = (
            f"{progress.count(there, 'run')} to do, {self._num_finished} finished:"
            f" about {progress.duration(seconds / jobs)} with"
            f" {progress.count(jobs, 'job')}, without starts and tests, and"
            f" {disk:,.0f} MB on disk, without further states of clients."
        )
        if not rows:
            return [total]
        cells = {head: [row[head] for row in rows] for head in rows[0]}
        return [*tables.to_markdown(cells), "", total]
