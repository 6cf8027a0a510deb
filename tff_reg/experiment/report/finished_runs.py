"""A finished run read from the disk: its summary, its accuracies, its analyses.

Nothing is written to the run's directory.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Optional

from tff_reg import files, scores, tables
from tff_reg.data import sampling
from tff_reg.experiment.config import identity
from tff_reg.experiment.report import trained
from tff_reg.experiment.rounds import (
    description,
    directory as directory_lib,
    metrics,
    summary as summary_lib,
    unequal_work,
)
from tff_reg.methods import catalogue
from tff_reg.settings import Setting

# The weights of a run that are analysed.
WEIGHTS = Setting(
    "weights",
    str,
    "server",
    "model of the run: the server's, the mean of all clients' last models"
    " (all_clients), or the server's after its best round, of a run with keep_best"
    " (best)",
    choices=trained.WEIGHTS,
)
# The multiply-adds of a training step per example, in 10^6.
_STEP_PARTS = ("forward_mflops", "forward_rest_mflops", "backward_mflops")
_AGAIN = "let bin/analyze hessian measure it."


class ComparisonError(ValueError):
    """Raised when runs cannot be compared; says which and why."""


@dataclasses.dataclass(frozen=True)
class FinishedRun:
    """A finished run; its analyses are read when they are asked for.

    Attributes:
      path: Its directory.
      config: The values of its `config.json`.
      summary: The values of `summary.json`, with the requested rounds and targets.
      table: Its `metrics.csv`.
      weights: The analysed model, of `WEIGHTS`.
    """

    path: pathlib.Path
    config: Mapping[str, Any]
    summary: Mapping[str, Any]
    table: metrics.MetricsTable
    weights: str = WEIGHTS.default

    @functools.cached_property
    def score(self) -> scores.Score:
        """What its models are judged by."""
        return scores.of(self.config)

    def judged(self, kind: str) -> Optional[float]:
        """Returns its score of a kind, such as `final`."""
        return self.summary.get(f"{kind}_{self.score.name}")

    @functools.cached_property
    def tested(self) -> dict[int, float]:
        """The server model's test score by evaluated round; an accuracy is 0 to 1."""
        return self._by_round(self.score.server)

    @functools.cached_property
    def all_clients(self) -> dict[int, float]:
        """Test score of the mean of all clients' last models, by round."""
        return self._by_round(self.score.all_clients)

    def _by_round(self, column: str) -> dict[int, float]:
        values = zip(self._numbers, self.table.column(column))
        return {number: value for number, value in values if not math.isnan(value)}

    @property
    def _numbers(self) -> list[int]:
        return [int(number) for number in self.table.column(metrics.ROUND)]

    @functools.cached_property
    def examples(self) -> dict[int, float]:
        """Training examples per client that counted in a round, summed up by round.

        Empty if they are not known.
        """
        rows, config = self.table.rows(), self.config
        # With a sample_fn the number of clients per round is not known.
        is_counted = rows and metrics.NUM_EXAMPLES in rows[0]
        if not is_counted or config.get("sample_fn"):
            return {}
        of_rounds = self.table.column(metrics.NUM_EXAMPLES)
        kind, count = config.get("client_sampling", ""), config.get("num_clients", 0)
        cohort = sampling.mean_size(kind, config["clients_per_round"], count)
        pools = config.get("process") in catalogue.POOLED
        counted = [1 if pools else cohort] * len(rows)
        if unequal_work.COUNTED in rows[0]:  # Others dropped out, or were late.
            counted = self.table.column(unequal_work.COUNTED)
        totals = itertools.accumulate(n and n / c for n, c in zip(of_rounds, counted))
        return dict(zip(self._numbers, totals))

    def spent(self, what: str) -> dict[int, float]:
        """Returns by round what a client that takes part in every round has spent.

        `seconds` of all clients' rounds, `megabytes` received and sent, or 10^9
        `multiply_adds`; empty if it is not known.
        """
        if what == "seconds":
            seconds = itertools.accumulate(self.table.column(metrics.SECONDS))
            return dict(zip(self._numbers, seconds))
        if what == "megabytes":
            megabytes = sum(self.config.get(identity.TRAFFIC) or ()) / 1e6
            is_known = bool(self.config.get(identity.TRAFFIC))
            return {n: n * megabytes for n in self._numbers if is_known}
        step = self.cost(*_STEP_PARTS)
        return {number: n * step / 1e3 for number, n in self.examples.items()}

    def cost(self, *names: str) -> float:
        """Returns the sum of numbers of `cost.csv`."""
        table = analysis_folder(self.path, WEIGHTS.default) / "cost.csv"
        try:
            (row,) = tables.from_csv(table.read_text("utf-8"))
            return sum(float(row[name]) for name in names)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ComparisonError(
                f"{self.path} has no cost: let bin/analyze cost count it."
            ) from error

    def hessian(self, name: str, weights: str) -> Optional[float]:
        """Returns a number of `hessian.csv` at weights of `WEIGHTS`."""
        values, _ = self.measured(weights)
        if name not in values:
            raise ComparisonError(
                f"{self.path} was analysed without clients, so it has no {name}:"
                f" {_AGAIN}"
            )
        return values[name]

    def measured(
        self, weights: str
    ) -> tuple[dict[str, Optional[float]], dict[str, Any]]:
        """Returns the numbers of `hessian.csv` at weights, and their settings."""
        folder, rounds = analysis_folder(self.path, weights), self.summary["rounds"]
        try:
            made = files.read_json(folder / "hessian.json")["of"]
            rows = tables.from_csv((folder / "hessian.csv").read_text("utf-8"))
            values: dict[str, Optional[float]] = {
                row["quantity"]: float(row["value"]) if row["value"] else None
                for row in rows
            }
            round_num, settings = made["round_num"], dict(made["settings"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            what = "Hessian" if weights == WEIGHTS.default else f"Hessian of {weights}"
            raise ComparisonError(f"{self.path} has no {what}: {_AGAIN}") from error
        if round_num != rounds:
            raise ComparisonError(
                f"The Hessian of {self.path} is of round {round_num}, not {rounds}:"
                f" {_AGAIN}"
            )
        return values, settings

    @functools.cached_property
    def clients(self) -> list[dict[str, str]]:
        """The rows of `clients.csv`, one per client; empty without this file."""
        path = self.path / directory_lib.CLIENTS
        return tables.from_csv(path.read_text("utf-8")) if path.exists() else []

    def of_clients(self, name: str) -> list[float]:
        """Returns the numbers of a column of `clients.csv` that are known."""
        return [float(row[name]) for row in self.clients if row.get(name)]

    @property
    def ends_itself(self) -> bool:
        """Whether the run may end before its last round."""
        return summary_lib.ends_itself(self.summary, self.config)

    @property
    def ends_by_test_set(self) -> bool:
        """Whether test examples decide when it ends."""
        return self.ends_itself and metrics.tested(self.config) == metrics.TEST


def counts(group: Sequence[FinishedRun]) -> dict[str, int]:
    """Returns how often something went wrong in runs, by name."""
    of_clients = ("rejected_clients", "rounds_without_training")
    found = {n: sum(run.summary[n] for run in group) for n in of_clients}
    return {**found, "not_finite": sum(not r.summary["ends_finite"] for r in group)}


def troubles(groups: Mapping[str, Sequence[FinishedRun]]) -> Iterator[str]:
    """Yields notes on failed clients, idle rounds and diverged ends, by group."""
    for name, group in groups.items():
        grown = max(run.summary.get("loss_growth", 0) for run in group)
        if text := description.troubles({**counts(group), "loss_growth": grown}):
            yield f"{name}: {text}."


def warnings(runs: Sequence[FinishedRun]) -> Iterator[str]:
    """Yields what tables say of runs that ended by the test set, and the remarks."""
    if any(run.ends_by_test_set for run in runs):
        yield (
            "WARNING: the test set decided when runs end (patience or stop_at_target"
            " without validation_share), so their scores are too good."
        )
    remarks = [run.config.get(identity.REMARKS, ()) for run in runs]
    for text in dict.fromkeys(itertools.chain(*remarks)):
        yield f"{text[0].upper()}{text[1:]}."


def read(
    path: files.PathLike,
    wanted: Mapping[str, Any] = {},
    weights: str = WEIGHTS.default,
) -> FinishedRun:
    """Reads a finished run."""
    try:
        directory = directory_lib.RunDirectory(path)
    except directory_lib.DirectoryError as error:
        raise ComparisonError(f"{path} has no finished run.") from error
    summary = summary_lib.of_finished_run(directory, {"total_rounds": 1, **wanted})
    if summary is None:
        raise ComparisonError(f"{path} has no finished run.")
    text = (directory.path / "metrics.csv").read_text("utf-8")
    table = metrics.MetricsTable.parse(text)
    return FinishedRun(directory.path, directory.config or {}, summary, table, weights)


def analysis_folder(path: files.PathLike, weights: str) -> pathlib.Path:
    """Returns the directory of the analyses of a run's weights."""
    folder = pathlib.Path(path) / directory_lib.ANALYSIS
    return folder if weights == WEIGHTS.default else folder / weights
