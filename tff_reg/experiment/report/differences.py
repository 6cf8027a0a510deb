"""Paired differences between methods over common seeds, and what they prove.

Runs with the same seed have the same split, initial weights and cohorts, so methods are
compared seed by seed.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Optional

from tff_reg import scores
from tff_reg.lazy import np, scipy_special
from tff_reg.methods import catalogue
from tff_reg.settings import Setting, SettingError

BASELINE = Setting(
    "baseline",
    str,
    None,
    "method that the others are compared with, seed by seed; by default the first that"
    " is not local or central",
    placeholder="NAME",
)
# A method's mean difference to the baseline and its 95 % interval, the p value of the
# exact sign-flip test, Cohen's d, and the p value after Holm's procedure.
COLUMNS = ("seeds", "mean", "low", "high", "p", "effect_size", "p_holm")
# More seeds have too many sign patterns: there is no p then.
_MOST = 40
# Equal scores may differ by this share of the largest.
_ROUNDING = 1e-9
# Rounding in training changes a loss by this share of it.
_FLOAT32 = 1e-6

POOLED = (
    "Differences over all settings: mean over the settings' common seeds; p: exact"
    " two-sided sign-flip test of all these differences, taken as independent, adjusted"
    " by Holm."
)

Difference = dict[str, Optional[float]]


def baseline_of(
    given: Optional[str], names: Sequence[str], num_seeds: Optional[int] = None
) -> str:
    """Returns the baseline among the names of methods; a+b is b+a."""
    if given is None:
        return next((n for n in names if n not in catalogue.REFERENCES), names[0])
    known = {frozenset(name.split("+")): name for name in names}
    found = known.get(frozenset(given.split("+")))
    if found is None:
        reason = f"it is not among the compared methods ({', '.join(names)})."
        raise SettingError(BASELINE.name, given, reason)
    if num_seeds == 1:
        reason = "a difference takes two seeds; give seeds=2 or more."
        raise SettingError(BASELINE.name, given, reason)
    return found


def paired(first: Mapping[int, float], second: Mapping[int, float]) -> list[float]:
    """Returns the differences of values by seed, over the common seeds."""
    return [value - second[seed] for seed, value in first.items() if seed in second]


def are_equal(values: Collection[float]) -> bool:
    """Returns whether values of several seeds differ by rounding alone."""
    return max(values) - min(values) <= _FLOAT32 * max(map(abs, values))


def rounding(values: Iterable[float]) -> float:
    """Returns by how much equal ones of these values may differ."""
    return _ROUNDING * max(map(abs, values), default=0.0)


def interval(differences: Sequence[float], within: float) -> tuple[float, float]:
    """Returns the mean of two differences or more, and half its 95 % interval.

    Values that differ by no more than `within` are equal. Equal differences, such as
    one test example each, have no spread to judge by: their interval is infinite,
    unless they are 0.
    """
    count, mean = len(differences), statistics.fmean(differences)
    spread = statistics.stdev(differences)
    if spread <= within < abs(mean):
        return mean, math.inf
    quantile = float(scipy_special.stdtrit(count - 1, 0.975))
    return mean, quantile * spread / math.sqrt(count)


def sign_flip(differences: Sequence[float], within: float = 0.0) -> Optional[float]:
    """Returns the exact two-sided p value of the sign-flip test of differences.

    Sums that differ by no more than `within` are equal.
    """
    if len(differences) > _MOST:
        return None
    half = len(differences) // 2
    first, second = map(_sums, (differences[:half], differences[half:]))
    bound = abs(math.fsum(differences)) - max(within, rounding(differences))
    # As many sums are as far below 0.
    above = len(second) - np.searchsorted(np.sort(second), bound - first)
    return min(1.0, 2 * float(np.mean(above)) / len(second))


def _sums(values: Sequence[float]) -> Any:
    """Returns the sums of values with all patterns of signs."""
    sums = np.zeros(1)
    for value in values:
        sums = np.concatenate([sums - value, sums + value])
    return sums


def holm(values: Sequence[float]) -> list[float]:
    """Returns p values adjusted by Holm's procedure, in the given order."""
    order = sorted(range(len(values)), key=values.__getitem__)
    scaled = (min(1.0, (len(order) - k) * values[i]) for k, i in enumerate(order))
    adjusted = dict(zip(order, itertools.accumulate(scaled, max)))
    return [adjusted[index] for index in range(len(values))]


def to_baseline(
    groups: Mapping[str, Mapping[int, float]], baseline: str
) -> dict[str, Difference]:
    """Returns `COLUMNS` of groups of values by seed; of two common seeds or more."""
    found: dict[str, Difference] = {}
    for name, values in groups.items():
        own = paired(values, groups.get(baseline, {}))
        if name != baseline and len(own) > 1:
            within = rounding([*values.values(), *groups[baseline].values()])
            (mean, half), spread = interval(own, within), statistics.stdev(own)
            p = sign_flip(own, within)
            ends = (mean - half, mean + half, p, mean / (spread or 1))
            if spread <= within:
                ends = (None, None, p, None)
            found[name] = dict(zip(COLUMNS, (len(own), mean, *ends, None)))
    return adjusted(found)


def pooled(
    settings: Sequence[Mapping[str, Mapping[int, float]]], baseline: str
) -> dict[str, Difference]:
    """Returns `COLUMNS` of groups over all settings and seeds, without an interval.

    Each pair of a setting and a seed is one difference, taken as independent of the
    others. `settings` has the values by seed of each group; groups that a setting lacks
    have none.
    """
    found: dict[str, Difference] = {}
    for name in settings[0]:
        of_settings = [
            paired(groups.get(name, {}), groups.get(baseline, {}))
            for groups in settings
        ]
        own = [*itertools.chain(*of_settings)]
        if name != baseline and all(of_settings) and len(own) > 1:
            none = dict.fromkeys(COLUMNS)
            both = (each[n] for each in settings for n in (name, baseline))
            within = rounding([v for each in both for v in each.values()])
            mean, p = statistics.fmean(own), sign_flip(own, within)
            found[name] = {**none, "seeds": len(own), "mean": mean, "p": p}
    return adjusted(found)


def adjusted(found: dict[str, Difference]) -> dict[str, Difference]:
    """Adds the p values that Holm's procedure adjusts, and returns the differences."""
    tested = {name: each["p"] for name, each in found.items() if each["p"] is not None}
    for name, p in zip(tested, holm([*tested.values()])):
        found[name]["p_holm"] = p
    return found


def long_row(found: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the columns of a row of one quantity."""
    names = {"mean": "difference", **{n: n for n in ("low", "high", "p", "p_holm")}}
    return {name: found.get(key) for key, name in names.items()}


def are_best(
    rows: Sequence[Mapping[int, float]], choose: Callable[..., float]
) -> list[Optional[bool]]:
    """Returns which rows are the best, or not proven worse, down to the first that is.

    A row is proven worse if its 95 % intervals against the best, and all that equal it,
    exclude 0. None for rows without values, of which nothing is known.
    """
    means = [statistics.fmean(row.values()) if row else math.nan for row in rows]
    best = choose([mean for mean in means if not math.isnan(mean)], default=math.nan)
    within = rounding([value for row in rows for value in row.values()])
    equals = [row for row, mean in zip(rows, means) if abs(mean - best) <= within]

    def is_near(row: Mapping[int, float], other: Mapping[int, float]) -> bool:
        mean, half = interval(paired(row, other), within)
        return abs(mean) <= half + within

    near = [any(is_near(row, e) for e in equals) if row else None for row in rows]
    worse = [abs(m - best) for m, is_one in zip(means, near) if is_one is False]
    first = min(worse, default=math.inf) + within
    return [n and abs(m - best) <= first for m, n in zip(means, near)]


def row(found: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the columns of `table.csv`."""
    return {f"difference_{name}": found.get(name) for name in COLUMNS}


def cells(
    found: Mapping[str, Difference],
    names: Sequence[str],
    baseline: str,
    score: scores.Score,
) -> dict[str, list[str]]:
    """Returns the columns of `table.md` and `table.tex`; none without a difference."""
    if not found:
        return {}
    rows: list[Any] = [found.get(name, dict.fromkeys(COLUMNS)) for name in names]
    ps = ["-" if e["p_holm"] is None else f"{e['p_holm']:.2g}" for e in rows]
    points = [_points(score, e["mean"], e["low"], e["high"]) for e in rows]
    unit = " (points)" if score.is_share else ""
    return {f"difference to {baseline}{unit}": points, "p (Holm)": ps}


def _points(score: scores.Score, mean: Any, low: Any, high: Any) -> str:
    if mean is None:
        return "-"
    ends = [] if low is None else [low, high]
    mean, *ends = (score.scale * each for each in (mean, *ends))
    within = f" [{', '.join(f'{each:{score.form}}' for each in ends)}]" if ends else ""
    return f"{mean:+{score.form}}{within}".replace("-", "\N{MINUS SIGN}")


def in_words(found: Mapping[str, Difference], baseline: str) -> str:
    """Returns sentences on the columns of differences."""
    few = "two common seeds in which both have a finite score"
    if not found:
        return f"There is no difference to {baseline}, which takes {few}."
    tested = [each["seeds"] or 0 for each in found.values() if each["p"] is not None]
    said = f"There is no p over more than {_MOST} seeds."
    if tested:
        fewest = min(tested)
        said = (
            f"p: exact two-sided sign-flip test, which over {fewest:.0f} seeds is"
            f" at least {2 / 2**fewest:.2g}, adjusted by Holm (methods: {len(tested)})."
        )
    return (
        f"Differences to {baseline}: mean over the common seeds, with its 95 % interval"
        " by the paired t (none where all seeds differ by the same); none without"
        f" {few}. {said}"
    )
