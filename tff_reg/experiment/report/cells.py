"""Cells of a comparison's tables: means and deviations over seeds, in words.

Deviations are sample deviations (n - 1); one seed has none.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any, Optional

Row = Mapping[str, Any]


def mean(values: Sequence[Optional[float]]) -> Optional[float]:
    """Returns the mean; None if one of the values is None."""
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if len(known) == len(values) else None


def deviation(values: Sequence[Optional[float]]) -> Optional[float]:
    """Returns the sample deviation (n - 1); None for one value, or if one is None."""
    known = [value for value in values if value is not None]
    is_whole = len(known) == len(values) >= 2
    return statistics.stdev(known) if is_whole else None


def numbers(rows: Sequence[Row], name: str, form: str = ".3g") -> list[str]:
    """Returns means, with deviations where there are several seeds."""
    return [
        "-"
        if row[f"{name}_mean"] is None
        else f"{row[f'{name}_mean']:{form}}"
        + ("" if row[f"{name}_std"] is None else f" ± {row[f'{name}_std']:.2g}")
        for row in rows
    ]


def percents(rows: Sequence[Row], name: str) -> list[str]:
    """Returns means in percent, with deviations if there are any."""
    texts = []
    for row in rows:
        text, spread = _percent(row[f"{name}_mean"]), row.get(f"{name}_std")
        if text == "-" and row["not_finite"]:
            text = "not finite"
        texts.append(text if spread is None else f"{text} ± {_percent(spread)}")
    return texts


def _percent(share: Any) -> str:
    return "-" if share is None else f"{100 * share:.2f}"


def rounds_to(
    rows: Sequence[Row], target: float, last: Sequence[Optional[int]]
) -> list[str]:
    """Returns mean numbers of rounds; `25+` if 25 were too few for a seed."""
    return [
        f"{limit}+" if text == "-" and limit is not None else text
        for text, limit in zip(numbers(rows, f"rounds_to_{target}", ".1f"), last)
    ]


def span(numbers: Sequence[int]) -> str:
    """Returns the range of numbers, such as `2 to 4`."""
    low, high = min(numbers), max(numbers)
    return str(low) if low == high else f"{low} to {high}"
