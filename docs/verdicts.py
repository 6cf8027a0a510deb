"""The verdicts and lists of the pages on results, which `bin/docs --readme` writes.

They are those of the published studies (`docs.evidence`): what a study has not tested
has no verdict.
"""

import csv
import json
import pathlib
import textwrap
from collections.abc import Mapping, Sequence

from benchmarks import rounding
from docs import evidence, reference
from tff_reg.experiment.report import claims as claims_lib, evidence as evidence_lib
from tff_reg.experiment.rounds import progress
from tff_reg.methods import overview

_COSTS = pathlib.Path(__file__).parent / "figures" / "step-costs.csv"
_ROUNDING = _COSTS.with_name("rounding.json")
_ADDED = "digits_added"
# Lists of fewer methods name those, too, of which nothing is shown.
_FEW = 20
_SIGNS = {claims_lib.HOLDS: 1, claims_lib.OPPOSITE: -1}
# Claims of papers that the studies test: what, from where, and the method, which is
# compared with FedAvg under each condition.
_AHEAD = (
    ("MAN is ahead of FedAvg", "MAN, Table 1", "man"),
    ("UniVarFL is ahead of FedAvg", "UniVarFL, Table 1", "univarfl"),
    ("FedUV is ahead of FedAvg", "FedUV", "feduv"),
    ("FedProx is ahead of FedAvg", "its paper", "fedprox"),
    ("MOON is ahead of FedAvg", "its paper", "moon"),
    ("FedSAM is ahead of FedAvg", "its paper", "fedsam"),
    ("FedLC is ahead of FedAvg", "its paper", "fedlc"),
    ("FedRS is ahead of FedAvg", "its paper", "fedrs"),
    ("FedDyn is ahead of FedAvg", "its paper", "feddyn"),
    ("FedSpeed is ahead of FedAvg", "its paper", "fedspeed"),
    ("SCAFFOLD is ahead of FedAvg", "its paper", "scaffold"),
    ("FedDC is ahead of FedAvg", "its paper", "feddc"),
    ("FedACG is ahead of FedAvg", "FedACG", "fedacg"),
    ("FedNova is ahead of FedAvg where work is unequal", "FedNova", "fednova"),
)  # fmt: skip
# Those on time.
_COST = (("FedAlign", "fedalign"), ("MOON", "moon"), ("GradAug", "gradaug"))


def verdict(rows: Sequence[Mapping[str, str]]) -> str:
    """Says in a word what tests found of a claim that methods are ahead."""
    signs = [_SIGNS.get(row["verdict"], 0) for row in rows]
    ahead, behind = signs.count(1), signs.count(-1)
    holds = "**holds**" if ahead == len(signs) else "**holds in part**"
    opposite = "**the opposite holds**"
    if behind < len(signs):
        opposite = "**the opposite holds in part**"
    words = {(True, False): holds, (False, True): opposite}
    word = words.get((ahead > 0, behind > 0), "mixed" if ahead else "not shown")
    if len(signs) > 1:
        word += f" ({ahead} of {len(signs)} ahead, {behind} behind)"
    return word


def gain(row: Mapping[str, str]) -> str:
    """A method's difference to FedAvg in points, and whether it is shown."""
    shown = "shown" if row["verdict"] in _SIGNS else "not shown"
    return f"{evidence_lib.points(row)} points to FedAvg ({shown})"


def _by_condition(name: str, among: Sequence[str] = ()) -> tuple[str, dict[str, None]]:
    """The verdicts on a method by condition, equal ones together; and their studies."""
    found: dict[str, list[str]] = {}
    where_from: dict[str, None] = {}
    for condition, rows in evidence.all_tested().items():
        if among and condition not in among:
            continue
        if name in rows:
            found.setdefault(verdict([rows[name]]), []).append(condition)
            where_from[rows[name]["study"]] = None
    texts = (f"{word}: {', '.join(where)}" for word, where in found.items())
    return "; ".join(texts), where_from


def claims() -> str:
    """The table of papers' claims and what the studies found of them."""
    added = evidence.published_claims(_ADDED)
    rows = []
    for title, name, paper in (
        ("MAN", "man", "MAN, Table 1, and SCAFFOLD"),
        ("FedMLB", "fedmlb", "FedMLB, Table 1"),
    ):
        own = [row for row in added if name in row["method"].split("+")]
        what = f"{title} improves the methods that it is added to"
        rows.append([what, paper, own and verdict(own), [_ADDED]])
    for title, name in (("FedAlign", "fedalign"), ("FedMLB", "fedmlb")):
        what = f"{title} is ahead of FedAvg, on a residual network"
        found = _by_condition(name, evidence.RESIDUAL)
        rows.append([what, f"{title}'s paper", *found])
    for what, paper, name in _AHEAD:
        among = evidence.UNEQUAL if "unequal" in what else ()
        rows.append([what, paper, *_by_condition(name, among)])
    with open(_COSTS, encoding="utf-8", newline="") as file:
        costs = {row["method"]: row for row in csv.DictReader(file)}
    for title, name in _COST:
        _, cost, _, published = costs[name].values()
        what = f"{title} takes {published} times as long as FedAvg"
        found = f"{cost} times here, a step on a CPU"
        rows.append([what, "FedAlign, Table 5", found, ["bin/bench methods"]])
    heads = ["claim", "from", "what was found here", "by `bin/study`, or"]
    return reference.table(
        heads,
        [
            [
                *row[:2],
                row[2] or "not run",
                ", ".join(f"`{n}`" for n in row[3] if row[2]),
            ]
            for row in rows
        ],
    )


def _names(names: Sequence[str]) -> str:
    named = [f"`{name}`" for name in names]
    return " and ".join([", ".join(named[:-1]), named[-1]] if named[1:] else named)


def choice() -> str:
    """The lists of the page on choosing a method, the largest difference first."""
    lines = []
    for condition, rows in evidence.all_tested().items():
        ahead, behind = evidence.ahead_and_behind(rows.values())
        found = f"ahead of `fedavg`: {_names(ahead)}" if ahead else "none is ahead"
        found += f"; behind: {_names(behind)}" if behind else "; none is behind"
        rest = [name for name in rows if name not in {*ahead, *behind}]
        count = progress.count(len(rows), "method")
        if rest and len(rows) < _FEW:
            found += f"; not shown: {_names(rest)}"
        lines.append(f"- **{condition}** ({count}): {found}.")
    return "\n".join(lines)


def methods() -> str:
    """The README's table of methods."""
    roles = overview.by_role().items()
    rows = [[role, ", ".join(f"`{name}`" for name in names)] for role, names in roles]
    return reference.table(["role", "methods"], rows)


def blocks() -> dict[str, str]:
    """The texts by their names in the pages; lists are wrapped at 100 characters."""
    return {
        "methods": methods(),
        "claims": claims(),
        "choice": "\n".join(map(_wrapped, choice().split("\n"))),
        "studies": evidence.study_tables(),
        "transfer": evidence.transfer(),
        "rounding": "\n".join(rounding.table(json.loads(_ROUNDING.read_text("utf-8")))),
    }


def _wrapped(line: str) -> str:
    indent = "  " if line.startswith("- ") else ""
    return textwrap.fill(line, 100, subsequent_indent=indent, break_on_hyphens=False)
