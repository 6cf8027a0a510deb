"""A finished run read from the disk: its summary, its accuracies, its analyses.

Nothing is written to the run's directory.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Optional

from tff_reg import files, tables
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
from tff_reg.settings import Setting

# Quantities of `hessian.csv`, with their headings in a table: of the analysed weights,
FLATNESS_COLUMNS = {"lambda_max": "lambda_max (in magnitude)", "trace": "H_T"}
# and of the clients' models after one more round of training from the server's.
CLIENTS_COLUMNS = {
    "h_n": "H_N",
    "h_d": "H_D",
    "h_n_code": "H_N (code)",
    "h_d_code": "H_D (code)",
    "drift": "drift",
    "drift_agreement": "drift cosine",
    "gradient_agreement": "gradient cosine",
}
HESSIAN_COLUMNS = {**FLATNESS_COLUMNS, **CLIENTS_COLUMNS}
# Columns from `cost.csv`, with their headings and their names in that file.
COST_COLUMNS = {
    "mflops": ("MFLOPs", "forward_mflops"),
    "rest_mflops": ("other MFLOPs", "forward_rest_mflops"),
    "params": ("params (M)", "stored_params_m"),
}
# The cost to a target accuracy: headings.
TARGET_COLUMNS = {
    "rounds": "rounds",
    "megabytes": "MB",
    "seconds": "s",
    "multiply_adds": "10^9 multiply-adds",
}
# Columns that need `cost.csv`.
OF_COST = (*COST_COLUMNS, "multiply_adds")
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
# Key among the results of a run's analyses: the settings of the Hessians, by weights.
HOW = "settings"
# Key: the multiply-adds of a training step per example, in 10^6.
STEP = "step"
_STEP_PARTS = ("forward_mflops", "forward_rest_mflops", "backward_mflops")
# Settings that may be larger in an analysis than required.
_AT_LEAST = ("eigenvalues", "density_samples", "clients")


class ComparisonError(ValueError):
    """Raised when runs cannot be compared; says which and why."""


@dataclasses.dataclass(frozen=True)
class Run:
    """A finished run.

    Attributes:
      path: Its directory.
      config: The values of its `config.json`.
      summary: The values of `summary.json`, with the requested rounds and targets.
      accuracies: Test accuracy (0 to 1) by evaluated round.
      all_clients: Test accuracy of the mean of all clients' last models, by round.
      costs: By round, what a client that takes part in every round has spent: `seconds`
        of all clients' rounds, `megabytes` received and sent, 10^9 `multiply_adds`; of
        those that are known.
      examples: Training examples per client that counted in a round, accumulated since
        the first round, by round; empty if they are not known.
      analyses: The requested results of the run's analyses, by column.
    """

    path: pathlib.Path
    config: Mapping[str, Any]
    summary: Mapping[str, Any]
    accuracies: Mapping[int, float]
    all_clients: Mapping[int, float]
    costs: Mapping[str, Mapping[int, float]]
    examples: Mapping[int, float]
    analyses: Mapping[str, Any]

    @property
    def ends_itself(self) -> bool:
        """Whether the run may end before its last round."""
        return summary_lib.ends_itself(self.summary, self.config)

    @property
    def ends_by_test_set(self) -> bool:
        """Whether test examples decide when it ends."""
        return self.ends_itself and self.config.get("validation_share") is None


def counts(group: Sequence[Run]) -> dict[str, int]:
    """Returns how often something went wrong in runs, by name."""
    of_clients = ("rejected_clients", "rounds_without_training")
    found = {n: sum(run.summary[n] for run in group) for n in of_clients}
    return {**found, "not_finite": sum(not r.summary["ends_finite"] for r in group)}


def troubles(groups: Mapping[str, Sequence[Run]]) -> Iterator[str]:
    """Yields notes on failed clients, idle rounds and diverged ends, by group."""
    for name, group in groups.items():
        grown = max(run.summary.get("loss_growth", 0) for run in group)
        if text := description.troubles({**counts(group), "loss_growth": grown}):
            yield f"{name}: {text}."


def warnings(runs: Sequence[Run]) -> Iterator[str]:
    """Yields what tables say of runs that ended by the test set, and the remarks."""
    if any(run.ends_by_test_set for run in runs):
        yield (
            "WARNING: the test set decided when runs end (patience or stop_at_target"
            " without validation_share), so their accuracies are too high."
        )
    remarks = [run.config.get(identity.REMARKS, ()) for run in runs]
    for text in dict.fromkeys(itertools.chain(*remarks)):
        yield f"{text[0].upper()}{text[1:]}."


def read(
    path: files.PathLike,
    wanted: Mapping[str, Any] = {},
    columns: Sequence[str] = (),
    weights: str = WEIGHTS.default,
) -> Run:
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
    config = directory.config or {}
    examples = _examples(table, config)
    analyses = _analyses(directory.path, summary["rounds"], columns, weights)
    return Run(
        path=directory.path,
        config=config,
        summary=summary,
        accuracies=_by_round(table, metrics.EVALUATION_ACCURACY),
        all_clients=_by_round(table, metrics.ALL_CLIENTS_ACCURACY),
        costs=_costs(table, config, examples, analyses.get(STEP)),
        examples=examples,
        analyses=analyses,
    )


def is_analysed(
    path: files.PathLike,
    columns: Sequence[str],
    weights: str = WEIGHTS.default,
    settings: Mapping[str, Any] = {},
) -> bool:
    """Returns whether a finished run's analyses have the results that columns need."""
    try:
        made = read(path, {}, columns, weights).analyses.get(HOW, {}).get(weights, {})
        return all(
            made.get(name, value) >= value
            if name in _AT_LEAST
            else made.get(name, value) == value
            for name, value in settings.items()
        )
    except ComparisonError:
        return False


def analysis_folder(path: files.PathLike, weights: str) -> pathlib.Path:
    """Returns the directory of the analyses of a run's weights."""
    folder = pathlib.Path(path) / directory_lib.ANALYSIS
    return folder if weights == WEIGHTS.default else folder / weights


def _by_round(table: metrics.MetricsTable, column: str) -> dict[int, float]:
    values = zip(table.column(metrics.ROUND), table.column(column))
    return {int(number): value for number, value in values if not math.isnan(value)}


def _examples(
    table: metrics.MetricsTable, config: Mapping[str, Any]
) -> dict[int, float]:
    rows = table.rows()
    # With a sample_fn the number of clients per round is not known.
    is_counted = rows and metrics.NUM_EXAMPLES in rows[0]
    if not is_counted or config.get("sample_fn"):
        return {}
    of_rounds = table.column(metrics.NUM_EXAMPLES)
    cohort = config["clients_per_round"]
    if config.get("process") == "central":
        cohort = 1
    elif config.get("client_sampling") == "independent":
        cohort = sampling.mean_size(cohort, config["num_clients"])
    counted = [cohort] * len(rows)
    if unequal_work.COUNTED in rows[0]:  # Others dropped out, or were late.
        counted = table.column(unequal_work.COUNTED)
    totals = itertools.accumulate(n and n / c for n, c in zip(of_rounds, counted))
    return {int(r): total for r, total in zip(table.column(metrics.ROUND), totals)}


def _costs(
    table: metrics.MetricsTable,
    config: Mapping[str, Any],
    examples: Mapping[int, float],
    step: Optional[float],
) -> dict[str, dict[int, float]]:
    rounds = [int(number) for number in table.column(metrics.ROUND)]
    seconds = itertools.accumulate(table.column(metrics.SECONDS))
    found = {"seconds": dict(zip(rounds, seconds))}
    if config.get(identity.TRAFFIC):
        megabytes = sum(config[identity.TRAFFIC]) / 1e6
        found["megabytes"] = {number: number * megabytes for number in rounds}
    if examples and step is not None:
        of_rounds = {number: n * step / 1e3 for number, n in examples.items()}
        found["multiply_adds"] = of_rounds
    return found


def _analyses(
    path: pathlib.Path, rounds: int, columns: Sequence[str], weights: str
) -> dict[str, Any]:
    """Returns columns from a run's analyses, and the analyses' settings."""
    found: dict[str, Any] = {}
    for kind, of_weights in (
        (CLIENTS_COLUMNS, WEIGHTS.default),
        (FLATNESS_COLUMNS, weights),
    ):
        asked = [name for name in columns if name in kind]
        if asked:
            values, settings = _from_hessian(path, of_weights, rounds, asked)
            found.update(values)
            found.setdefault(HOW, {})[of_weights] = settings
    asked = [name for name in columns if name in COST_COLUMNS]
    if asked or "multiply_adds" in columns:
        table = analysis_folder(path, WEIGHTS.default) / "cost.csv"
        try:
            (row,) = tables.from_csv(table.read_text("utf-8"))
            found.update((name, float(row[COST_COLUMNS[name][1]])) for name in asked)
            found[STEP] = sum(float(row[name]) for name in _STEP_PARTS)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ComparisonError(
                f"{path} has no cost: let bin/analyze cost count it."
            ) from error
    return found


def _from_hessian(
    path: pathlib.Path, weights: str, rounds: int, asked: Sequence[str]
) -> tuple[dict[str, Any], dict[str, Any]]:
    again = "let bin/analyze hessian measure it."
    folder = analysis_folder(path, weights)
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
        raise ComparisonError(f"{path} has no {what}: {again}") from error
    if round_num != rounds:
        raise ComparisonError(
            f"The Hessian of {path} is of round {round_num}, not {rounds}: {again}"
        )
    for name in asked:
        if name not in values:
            raise ComparisonError(
                f"{path} was analysed without clients, so it has no {name}: {again}"
            )
    return {name: values[name] for name in asked}, settings
