"""The summary of a run: the numbers of `summary.json`, from those of `metrics.csv`.

The moving average and the rounds to a target are the protocol of Kim et al.,
"Multi-Level Branched Regularization for Federated Learning" (FedMLB), ICML 2022,
https://proceedings.mlr.press/v162/kim22a.html, captions of Tables 10 and 11: both are
taken from an exponential moving average with momentum 0.9 over rounds.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Optional

from tff_reg import scores
from tff_reg.experiment.config.run_config import RunConfig
from tff_reg.experiment.rounds import metrics, privacy, unequal_work
from tff_reg.settings import SUMMARY, settings_of

EMA_MOMENTUM = 0.9
_OF_SUMMARIES = {
    s.name: s.is_tuple for s in settings_of(RunConfig) if SUMMARY in s.tags
}
# Why a run ended early, `by` which callback, and its `total_rounds`; only in such a
# summary.
STOPPED_EARLY = "stopped_early"
_BY = "EarlyStopping"
# A loss that has grown by more than this factor has diverged, if to a finite number.
_DIVERGED = 100

# Losses that must be finite in the last round; an empty cell was not measured.
_MUST_BE_FINITE = (
    metrics.TRAINING_LOSS,
    metrics.EVALUATION_LOSS,
    metrics.ALL_CLIENTS_LOSS,
)


def moving_average(values: Sequence[float]) -> list[float]:
    """Computes a_t = m a_(t-1) + (1 - m) x_t, a_0 = x_0; NaN from the first NaN on."""
    averages: list[float] = []
    for value in values:
        if averages:
            value = EMA_MOMENTUM * averages[-1] + (1 - EMA_MOMENTUM) * value
        averages.append(value)
    return averages


def summarize(
    table: metrics.MetricsTable, settings: Mapping[str, Any]
) -> dict[str, Any]:
    """Computes `summary.json` from the rounds; `settings` are those of `config.json`.

    None stands for what was not measured, is not finite, or was not reached. Accuracies
    are 0 to 1; `ema` marks the moving average of the score, `all_clients` that of the
    mean of all clients' last models. `rejected_clients` counts updates that were left
    out.
    """
    rows, score = table.rows(), scores.of(settings)
    measured = _measured(rows, score.server)
    of_all = _measured(rows, score.all_clients)
    seconds = table.column(metrics.SECONDS)
    return {
        **_of_score(score, measured, of_all),
        "final_loss": _finite(rows[-1].get(metrics.EVALUATION_LOSS)),
        "final_training_loss": _finite(rows[-1].get(metrics.TRAINING_LOSS)),
        f"final_training_{score.name}": _finite(rows[-1].get(score.training)),
        "ends_finite": all(
            math.isfinite(rows[-1].get(name) or 0)
            for name in (*_MUST_BE_FINITE, score.server, score.all_clients)
        ),
        "rejected_clients": sum(map(metrics.rejected_clients, rows)),
        "rounds_without_training": sum(
            row.get(metrics.NUM_EXAMPLES) == 0 for row in rows
        ),
        "rounds": len(rows),
        "process": settings.get("process"),
        "task": settings.get("task"),
        "settings_from": settings.get("settings_from"),
        "seed": settings["seed"],
        # A sample_fn takes as many as it likes.
        "clients_per_round": (
            None if settings.get("sample_fn") else settings["clients_per_round"]
        ),
        "validation_share": settings.get("validation_share"),
        "score": score.name,
        "lower_is_better": score.lower_is_better,
        "training_seconds": round(sum(seconds), 3),
        "median_round_seconds": round(statistics.median(seconds), 3),
        **{name: rows[-1][name] for name in [metrics.GPU_MEMORY] if rows[-1].get(name)},
        **(
            {"simulated_seconds": sum(table.column(unequal_work.SECONDS))}
            if unequal_work.SECONDS in rows[-1]
            else {}
        ),
        **_on_demand(measured, of_all, settings),
        **{
            name: _finite(rows[-1][column])
            for name, column in metrics.CLIENT_COLUMNS.items()
            if column in rows[-1]
        },
        **_of_subsets(rows[-1]),
        **_privacy(settings, len(rows)),
        **_growth(table),
    }


def _growth(table: metrics.MetricsTable) -> dict[str, float]:
    """Returns the last loss over the first, if it tells that training diverged."""
    ratios = []
    for name in (metrics.TRAINING_LOSS, metrics.EVALUATION_LOSS):
        known = [each for each in table.column(name) if math.isfinite(each)]
        ratios += [known[-1] / known[0]] if known and known[0] > 0 else []
    grown = max(ratios, default=0.0)
    return {"loss_growth": grown} if grown > _DIVERGED else {}


# An evaluated round, its score and the moving average there.
_Measured = tuple[int, float, float]


def _of_score(
    score: scores.Score, measured: Sequence[_Measured], of_all: Sequence[_Measured]
) -> dict[str, Any]:
    name = score.name
    finite = [each for each in measured if math.isfinite(each[1])]
    best = max(finite, key=lambda each: (score.rank(each[1]), -each[0]), default=None)
    _, last, average = measured[-1] if measured else (0, None, None)
    _, last_of_all, average_of_all = of_all[-1] if of_all else (0, None, None)
    return {
        f"final_{name}": _finite(last),
        f"best_{name}": best[1] if best else None,
        "best_round": best[0] if best else None,
        f"ema_{name}": _finite(average),
        f"best_ema_{name}": _best(score, [each[2] for each in measured]),
        f"all_clients_{name}": _finite(last_of_all),
        f"best_all_clients_{name}": _best(score, [each[1] for each in of_all]),
        f"ema_all_clients_{name}": _finite(average_of_all),
    }


def _on_demand(
    measured: Sequence[_Measured],
    of_all: Sequence[_Measured],
    settings: Mapping[str, Any],
) -> dict[str, Any]:
    is_of_all = settings.get("target_model") == "all_clients"
    of_target = of_all if is_of_all else measured
    kind = 1 if settings.get("target_measure") == "raw" else 2
    score = scores.of(settings)
    return {
        "score_at_rounds": {
            str(asked): _measured_in(measured, asked, score.name)
            for asked in settings.get("score_at_rounds", ())
        },
        "rounds_to_target": {
            str(target): next(
                (m[0] for m in of_target if score.reaches(m[kind], target)), None
            )
            for target in settings.get("targets", ())
        },
    }


def _of_subsets(row: Mapping[str, Optional[float]]) -> dict[str, Any]:
    found = metrics.of_subsets(row)
    named = {name: _finite(value) for name, value in found.items()}
    return {"accuracy_of_subsets": named} if named else {}


def _privacy(settings: Mapping[str, Any], num_rounds: int) -> dict[str, Any]:
    if settings.get("aggregator") != "dp":
        return {}
    return {"privacy": privacy.summarize(settings, num_rounds)}


def _measured(
    rows: Sequence[Mapping[str, Optional[float]]], column: str
) -> list[_Measured]:
    """Returns the evaluated rounds, with the accuracy and its moving average."""
    found = [(int(row[metrics.ROUND] or 0), row.get(column)) for row in rows]
    known = [(number, value) for number, value in found if value is not None]
    averages = moving_average([value for _, value in known])
    return [(*each, average) for each, average in zip(known, averages)]


def _measured_in(
    measured: Sequence[_Measured], asked: int, name: str
) -> dict[str, Optional[float]]:
    found = {number: values for number, *values in measured}.get(asked, (None, None))
    return dict(zip((name, f"ema_{name}"), map(_finite, found)))


def _finite(value: Optional[float]) -> Optional[float]:
    return value if value is not None and math.isfinite(value) else None


def _best(score: scores.Score, values: Iterable[float]) -> Optional[float]:
    return score.best(filter(math.isfinite, values), default=None)


def why_end(table: metrics.MetricsTable, settings: Mapping[str, Any]) -> Optional[str]:
    """Returns why `stop_at_target` or `patience` end a run after a table's rounds."""
    rows, score = table.rows(), scores.of(settings)
    measured = _measured(rows, score.server)
    if settings.get("stop_at_target"):
        target = score.best(settings["targets"])
        of_all = _measured(rows, score.all_clients)
        found = _on_demand(measured, of_all, settings)["rounds_to_target"]
        if found[str(target)] is not None:
            return f"it has reached the target {score.name} {target:g}"
    if patience := settings.get("patience"):
        known = [(score.rank(v), -n) for n, v, _ in measured if not math.isnan(v)]
        if len(rows) + max(known, default=(0.0, 0))[1] >= patience:
            tested = metrics.tested(settings)
            return f"no better {tested} {score.name} in {patience} rounds"
    return None


def ends_itself(summary: Mapping[str, Any], config: Mapping[str, Any]) -> bool:
    """Returns whether early stopping may end a run, or has ended it."""
    by = (summary.get(STOPPED_EARLY) or {}).get("by")
    return bool(by == _BY or config.get("patience") or config.get("stop_at_target"))


def goes_on(
    stopped: Mapping[str, Any],
    table: metrics.MetricsTable,
    settings: Mapping[str, Any],
) -> bool:
    """Returns whether settings ask for more of a run that ended early."""
    if stopped.get("by") == _BY and ends_itself({}, settings):
        return why_end(table, settings) is None
    return settings["total_rounds"] > stopped["total_rounds"]


def of_finished_run(
    directory: Any, settings: Mapping[str, Any]
) -> Optional[dict[str, Any]]:
    """Returns the summary of a finished run, with the requested rounds and targets.

    None if fewer than `total_rounds` are done, or `metrics.csv` is damaged: the run is
    then done again from its last checkpoint.
    """
    if directory.config is None or not directory.is_finished(settings["total_rounds"]):
        return None
    stored = directory.summary()
    try:
        text = (directory.path / "metrics.csv").read_text("utf-8")
        table = metrics.MetricsTable.parse(text)
        summary = summarize(table, {**directory.config, **_wanted(settings)})
    except (OSError, ValueError, LookupError, TypeError):
        return None
    if summary["rounds"] != stored["rounds"]:
        return None
    if STOPPED_EARLY in stored:
        if goes_on(stored[STOPPED_EARLY], table, settings):
            return None
        summary[STOPPED_EARLY] = stored[STOPPED_EARLY]
    return summary


def _wanted(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the settings that only change a summary."""
    return {
        name: list(settings.get(name, ())) if is_list else settings[name]
        for name, is_list in _OF_SUMMARIES.items()
        if is_list or name in settings
    }


def refresh(directory: Any, settings: Mapping[str, Any]) -> Optional[dict[str, Any]]:
    """Returns the result of `of_finished_run`; updates `summary.json` if it differs."""
    summary = of_finished_run(directory, settings)
    if summary is not None and summary != directory.summary():
        directory.begin({**directory.config, **_wanted(settings)})
        try:
            directory.write_summary(summary)
        finally:
            directory.close()
    return summary
