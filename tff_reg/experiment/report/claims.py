"""Tests of a study's claims, in the tables of its comparison.

A seed is a unit: a difference is the mean over the claim's settings, of which one seed
has common splits and weights, or that in each of them. Its p value is that of the exact
sign-flip test over the seeds, adjusted by Holm over all that the study tests.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from tff_reg import tables as tables_lib
from tff_reg.experiment.config import identity
from tff_reg.experiment.report import differences, quantities
from tff_reg.experiment.report.table import Table
from tff_reg.experiment.rounds import progress
from tff_reg.methods import catalogue
from tff_reg.settings import near_names

# The largest adjusted p of what counts as shown.
LEVEL = 0.05
HOLDS, OPPOSITE, OPEN = "holds", "the opposite holds", "not shown"
_NOT_MEASURED = "not measured"


def check(
    claims: Sequence[Any],
    rows: Sequence[str],
    headings: Sequence[str],
    configs: Sequence[Any],
) -> None:
    """Checks a study's claims against its methods, settings and runs.

    Raises:
      ValueError: If a claim names a method or a setting that the study lacks, or a
        quantity that does not exist, that the runs will not have, or of which neither
        more nor less is better.
    """
    for number, claim in enumerate(claims, 1):
        for method in (*claim.methods, claim.than):
            if method not in rows:
                raise ValueError(
                    f"claim {number}: {method} is not among the processes."
                )
        for heading in claim.where:
            if heading not in headings:
                near = near_names(heading, headings)
                raise ValueError(
                    f"claim {number}: there is no setting {heading}{near}."
                )
        quantities.check([claim.quantity])
        quantities.check_measured([claim.quantity], configs)
        if quantities.of(claim.quantity).best is None:
            why = f"neither more nor less of {claim.quantity} is better"
            raise ValueError(f"claim {number}: {why}.")


class Test(NamedTuple):
    """A planned significance test of one method against a claim's baseline.

    Attributes:
      number: The claim's number, from 1.
      claim: The `tasks.studies.Claim`.
      where: The headings of the settings over which the difference is averaged.
      method: The method.
    """

    number: int
    claim: Any
    where: tuple[str, ...]
    method: str


def planned(
    claims: Sequence[Any], rows: Sequence[str], headings: Sequence[str]
) -> list[Test]:
    """Returns all tests of a study, whatever of it ends.

    `rows` are its methods, `headings` those of its settings.
    """
    methods = [name for name in rows if name not in catalogue.REFERENCES]
    found = []
    for number, claim in enumerate(claims, 1):
        where = claim.where or tuple(headings)
        for place in [(each,) for each in where] if claim.each else [where]:
            for name in claim.methods or [n for n in methods if n != claim.than]:
                found.append(Test(number, claim, place, name))
    return found


def too_few(tests: Sequence[Test], num_seeds: int) -> str:
    """Says in a sentence that no claim can be shown with so many seeds; or is empty."""
    least = 2.0 ** (1 - num_seeds) * len(tests)
    if least <= LEVEL:
        return ""
    enough = math.ceil(1 + math.log2(len(tests) / LEVEL))
    return (
        f"Over {progress.count(num_seeds, 'seed')} the least p of"
        f" {progress.count(len(tests), 'test')}, adjusted by Holm, is"
        f" {min(1.0, least):.2g}: no claim can be shown at {LEVEL:g}; it takes"
        f" {enough} seeds."
    )


def values(made: Mapping[str, Table], columns: Sequence[str]) -> list[dict[str, Any]]:
    """Returns the rows of `values.csv`: setting, method, seed, columns, code."""
    rows: list[dict[str, Any]] = []
    for heading, table in made.items():
        known = {name: table.by_seed(name) for name in columns}
        for method, runs in table.groups.items():
            for run in runs:
                seed, code = run.summary["seed"], run.config.get(identity.CODE, ())
                row = {"setting": heading, "method": method, "seed": seed}
                row |= {n: by.get(method, {}).get(seed) for n, by in known.items()}
                codes = (each.get("tff_reg") for each in code)
                rows.append({**row, "code": " ".join(filter(None, codes))})
    return rows


def tested(tests: Sequence[Test], made: Mapping[str, Table]) -> list[dict[str, Any]]:
    """Carries out tests; returns the rows of `claims.csv`, one for each.

    Args:
      tests: From `planned`. What was not measured counts as a test that showed nothing.
      made: The comparison's tables by the setting's heading.

    Returns:
      Rows with the claim's number, method, `than`, quantity, `where`, `expected`, the
      columns of `differences.COLUMNS`, and the `verdict`.
    """
    rows: list[dict[str, Any]] = []
    signs: list[float] = []
    values = {
        (heading, name): table.by_seed(name)
        for name in {test.claim.quantity for test in tests}
        for heading, table in made.items()
    }
    for number, claim, where, method in tests:
        by_seed = [values.get((heading, claim.quantity), {}) for heading in where]
        rows.append(
            {
                "claim": number,
                "method": method,
                "than": claim.than,
                "quantity": claim.quantity,
                "where": "; ".join(where),
                "expected": claim.expected,
                **_difference(by_seed, method, claim.than),
            }
        )
        best = quantity_of(claim.quantity, made).best
        is_more = (best is max) == (claim.expected == "better")
        signs.append(1.0 if is_more else -1.0)
    ps = [1.0 if row["p"] is None else row["p"] for row in rows]
    for row, p in zip(rows, differences.holm(ps)):
        row["p_holm"] = None if row["p"] is None else p
    for row, sign in zip(rows, signs):
        row["verdict"] = _verdict(row, sign)
    return rows


def quantity_of(name: str, made: Mapping[str, Table]) -> quantities.Quantity:
    """Returns a quantity, of the runs' score if there are runs."""
    of = next((table.quantity for table in made.values()), quantities.of)
    return of(name)


def _difference(
    settings: Sequence[Mapping[str, Mapping[int, float]]], method: str, than: str
) -> dict[str, Any]:
    """Returns the columns of a difference over seeds, each a mean over settings."""
    pairs = [(by.get(method, {}), by.get(than, {})) for by in settings]
    seeds = set.intersection(*({*one} & {*other} for one, other in pairs))
    own, base = (
        {s: statistics.fmean(pair[which][s] for pair in pairs) for s in sorted(seeds)}
        for which in (0, 1)
    )
    found = differences.to_baseline({method: own, than: base}, than)
    return found.get(method) or dict.fromkeys(differences.COLUMNS)


def _verdict(row: Mapping[str, Any], sign: float) -> str:
    if row["mean"] is None:
        return _NOT_MEASURED
    if row["p_holm"] is None or row["p_holm"] > LEVEL:
        return OPEN
    return HOLDS if sign * row["mean"] > 0 else OPPOSITE


def page(
    study: Any,
    rows: Sequence[Mapping[str, Any]],
    made: Mapping[str, Table],
    made_by: str,
) -> str:
    """Returns `study.md`: question, claims and verdicts, in the units of the tables.

    `made` are the comparison's tables by the setting's heading; `made_by` is of the
    runs.
    """
    lines = [
        f"# {study.question}",
        "",
        f"Study `{study.name}`, written down on {study.written}, before its runs."
        f" {made_by} A claim holds if the exact sign-flip test over seeds, adjusted by"
        f" Holm over {progress.count(len(rows), 'test')}, has p of at most {LEVEL:g}"
        " and the expected sign.",
    ]
    for number, claim in enumerate(study.claims, 1):
        own = [row for row in rows if row["claim"] == number]
        counts = {
            verdict: sum(row["verdict"] == verdict for row in own)
            for verdict in (HOLDS, OPPOSITE, OPEN, _NOT_MEASURED)
        }
        said = ", ".join(f"{name}: {count}" for name, count in counts.items() if count)
        where = "; ".join(claim.where) or "all settings"
        where += ", each by itself" * claim.each
        quantity = quantity_of(claim.quantity, made)
        lines += ["", f"## {number}. {claim.says}", ""]
        lines += [f"{quantity.head}, against {claim.than}, {where}. **{said}.**", ""]
        cells = {
            "method": [row["method"] for row in own],
            **({"setting": [row["where"] for row in own]} if claim.each else {}),
            "seeds": [_text(row["seeds"], ".0f") for row in own],
            f"difference to {claim.than}": [
                _with_interval(row, quantity.scale, quantity.form) for row in own
            ],
            "p": [_text(row["p"], ".2g") for row in own],
            "p (Holm)": [_text(row["p_holm"], ".2g") for row in own],
            "verdict": [row["verdict"] for row in own],
        }
        lines += tables_lib.to_markdown(cells)
    return "\n".join([*lines, ""])


def _text(value: Any, form: str) -> str:
    return "-" if value is None else f"{value:{form}}"


def _with_interval(row: Mapping[str, Any], scale: float, form: str) -> str:
    if row["mean"] is None:
        return "-"
    mean, *ends = (
        f"{scale * row[name]:+{form}}"
        for name in ("mean", "low", "high")
        if row[name] is not None
    )
    return f"{mean} [{', '.join(ends)}]" if ends else mean
