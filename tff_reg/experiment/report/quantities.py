"""The quantities of finished runs: an entry of `TABLE` is all that tables need.

The flag `--columns`, the checks before runs start, the analyses of finished runs, the
tables of comparisons and those of papers read nothing else. Deviations are sample
deviations (n - 1) over seeds; one seed has none.
"""

from __future__ import annotations

import dataclasses
import functools
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Optional

from tff_reg import scores
from tff_reg.experiment.report.finished_runs import (
    WEIGHTS,
    ComparisonError,
    FinishedRun,
    read,
)
from tff_reg.experiment.rounds import metrics, summary as summary_lib
from tff_reg.methods import catalogue
from tff_reg.settings import Setting, SettingError

# The analyses that a quantity may need of runs: the server's Hessian and the clients'
# after one more round, the Hessian at the chosen weights, and the cost of a step.
OF_CLIENTS, HESSIAN, COST = ANALYSES = ("hessian of clients", "hessian", "cost")
# Settings that may be larger in an analysis than required.
_AT_LEAST = ("eigenvalues", "density_samples", "clients")


# The processes whose runs do not have an analysis.
_LACKING = {
    HESSIAN: lambda process: not catalogue.shares_model(process),
    OF_CLIENTS: lambda process: (
        process in catalogue.REFERENCES or not catalogue.shares_model(process)
    ),
}


@dataclasses.dataclass(frozen=True)
class Quantity:
    """A number of a finished run, and how tables show it.

    Attributes:
      name: Its name in `--columns` and in papers' tables. One that ends in @ is that at
        a round, or to a target.
      head: Its heading; `{}` stands for the round, or for the target.
      read: Returns it from a run, and the round or target if its name has an @; None if
        there is none. Raises a `ComparisonError` if an analysis is missing.
      key: Its name in `table.csv`, by default `name`.
      scale: Factor of the numbers for people, such as 100 for percent.
      form: Format of means.
      spread: Format of deviations; empty if they are not shown.
      best: `max` or `min`: which rows are in bold; None for none.
      measured_by: What it takes: a setting, or one of `ANALYSES`; empty for nothing.
      rounds: The number of evaluated rounds that it takes.
      note: The sentences below tables that have it; of an analysis, with `{}` for the
        analysed model.
      place: The round or target of one that has it, see `at`.
      is_usual: Whether tables have it by default, beside score and EMA, if runs
        measured it.
      is_score: Whether it is a score of the runs', see `judged`.
    """

    name: str
    head: str
    read: Callable[..., Optional[float]]
    key: str = ""
    scale: float = 1
    form: str = ".2f"
    spread: str = ".2f"
    best: Any = None
    measured_by: str = ""
    rounds: int = 1
    note: str = ""
    is_usual: bool = False
    place: Any = None
    is_score: bool = False

    def __post_init__(self):
        object.__setattr__(self, "key", self.key or self.name.replace("@", "_to_{}"))

    def judged_by(self, score: scores.Score) -> Quantity:
        """Returns it of runs with a score: that of the placeholders in head and key."""
        target = "{} %" if score.is_share else "{}"
        texts = {"{score}": score.name, "{unit}": score.unit, "{target}": target}
        head, key = self.head, self.key
        for name, text in texts.items():
            head, key = head.replace(name, text), key.replace(name, text)
        found = dataclasses.replace(self, head=head, key=key)
        if not self.is_score:
            return found
        how: Any = {"best": self.best and score.best, "scale": score.scale}
        if not score.is_share:
            how |= {"form": ".4g", "spread": ".2g"}
        return dataclasses.replace(found, **how)

    def at(self, place: float, scale: float = 1) -> Quantity:
        """Returns the quantity at a round, or to a target, which people read scaled."""
        return dataclasses.replace(
            self,
            head=self.head.format(f"{scale * place:g}"),
            key=self.key.format(place),
            read=functools.partial(self.read, at=place),
            place=place,
        )

    def for_people(self, run: FinishedRun) -> Optional[float]:
        """Returns it from a run, in the units of tables for people."""
        found = self.read(run)
        return None if found is None else self.scale * found

    def text(self, values: Sequence[Optional[float]], otherwise: str = "-") -> str:
        """Returns a cell for people: mean and deviation of values by seed."""
        found, spread = mean(values), deviation(values)
        if found is None:
            return otherwise
        text = f"{self.scale * found:{self.form}}"
        if spread is None or not self.spread:
            return text
        return f"{text} ± {self.scale * spread:{self.spread}}"


def mean(values: Sequence[Optional[float]]) -> Optional[float]:
    """Returns the mean; None if one of the values is None."""
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if len(known) == len(values) else None


def deviation(values: Sequence[Optional[float]]) -> Optional[float]:
    """Returns the sample deviation (n - 1); None for one value, or if one is None."""
    known = [value for value in values if value is not None]
    is_whole = len(known) == len(values) >= 2
    return statistics.stdev(known) if is_whole else None


def span(numbers: Sequence[int]) -> str:
    """Returns the range of numbers, such as `2 to 4`."""
    low, high = min(numbers), max(numbers)
    return str(low) if low == high else f"{low} to {high}"


def _said(key: str) -> Callable[[FinishedRun], Optional[float]]:
    return lambda run: run.summary.get(key)


def _spent(what: str) -> Callable[..., Optional[float]]:
    return lambda run, at=None: run.spent(what).get(_rounds_to(run, at))


def _last_five(run: FinishedRun) -> Optional[float]:
    # None if they are fewer, or the last one is not finite.
    last = [*run.tested.values()][-5:]
    is_known = len(last) == 5 and run.judged("final") is not None
    return statistics.fmean(last) if is_known else None


def _rounds_to(run: FinishedRun, at: Optional[float] = None) -> Any:
    return run.summary["rounds_to_target"].get(str(at))


def _curvature(name: str, head: str, measured_by: str = OF_CLIENTS) -> Quantity:
    def read(run: FinishedRun) -> Optional[float]:
        of_clients = measured_by == OF_CLIENTS
        return run.hessian(name, WEIGHTS.default if of_clients else run.weights)

    return _number(
        name, head, read, form=".3g", measured_by=measured_by, note=_CURVATURE
    )


def _cost(name: str, head: str, of: str, form: str) -> Quantity:
    def read(run: FinishedRun) -> float:
        return run.cost(of)

    return Quantity(
        name, head, read, form=form, spread="", measured_by=COST, note=_COST
    )


_share = functools.partial(Quantity, scale=100, best=max)
_score = functools.partial(_share, is_score=True)
_number = functools.partial(Quantity, form=".4g", spread=".2g")
_CLIENTS = (
    "Clients: their accuracies with the global model, or with their own where they keep"
    " weights; finetuned: with copies that they trained further; weighted: by their"
    " examples; worst tenth: mean of the lowest tenth; deviation: over the clients."
)
_CURVATURE = (
    "Of the Hessian of the loss on training examples: largest eigenvalue and trace at"
    " {}, and how the clients' differ."
)
_COST = (
    "MFLOPs: multiply-adds of layers in the forward passes of a training step, an"
    " example; other MFLOPs: of what is no layer; params: weights that a client stores."
)
_USUAL = ("clients_mean", "clients_worst_tenth", "finetuned_mean")
_TABLE = (
    _score("score", "{score}{unit}", lambda run: run.judged("final"), key="{score}"),
    _score(
        "best",
        "best{unit}",
        lambda run: run.judged("best"),
        key="best_{score}",
        best=None,  # The best over rounds chose among them by the test examples.
        note="Best: that of all rounds, which the tested examples choose.",
    ),
    _score(
        "ema",
        "EMA{unit}",
        lambda run: run.judged("ema"),
        key="ema_{score}",
        note="EMA: exponential moving average with momentum"
        f" {summary_lib.EMA_MOMENTUM} over the evaluated rounds.",
    ),
    _score(
        "last_five",
        "last five{unit}",
        _last_five,
        key="last_five_{score}",
        rounds=5,
        note="Last five: mean over the last five evaluated rounds.",
    ),
    _score(
        "ema@",
        "EMA at {}{unit}",
        lambda run, at: run.summary["score_at_rounds"][str(at)][
            f"ema_{run.score.name}"
        ],
        key="ema_{score}_at_{}",
    ),
    _score(
        "all_clients",
        "all clients{unit}",
        lambda run: run.judged("all_clients"),
        key="all_clients_{score}",
        note="All clients: that of the mean of all clients' last models.",
        is_usual=True,
    ),
    *(
        _share(
            f"{kind}_{measure}",
            f"{kind}: {measure.replace('_', ' ')} (%)",
            _said(f"{kind}_{measure}"),
            best=None if measure.endswith("deviation") else max,
            measured_by=setting,
            note=_CLIENTS,
            is_usual=f"{kind}_{measure}" in _USUAL,
        )
        for kind, setting in metrics.CLIENT_KINDS.items()
        for measure in metrics.CLIENT_MEASURES
    ),
    _curvature("lambda_max", "lambda_max (in magnitude)", HESSIAN),
    _curvature("trace", "H_T", HESSIAN),
    _curvature("h_n", "H_N"),
    _curvature("h_d", "H_D"),
    _curvature("h_n_code", "H_N (code)"),
    _curvature("h_d_code", "H_D (code)"),
    _curvature("drift", "drift"),
    _curvature("drift_agreement", "drift cosine"),
    _curvature("gradient_agreement", "gradient cosine"),
    _cost("mflops", "MFLOPs", "forward_mflops", ".1f"),
    _cost("rest_mflops", "other MFLOPs", "forward_rest_mflops", ".3f"),
    _cost("params", "params (M)", "stored_params_m", ".2f"),
    _number("rounds@", "rounds to {target}", _rounds_to, form=".1f", best=min),
    _number("megabytes@", "MB to {target}", _spent("megabytes")),
    Quantity(
        "seconds",
        "s a round",
        _said("median_round_seconds"),
        key="seconds_per_round",
        spread="",
    ),
    _number("seconds@", "s to {target}", _spent("seconds")),
    _number(
        "multiply_adds@",
        "10^9 multiply-adds to {target}",
        _spent("multiply_adds"),
        measured_by=COST,
    ),
)
TABLE = {each.name: each for each in _TABLE}
TO_TARGET = [each.name for each in _TABLE if each.key.endswith("_to_{}")]
_NAMES = tuple(dict.fromkeys(name.removesuffix("@") for name in TABLE))
COLUMNS = Setting(
    "columns",
    str,
    (),
    "columns of table.md, as of FedAlign's Tables 1 and 5; rounds, megabytes, seconds"
    " and multiply_adds are those to targets; runs are analysed if they are"
    " not yet",
    is_tuple=True,
    choices=_NAMES,
)


@functools.cache
def judged(score: scores.Score) -> dict[str, Quantity]:
    """Returns `TABLE` for runs with a score."""
    return {name: each.judged_by(score) for name, each in TABLE.items()}


def of(column: str, table: Mapping[str, Quantity] = TABLE) -> Quantity:
    """Returns the quantity of a column: that to a target if there is no other."""
    return table.get(column) or table[f"{column}@"]


def measured(columns: Sequence[str], *by: str) -> list[str]:
    """Returns the columns that need one of some analyses, in their order."""
    return [name for name in columns if of(name).measured_by in by]


def check(columns: Sequence[str], targets: Sequence[float] = ()) -> list[str]:
    """Checks the names of columns, and returns each once.

    Columns of rounds or costs to a score need `targets`.
    """
    COLUMNS.check(tuple(columns))
    lacking = [name for name in columns if name not in TABLE]
    if lacking and not targets:
        why = f"{lacking[0]} is that to a score: give targets."
        raise SettingError("columns", tuple(columns), why)
    return list(dict.fromkeys(columns))


def check_measured(columns: Sequence[str], configs: Sequence[Any]) -> None:
    """Checks that planned runs will have what columns need."""
    methods = [each for each in configs if each.process not in catalogue.REFERENCES]
    processes = dict.fromkeys(each.process for each in configs)
    for name in columns:
        by, least = of(name).measured_by, of(name).rounds
        if any(
            c.total_rounds <= (least - 1) * c.rounds_per_evaluation for c in methods
        ):
            why = f"the runs need {least} evaluated rounds for it."
            raise SettingError("columns", name, why)
        is_setting = by and by not in ANALYSES
        if is_setting and any(getattr(each, by) is None for each in methods):
            raise SettingError("columns", name, f"the runs need {by} for it.")
        for process in processes:
            if by in _LACKING and _LACKING[by](process):
                raise SettingError("columns", name, f"runs of {process} have none.")


def how_measured(run: FinishedRun, columns: Sequence[str]) -> dict[str, Any]:
    """Returns the settings of the Hessians that columns need, by weights."""
    weights = {HESSIAN: run.weights, OF_CLIENTS: WEIGHTS.default}
    asked = {weights.get(of(name).measured_by) for name in columns}
    return {each: run.measured(each)[1] for each in asked if each}


def is_analysed(
    path: Any,
    columns: Sequence[str],
    weights: str = WEIGHTS.default,
    settings: Mapping[str, Any] = {},
) -> bool:
    """Returns whether a finished run's analyses have the results that columns need."""
    try:
        run = read(path, weights=weights)
        for name in columns:
            of(name).read(run)
        made = how_measured(run, columns).get(weights, {})
    except ComparisonError:
        return False
    return all(
        made.get(name, value) >= value
        if name in _AT_LEAST
        else made.get(name, value) == value
        for name, value in settings.items()
    )
