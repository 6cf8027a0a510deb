"""The verdicts and lists of the pages on results, from the tables in `docs/figures`.

`bin/docs --readme` writes them to the pages. A difference of two means counts if it is
larger than twice its standard error, and than the noise that is known of a table. Means
of one seed have no error: any difference counts, and the verdict says so.
"""

import csv
import dataclasses
import math
import pathlib
import re
import textwrap
from collections.abc import Callable, Sequence

from docs import reference
from tff_reg.methods import overview

_FIGURES = pathlib.Path(__file__).parent / "figures"
# By table: differences of accuracies that are noise, whatever the seeds' spread.
_NOISE = {"which-by-skew": 3.0}
# Differences that the lists of `which.md` name: of the mean of the last five rounds
# under Dir(0.1), of the last round, and what is far behind.
_AHEAD, _NOTED, _FAR = 2.0, 3.0, 10.0
# Columns in which the smaller number is ahead.
_LESS = ("top eigenvalue", "trace")
_LAST_FIVE, _TWO = "Dir(0.1) last five", "2 classes"


@dataclasses.dataclass(frozen=True)
class _Mean:
    value: float
    error: float
    seeds: int


def _table(file: str) -> dict[str, dict[str, str]]:
    """The rows of a table by method."""
    text = (_FIGURES / f"{file}.csv").read_text("utf-8")
    return {row["method"]: row for row in csv.DictReader(text.splitlines())}


def _mean(file: str, method: str, column: str) -> _Mean:
    """A cell: a mean over seeds with a deviation, or one run's value with an error."""
    row = _table(file)[method]
    seeds = int(row.get("seeds", 3))
    value, _, spread = row[column].partition(" ± ")
    error = float(spread or 0) / math.sqrt(seeds)
    return _Mean(float(value), error, seeds)


@dataclasses.dataclass(frozen=True)
class Pairs:
    """Comparisons in one table: each method with another one, by a column.

    Attributes:
      file: The table.
      pairs: (method, column, other method, column).
      label: What the comparisons are called in a cell; empty for nothing.
      is_less: Whether the smaller number is ahead.
    """

    file: str
    pairs: Sequence[tuple[str, str, str, str]]
    label: str = ""
    is_less: bool = False

    def verdict(self) -> str:
        """Says whether the methods are ahead, in a word."""
        signs, seeds = [], []
        for method, column, other, other_column in self.pairs:
            one, two = (
                _mean(self.file, *each)
                for each in ((method, column), (other, other_column))
            )
            difference = (two.value - one.value) * (1 if self.is_less else -1)
            noise = 2 * math.hypot(one.error, two.error)
            noise = max(noise, _NOISE.get(self.file, 0.0))
            # Differences of rounded numbers have no more digits.
            counts = round(abs(difference) - noise, 6) > 0
            signs.append(counts * (1 if difference > 0 else -1))
            seeds += [one.seeds, two.seeds]
        ahead, behind = signs.count(1), signs.count(-1)
        words = {(True, False): "**holds**", (False, True): "**fails**"}
        word = words.get((ahead > 0, behind > 0), "mixed" if ahead else "unclear")
        notes = ["one seed"] * (min(seeds) == 1)
        if len(signs) > 1:
            notes.insert(0, f"{ahead} of {len(signs)} ahead, {behind} behind")
        return word + (f" ({', '.join(notes)})" if notes else "")


def _versus(
    file: str, methods: str, column: str, label: str = "", other: str = "fedavg"
) -> Pairs:
    pairs = [(each, column, other, column) for each in methods.split()]
    return Pairs(file, pairs, label, column in _LESS)


def _on_digits(methods: str, other: str = "fedavg") -> list[Pairs]:
    columns = {"Dir(0.1)": _LAST_FIVE, "two classes": _TWO, "Dir(0.5)": "Dir(0.5)"}
    return [
        _versus("which-by-skew", methods, column, label, other)
        for label, column in columns.items()
    ]


def _man_added(column: str, label: str = "") -> Pairs:
    """MAN added to other methods, in rows of their own."""
    added = {"man": "fedavg", "fedsam+man": "fedsam", "feddyn+man": "feddyn"}
    pairs = [(method, column, other, column) for method, other in added.items()]
    return Pairs(_DYN, pairs, label, column in _LESS)


def _grid(file: str, what: str) -> Pairs:
    """A method added to each row's, in columns of their own."""
    columns = f"+ {what}, EMA", "plain, EMA"
    return Pairs(file, [(row, columns[0], row, columns[1]) for row in _table(file)])


_EMA = "EMA (%)"
_LENET, _DYN = "cifar10-lenet", "cifar10-feddyn-cnn"
_FLAT = {"top eigenvalue": "eigenvalue", "trace": "trace"}


def _flat(file: str, methods: str) -> list[Pairs]:
    return [_versus(file, methods, column, label) for column, label in _FLAT.items()]


def _claims() -> list[tuple[str, str, Sequence[Pairs], Sequence[Pairs]]]:
    """The claims: what, from where, on digits, on CIFAR-10 in small."""
    return [
        (
            "MAN improves the methods that it is added to",
            "MAN, Table 1",
            [_grid("digits-man-grid", "MAN")],
            [_man_added("all clients (%)")],
        ),
        (
            "MAN is ahead of FedAvg",
            "MAN, Table 1",
            _on_digits("man"),
            [
                _versus(_DYN, "man", "all clients (%)", "the paper's network"),
                _versus(_LENET, "man", _EMA, "LeNet-5"),
            ],
        ),
        (
            "MAN leads to flatter minima",
            "MAN, Table 2",
            _flat("digits-flatness", "man"),
            [_man_added(column, label) for column, label in _FLAT.items()],
        ),
        (
            "FedSAM's minima are flatter than FedAvg's",
            "MAN, Table 2",
            [],
            _flat(_DYN, "fedsam"),
        ),
        (
            "FedMLB improves the methods that it is added to",
            "FedMLB, Tables 1, 2",
            [_grid("digits-fedmlb-grid", "FedMLB")],
            [
                _versus(_LENET, "fedmlb", _EMA, "LeNet-5"),
                _versus("cifar10-resnet10", "fedmlb", _EMA, "residual network"),
            ],
        ),
        (
            "FedAlign is ahead of FedAvg",
            "FedAlign, Table 2",
            _on_digits("fedalign"),
            [
                _versus("cifar10-resnet8", "fedalign", _EMA, "ResNet-8"),
                _versus("cifar10-resnet20", "fedalign", _EMA, "ResNet-20"),
            ],
        ),
        (
            "FedProx's and MOON's minima are flatter than FedAvg's",
            "FedAlign, Table 1",
            [],
            _flat("cifar10-resnet20", "fedprox moon"),
        ),
        (
            "FedAlign makes the top eigenvalue smaller",
            "FedAlign, Section 4",
            [],
            _flat("cifar10-resnet20", "fedalign")[:1],
        ),
        (
            "UniVarFL is ahead where clients' classes differ",
            "UniVarFL, Table 1",
            _on_digits("univarfl"),
            [
                _versus(_LENET, "univarfl", _EMA, "Dir(0.3)"),
                _versus("cifar10-dir001", "univarfl", _EMA, "Dir(0.01)"),
            ],
        ),
        *(
            (f"{title} of {of}", paper, _on_digits(names, other),
             [_versus(_LENET, names, _EMA, other=other)])
            for title, of, paper, names, other in (
                ("FedUV is ahead", "FedAvg", "FedUV", "feduv", "fedavg"),
                ("FedLC and FedRS are ahead", "FedAvg", "their papers",
                 "fedlc fedrs", "fedavg"),
                ("FedDyn, FedSpeed and SCAFFOLD are ahead", "FedAvg", "their papers",
                 "feddyn fedspeed scaffold", "fedavg"),
                ("FedDC is ahead", "FedAvg", "its paper", "feddc", "fedavg"),
                ("FedACG is ahead", "FedAvg", "FedACG", "fedacg", "fedavg"),
                ("FedACG is ahead", "FedAvgM", "FedACG", "fedacg", "fedavgm"),
            )
        ),
    ]  # fmt: skip


def _cell(compared: Sequence[Pairs]) -> str:
    """A cell of verdicts; comparisons of the same verdict share it."""
    found: dict[str, list[str]] = {}
    for each in compared:
        found.setdefault(each.verdict(), []).append(each.label)
    if len(found) == 1 and len(compared) > 1:
        return next(iter(found))
    return "; ".join(
        f"{', '.join(labels)}: {verdict}" if any(labels) else verdict
        for verdict, labels in found.items()
    )


def claims() -> str:
    """The table of the claims and what the tables say of them."""
    rows = [
        [what, paper, _cell(digits), _cell(cifar)]
        for what, paper, digits, cifar in _claims()
    ]
    cost = {name: row["cost"] for name, row in _table("step-costs").items()}

    def within(names: dict[str, str], least: float, most: float) -> str:
        parts = []
        for name, title in names.items():
            is_so = least <= float(cost[name]) <= most
            parts.append(f"{title} {cost[name]}: **{'holds' if is_so else 'fails'}**")
        return ", ".join(parts)

    source = "FedAlign, Table 5"
    at = next(n for n, row in enumerate(rows) if row[0].startswith("FedProx's"))
    rows[at:at] = [
        ["FedAlign costs at most a tenth more than FedAvg", source,
         within({"fedalign": "FedAlign"}, 0, 1.1), ""],
        ["MOON and GradAug cost 2 to 3 times as much", source,
         within({"gradaug": "GradAug", "moon": "MOON"}, 2, 3), ""],
    ]  # fmt: skip
    header = ["claim", "from", "digits", "CIFAR-10 in small"]
    return reference.table(header, rows)


def _names(names: Sequence[str]) -> str:
    named = [f"`{name}`" for name in names]
    return " and ".join([", ".join(named[:-1]), named[-1]] if named[1:] else named)


def _coverage(file: str) -> str:
    """Which of the package's methods a table has."""
    there, known = _table(file), overview.ours()
    missing = [name for name in known if name not in there]
    return (
        f"{len(known) - len(missing)} of the {len(known)} methods; these have no row:"
        f" {_names(missing)}"
    )


def _where(column: str, is_so: Callable[[float], bool]) -> list[str]:
    """The methods whose difference to FedAvg is such, the largest number first."""
    values = {
        name: float(row[column].partition(" ")[0])
        for name, row in _table("which-by-skew").items()
    }
    found = [n for n in values if is_so(round(values[n] - values["fedavg"], 6))]
    return sorted(found, key=lambda name: (-values[name], name))


def choice() -> str:
    """The lists of the page on choosing a method."""
    ahead = [
        name
        for name in _where(_TWO, lambda d: d >= _NOTED)
        if name in _where(_LAST_FIVE, lambda d: d >= _AHEAD)
    ]
    behind = [
        name
        for name in _where(_TWO, lambda d: d <= -_NOTED)
        if name in _where(_LAST_FIVE, lambda d: d <= -_NOTED)
    ]
    far = [n for n in _where(_TWO, lambda d: d <= -_FAR) if n not in behind]
    mild = [
        name
        for column in ("Dir(0.5)", "sizes")
        for name in _where(column, lambda d: abs(d) >= _NOTED)
    ]
    differ = f"{_names(sorted({*mild}))} differ" if mild else "no method differs"
    return (
        f"The table has {_coverage('which-by-skew')}.\n\n"
        "- **Classes differ strongly** (Dir(0.1), or two classes per client): take one"
        f" of {_names(ahead)}. They are at least {_AHEAD:g} points ahead of `fedavg` in"
        " the mean of the last five rounds under Dir(0.1), and at least"
        f" {_NOTED:g} after the last round with two classes per client. Under both"
        f" avoid {_names(behind)}, at least {_NOTED:g} points behind; with two classes"
        f" per client also {_names(far)}, at least {_FAR:g} points behind.\n"
        "- **Classes differ mildly** (Dir(0.5)), or **only the numbers of examples"
        f" differ**: {differ} from `fedavg` by {_NOTED:g} points or more."
    )


def lenet() -> str:
    """What the table of LeNet-5 says."""
    by_verdict: dict[str, list[str]] = {}
    rows = _table(_LENET)
    order = sorted(rows, key=lambda n: -_mean(_LENET, n, _EMA).value)
    for name in order:
        verdict = _versus(_LENET, name, _EMA).verdict()
        by_verdict.setdefault(re.sub(r"\W", "", verdict), []).append(name)
    return (
        f"The table has {_coverage(_LENET)}. In the moving average"
        f" {_names(by_verdict['holds'])} are ahead of `fedavg` by more than two"
        f" standard errors of the difference, {_names(by_verdict['fails'])} behind."
    )


def methods() -> str:
    """The README's table of methods."""
    roles = overview.by_role().items()
    rows = [[role, ", ".join(f"`{name}`" for name in names)] for role, names in roles]
    return reference.table(["role", "methods"], rows)


def blocks() -> dict[str, str]:
    """The texts by their names in the pages, in lines of at most 100 characters."""
    found = {"methods": methods(), "claims": claims()}
    for name, text in (("choice", choice()), ("LeNet-5", lenet())):
        found[name] = "\n".join(map(_wrapped, text.split("\n")))
    return found


def _wrapped(line: str) -> str:
    indent = "  " if line.startswith("- ") else ""
    return textwrap.fill(line, 100, subsequent_indent=indent, break_on_hyphens=False)
