"""Paired differences between methods over common seeds, and what they prove.

Runs with the same seed have the same split, initial weights and cohorts, so methods are
compared seed by seed.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Optional

from tff_reg.lazy import np, scipy_special
from tff_reg.settings import Setting, SettingError

BASELINE = Setting(
    "baseline",
    str,
    None,
    "method that the others are compared with, seed by seed; by default the first",
    placeholder="NAME",
)
# All sign patterns of more differences do not fit the memory.
_MOST = 40
# Equal accuracies may differ by it.
ROUNDING = 1e-9


@dataclasses.dataclass(frozen=True)
class Difference:
    """A method's mean difference to the baseline; as columns, those of `table.csv`."""

    seeds: int
    mean: float
    # Its 95 % interval.
    low: Optional[float]
    high: Optional[float]
    # Of the exact sign-flip test; None for more than 40 seeds.
    p: Optional[float]
    # Cohen's d of the paired differences; None if they are all equal.
    effect_size: Optional[float]
    p_holm: Optional[float] = None


def baseline_of(
    given: Optional[str], names: Sequence[str], num_seeds: Optional[int] = None
) -> str:
    """Returns the baseline among the names of methods; a+b is b+a."""
    known = {frozenset(name.split("+")): name for name in names}
    found = names[0] if given is None else known.get(frozenset(given.split("+")))
    if found is None:
        reason = f"it is not among the compared methods ({', '.join(names)})."
        raise SettingError(BASELINE.name, given, reason)
    if given is not None and num_seeds == 1:
        reason = "a difference takes two seeds; give seeds=2 or more."
        raise SettingError(BASELINE.name, given, reason)
    return found


def paired(first: Mapping[int, float], second: Mapping[int, float]) -> list[float]:
    """Returns the differences of values by seed, over the common seeds."""
    return [value - second[seed] for seed, value in first.items() if seed in second]


def interval(differences: Sequence[float]) -> tuple[float, float]:
    """Returns the mean of two differences or more, and half its 95 % interval.

    Equal differences, such as one test example each, have no spread to judge by: their
    interval is infinite, unless they are 0.
    """
    count, mean = len(differences), statistics.fmean(differences)
    spread = statistics.stdev(differences)
    if spread <= ROUNDING < abs(mean):
        return mean, math.inf
    quantile = float(scipy_special.stdtrit(count - 1, 0.975))
    return mean, quantile * spread / math.sqrt(count)


def sign_flip(differences: Sequence[float]) -> Optional[float]:
    """Returns the exact two-sided p value over all sign patterns of the differences."""
    if len(differences) > _MOST:
        return None
    least = abs(math.fsum(differences)) - ROUNDING
    if least <= 0:
        return 1.0
    # Each pattern's sum is one of the first half's and one of the second half's.
    middle = len(differences) // 2
    first, second = map(_sums, (differences[:middle], differences[middle:]))
    below = np.searchsorted(np.sort(second), least - first).sum()
    return float(2 * (first.size * second.size - below) / 2 ** len(differences))


def _sums(values: Sequence[float]) -> Any:
    """Returns the sums of values for all patterns of signs."""
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
    """Returns differences of groups of values by seed; of two common seeds or more."""
    found = {}
    for name, values in groups.items():
        differences = paired(values, groups.get(baseline, {}))
        if name != baseline and len(differences) > 1:
            (mean, half), spread = interval(differences), statistics.stdev(differences)
            found[name] = Difference(
                *(len(differences), mean),
                *((mean - half, mean + half) if spread > ROUNDING else (None, None)),
                p=sign_flip(differences),
                effect_size=mean / spread if spread > ROUNDING else None,
            )
    tested = {name: each.p for name, each in found.items() if each.p is not None}
    for name, p_holm in zip(tested, holm([*tested.values()])):
        found[name] = dataclasses.replace(found[name], p_holm=p_holm)
    return found


def are_best(
    rows: Sequence[Mapping[int, float]], choose: Callable[..., float]
) -> list[Optional[bool]]:
    """Returns which rows' 95 % intervals against the best, or one of equals, have 0.

    None for rows without values, of which nothing is known.
    """
    means = [statistics.fmean(row.values()) if row else math.nan for row in rows]
    best = choose([mean for mean in means if not math.isnan(mean)], default=math.nan)
    equals = [row for row, mean in zip(rows, means) if abs(mean - best) <= ROUNDING]

    def is_near(row: Mapping[int, float], other: Mapping[int, float]) -> bool:
        mean, half = interval(paired(row, other))
        return abs(mean) <= half + ROUNDING

    return [any(is_near(row, e) for e in equals) if row else None for row in rows]


def row(found: Optional[Difference]) -> dict[str, Any]:
    """Returns the columns of `table.csv`."""
    names = [each.name for each in dataclasses.fields(Difference)]
    return {f"difference_{name}": getattr(found, name, None) for name in names}


def cells(
    found: Mapping[str, Difference], names: Sequence[str], baseline: str
) -> dict[str, list[str]]:
    """Returns the columns of `table.md` and `table.tex`; none without a difference."""
    rows = [found.get(name) for name in names]
    if not found:
        return {}
    return {
        f"difference to {baseline} (points)": [_points(each) for each in rows],
        "p (Holm)": [
            "-" if each is None or each.p_holm is None else f"{each.p_holm:.2g}"
            for each in rows
        ],
    }


def _points(found: Optional[Difference]) -> str:
    if found is None:
        return "-"
    text = f"{100 * found.mean:+.2f}"
    if found.low is not None and found.high is not None:
        text += f" [{100 * found.low:.2f}, {100 * found.high:.2f}]"
    return text.replace("-", "\N{MINUS SIGN}")


def in_words(
    found: Mapping[str, Difference], names: Sequence[str], baseline: str
) -> str:
    """Returns sentences on the columns of differences and the rows without one."""
    texts = []
    lacking = [name for name in names if name != baseline and name not in found]
    if found:
        counts = sorted({each.seeds for each in found.values()})
        texts.append(
            f"Differences to {baseline}: mean over {' or '.join(map(str, counts))}"
            " common seeds and its 95 % interval by the paired t (none where all seeds"
            " differ by the same)."
        )
        if tested := [each.seeds for each in found.values() if each.p is not None]:
            texts.append(
                f"p: exact two-sided sign-flip test, which over {min(tested)} seeds is"
                f" at least {2 / 2 ** min(tested):.2g}, times Holm's factor for"
                f" {len(tested)} method{'s' * (len(tested) > 1)}."
            )
    if lacking:
        of = f" of {', '.join(lacking)}" if found else ""
        texts.append(
            f"There is no difference{of} to {baseline}, which takes two common seeds"
            " with finite accuracies."
        )
    return " ".join(texts)
