"""What runs will take: time, memory, traffic and disk, from two rounds of each method.

The memory is the largest that a process had in the two rounds: later rounds add the
states of clients, if these have any and are kept in memory.
"""

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
        asked = dataclasses.replace(
            run.asked,
            total_rounds=rounds,
            output_dir=where,
            stop_at_target=False,
            patience=None,
        )
        return plan_run(asked, name=f"{name}, tried")

    def __enter__(self) -> Forecast:
        return self

    def __exit__(self, *_: Any) -> None:
        self._folder.cleanup()

    def lines(self, jobs: int = 1) -> list[str]:
        """Returns a table of what each method's runs take, and their sum."""
        cells: dict[str, list[str]] = {}
        seconds = disk = memory = 0.0
        for trial, (name, runs) in zip(self.planned, self._left.items()):
            there = directory.RunDirectory(trial.directory)
            text = (there.path / "metrics.csv").read_text("utf-8")
            table = metrics.MetricsTable.parse(text)
            per_round = table.column(metrics.SECONDS)[-1]
            megabytes = table.column(metrics.MEMORY)[-1]
            rounds = sum(run.config.total_rounds for run in runs)
            clients = rounds * runs[0].config.clients_per_round
            sent = clients * sum((there.config or {}).get(identity.TRAFFIC) or ())
            files = (path for path in there.path.rglob("*") if path.is_file())
            size = len(runs) * sum(path.stat().st_size for path in files) / 1e6
            seconds, disk = seconds + rounds * per_round, disk + size
            memory = max(memory, megabytes)
            for head, text in {
                "method": name,
                "runs": str(len(runs)),
                "rounds": str(rounds),
                "s a round": f"{per_round:.2f}",
                "time": progress.duration(rounds * per_round),
                "MB of memory": f"{megabytes:,.0f}",
                "MB sent and received": f"{sent / 1e6:,.0f}" if sent else "-",
                "MB on disk": f"{size:,.0f}",
            }.items():
                cells.setdefault(head, []).append(text)
        there = progress.count(sum(map(len, self._left.values())), "run")
        total = (
            f"{there} to do, {self._num_finished} finished: about"
            f" {progress.duration(seconds / jobs)} and {jobs * memory / 1000:.1f} GB of"
            f" memory with {progress.count(jobs, 'job')}, without starts and tests, and"
            f" {disk:,.0f} MB on disk, without further states of clients."
        )
        return [*tables.to_markdown(cells), "", total] if cells else [total]
