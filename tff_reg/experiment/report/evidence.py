"""What the studies of this package say of families of methods, by condition.

`map.csv` in `tff_reg.tasks.studies` has a row for each condition and family: how the
clients' data differ, how many take part, for how many epochs, and the difference to
FedAvg, seed by seed, of the median of its methods, those that all conditions have.
`bin/docs --readme` makes it from the studies' values.
"""

from __future__ import annotations

import dataclasses
import math
import shlex
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tff_reg import tables
from tff_reg.data import sampling
from tff_reg.experiment.report import claims, differences
from tff_reg.experiment.rounds import progress
from tff_reg.lazy import np

GAINS, LOSES, OPEN = "gains", "loses", "not shown"
# Conditions are far apart if they differ by this label distance, by this coefficient of
# variation of the sizes, by this share of the work, or by this factor in participation
# or epochs.
_LABELS, _SIZES, _WORK, _FACTOR = 0.25, 0.5, 0.4, 4.0


@dataclasses.dataclass(frozen=True)
class Condition:
    """Under what clients train.

    Attributes:
      label_distance: Mean over examples of the total variation distance of their
        client's labels to all clients', less what chance gives in a sample of the
        client's size: 0 (iid) to 1.
      size_variation: Coefficient of variation of the clients' numbers of examples.
      participation: Share of the clients that take part in a round, and do not drop
        out.
      local_epochs: Epochs over a client's data in a round.
      work: Mean share of these epochs that a client trains for; less than 1 with
        stragglers.
    """

    label_distance: float
    size_variation: float
    participation: float
    local_epochs: float
    work: float

    @classmethod
    def of(cls, report: Any, config: Any) -> Condition:
        """Returns that of a run: a `PartitionReport`, and the run's settings."""
        count = len(report.client_ids)
        cohort = (1 - config.dropout) * sampling.mean_size(
            config.client_sampling, config.clients_per_round, count
        )
        epochs = config.local_epochs
        if config.local_steps is not None:
            epochs = config.local_steps * config.batch_size / report.sizes.mean()
        work = 1.0
        if config.straggler_epochs:
            part = statistics.fmean(config.straggler_epochs) / config.local_epochs
            work -= config.straggler_share * (1 - part)
        return cls(
            _label_distance(report),
            report.size_spread[0],
            cohort / count,
            float(epochs),
            work,
        )

    @classmethod
    def read(cls, row: Mapping[str, str]) -> Condition:
        """Returns that of a row of the map."""
        return cls(*(float(row[each.name]) for each in dataclasses.fields(cls)))

    def distance(self, other: Condition) -> float:
        """Returns how far apart two are: 1 or more is far."""
        factors = (
            math.log(self.participation / other.participation, _FACTOR),
            math.log(self.local_epochs / other.local_epochs, _FACTOR),
        )
        return math.hypot(
            (self.label_distance - other.label_distance) / _LABELS,
            (self.size_variation - other.size_variation) / _SIZES,
            (self.work - other.work) / _WORK,
            *factors,
        )

    @property
    def text(self) -> str:
        """The numbers in words."""
        return (
            f"label distance {self.label_distance:.2f}, sizes vary by"
            f" {self.size_variation:.2f}, {self.participation:.0%} of the clients a"
            f" round, {progress.count(f'{self.local_epochs:g}', 'local epoch')}"
            + f" of which they do {self.work:.0%}"
            * (self.work < 1)
        )


def _label_distance(report: Any) -> float:
    """Returns the label distance of a `Condition`."""
    sizes = report.sizes[report.sizes > 0]
    shares = report.counts.sum(axis=0) / sizes.sum()
    # The mean absolute deviation of binomial shares, nearly normal.
    spread = np.sqrt(shares * (1 - shares)).sum() / math.sqrt(2 * math.pi)
    chance = np.minimum(spread / np.sqrt(sizes), 0.99)
    found = report.label_distances[report.sizes > 0]
    excess = np.maximum(found - chance, 0) / (1 - chance)
    return float((excess * sizes).sum() / sizes.sum())


def families(
    values: Iterable[Mapping[str, str]],
    roles: Mapping[str, Sequence[str]],
    quantity: str,
    than: str = "fedavg",
) -> dict[tuple[str, str], dict[str, Any]]:
    """Returns what a study's values say of families' medians, by (setting, family).

    Args:
      values: Rows of a `values.csv`.
      roles: Methods by family. A family has a value if all of them have one in each
        seed.
      quantity: The column that is compared.
      than: The method that others are compared with.

    Returns:
      The columns of `differences.COLUMNS`, of which p is not adjusted.
    """
    by: dict[str, dict[str, dict[int, float]]] = {}
    for row in values:
        if row[quantity]:
            of_method = by.setdefault(row["setting"], {}).setdefault(row["method"], {})
            of_method[int(row["seed"])] = float(row[quantity])
    found = {}
    for setting, methods in by.items():
        base = methods.get(than, {})
        for role, names in roles.items():
            own = [methods.get(name, {}) for name in names]
            if own and all(base.keys() == each.keys() for each in own):
                middle = {s: statistics.median(each[s] for each in own) for s in base}
                one = differences.to_baseline({role: middle, than: base}, than)[role]
                found[setting, role] = dict(one)
    return found


def verdict(row: Mapping[str, Any]) -> str:
    """Returns whether a row of the map is a gain, a loss, or neither."""
    if not row["p_holm"] or float(row["p_holm"]) > claims.LEVEL:
        return OPEN
    return GAINS if float(row["mean"]) > 0 else LOSES


def advice(
    condition: Condition,
    rows: Sequence[Mapping[str, str]],
    flags: Sequence[str] = (),
    is_late_or_attacked: bool = False,
) -> list[str]:
    """Returns lines on what a map says of the condition that is nearest.

    `rows` are those of the map, in which no client is late or attacks; `flags` those of
    a comparison of one's own.
    """
    nearest = min(rows, key=lambda row: condition.distance(Condition.read(row)))
    place = nearest["study"], nearest["setting"]
    own = [row for row in rows if (row["study"], row["setting"]) == place]
    own.sort(key=lambda row: -float(row["mean"]))
    far = condition.distance(there := Condition.read(nearest))
    cells = {
        "family": [row["role"] for row in own],
        "methods": [row["methods"] for row in own],
        "median difference to fedavg (points)": [points(row) for row in own],
        "p (Holm)": [f"{float(row['p_holm'] or math.nan):.2g}" for row in own],
        "": [verdict(row) for row in own],
    }
    ahead = nearest["ahead"] or "no method"
    few = ahead.split(", ")[:3]
    seeds = math.ceil(1 + math.log2(len(few) / claims.LEVEL))
    lines = [
        f"Your clients: {condition.text}.",
        f"The nearest condition that was measured: {nearest['title']} (task"
        f" {nearest['task']}, {there.text}).",
        *["It is far from yours: take what follows as a guess."] * (far >= 1),
        *["There no client is late or attacks: yours are not looked at."]
        * is_late_or_attacked,
        "",
        *tables.to_markdown(cells),
        "",
        f"Ahead of fedavg one by one, the largest gain first: {ahead}; behind it, the"
        f" largest loss first: {nearest['behind'] or 'none'}.",
        f"From bin/study {nearest['study']}: {nearest['seeds']} seeds, few rounds, a"
        " small network with norm and augmentation of its own (other ones have other"
        " gaps), strengths by default. p is by Holm over these families, for single"
        " methods over all of the study.",
        "Compare on your own data: "
        + shlex.join(
            [
                "bin/compare",
                f"--processes=fedavg,{','.join(few)}",
                *flags,
                f"--seeds={seeds}",
                "--output_dir=runs/mine",
            ]
        ),
    ]
    return lines if nearest["ahead"] else lines[:-1]


def points(row: Mapping[str, str]) -> str:
    """Returns a difference in points, with its 95 % interval."""
    ends = [f"{100 * float(row[end]):+.1f}" for end in ("low", "high") if row[end]]
    within = f" [{', '.join(ends)}]" if ends else ""
    text = f"{100 * float(row['mean']):+.1f}{within}"
    return text.replace("-", "\N{MINUS SIGN}")
