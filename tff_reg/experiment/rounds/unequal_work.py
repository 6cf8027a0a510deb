r"""Clients that drop out, do part of their work, are late or attack in a round.

All draws are a function of (seed, round, client), or of (seed, client) for a client's
speed and for who attacks, so that compared methods have the same rounds.

A client of tau_i steps takes tau_i / v_i + t_i simulated seconds, v_i its steps per
second and t_i its transfer seconds. The round ends when all clients that did not drop
out have finished, with `over_select` when `clients_per_round` of them have, at the
latest at the deadline. Who drops out is taken to be known at once. Without
`client_speeds` the order of finishing is random.
"""

from __future__ import annotations

import collections
import csv
import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Optional

from tff_reg.data import digests, keys
from tff_reg.settings import SettingError

PREFIX = "cohort"
SECONDS = f"{PREFIX}/seconds"
COUNTED = f"{PREFIX}/counted"


class Attendance(NamedTuple):
    """A round's clients.

    Attributes:
      clients: The clients whose updates arrive in time, in the cohort's order.
      told: By client: what its data say of it, see `training.WholeClientData.told`.
      row: Columns of `metrics.csv`.
    """

    clients: list[str]
    told: Mapping[str, Mapping[str, float]]
    row: Mapping[str, float]


@dataclasses.dataclass(frozen=True)
class UnequalWork:
    """Decides each round which clients of a cohort count, and how much they do.

    Attributes:
      seed: The run's seed.
      steps: By client: the steps of its whole work, perhaps a fraction.
      local_epochs: The epochs of the whole work.
      dropout: The probability of dropping out.
      straggler_share: The probability of being a straggler.
      straggler_epochs: The least and the most epochs of stragglers.
      speeds: By client: (steps per second, transfer seconds); empty if not known.
      deadline: Simulated seconds after which the round ends; None for none.
      enough: The round ends when so many clients have finished; None for all.
      num_drawn: The number of clients to draw for a round.
      factors: By client: what multiplies all that it uploads; empty without attacks.
      speeds_from: What the speeds were drawn from; runs of several seeds that have it
        in common may have other speeds.
    """

    seed: int
    steps: Mapping[str, float]
    local_epochs: float
    num_drawn: int
    dropout: float = 0.0
    straggler_share: float = 0.0
    straggler_epochs: tuple[float, ...] = ()
    speeds: Mapping[str, tuple[float, float]] = dataclasses.field(default_factory=dict)
    deadline: Optional[float] = None
    enough: Optional[int] = None
    factors: Mapping[str, float] = dataclasses.field(default_factory=dict)
    speeds_from: str = ""

    def recorded(self) -> dict[str, str]:
        """Returns what `config.json` says: of all clients, and of each of them."""
        seeded = ("seed", "steps", "speeds", "factors")
        of_all = dataclasses.replace(self, seed=0, steps={}, speeds={}, factors={})
        of_each = {name: getattr(self, name) for name in seeded}
        # Whose they are follows from the seed, but not which there are.
        speeds = [] if self.speeds_from else sorted(self.speeds.values())
        there = (speeds, sorted(self.factors.values()))
        return {
            "unequal_work": digests.described(of_all),
            "speeds_and_attacks": digests.described(there),
            digests.WORK: digests.described(of_each),
        }

    def attendance(self, cohort: Sequence[str], round_num: int) -> Attendance:
        """Returns who counts in a round of these clients."""
        told: dict[str, dict[str, float]] = {name: {} for name in cohort}
        finished, late, dropped = [], 0, 0
        for name in cohort:
            draws = keys.driver_generator("work", self.seed, round_num, name)
            drops, straggles, amount, order = draws.random(4).tolist()
            share = 1.0
            if straggles < self.straggler_share:
                share = self._epochs(amount) / self.local_epochs
            if self.straggler_epochs:
                told[name]["work"] = share
            if self.factors:
                told[name]["factor"] = self.factors[name]
            if drops < self.dropout:
                dropped += 1
                continue
            seconds = self._seconds(name, share)
            if self.deadline is not None and seconds > self.deadline:
                late += 1
            else:
                finished.append((seconds, order, name))
        finished.sort()
        kept = finished[: self.enough]
        chosen = {name for _, _, name in kept}
        row: dict[str, Any] = {
            "drawn": len(cohort),
            "dropped": dropped,
            "late": late,
            "surplus": len(finished) - len(kept),
            "partial": sum(told[name].get("work", 1) < 1 for name in chosen),
            "counted": len(kept),
        }
        if self.factors:
            row["attacking"] = sum(self.factors[name] != 1 for name in chosen)
        if self.speeds:
            is_waiting = late and len(kept) < (self.enough or len(cohort))
            last = self.deadline if is_waiting else max([0.0, *(s for s, *_ in kept)])
            row["seconds"] = last
        return Attendance(
            [name for name in cohort if name in chosen],
            told,
            {f"{PREFIX}/{name}": value for name, value in row.items()},
        )

    def _epochs(self, amount: float) -> float:
        """Returns the epochs of a straggler who drew `amount` from [0, 1)."""
        least, most = self.straggler_epochs
        if float(least).is_integer() and float(most).is_integer():
            return least + math.floor(amount * (most - least + 1))
        return least + amount * (most - least)

    def _seconds(self, name: str, share: float) -> float:
        if not self.speeds:
            return 0.0
        per_second, transfer = self.speeds[name]
        return math.ceil(share * self.steps[name] - 1e-6) / per_second + transfer


def of(config: Any, client_ids: Sequence[str], sizes: Sequence[int]) -> UnequalWork:
    """Returns the unequal work that the settings of a run ask for."""
    average = config.steps_of(sum(sizes) / len(sizes))
    are_alike = config.same_local_steps or config.local_steps
    steps: dict[str, float] = {}
    for name, size in zip(client_ids, map(int, sizes)):
        batches = config.batches_of(size)
        whole = average if are_alike else config.local_epochs * batches
        steps[name] = whole if batches else 0
    drawn = math.ceil(config.over_select * config.clients_per_round - 1e-6)
    speeds, speeds_from = {}, ""
    if config.client_speeds is not None:
        speeds = read_speeds(config.client_speeds, client_ids, config.seed)
        speeds_from = digests.described(read_table(config.client_speeds))
    return UnequalWork(
        config.seed,
        steps,
        config.local_epochs,
        min(drawn, len(client_ids)),
        config.dropout,
        config.straggler_share,
        config.straggler_epochs,
        speeds,
        config.deadline,
        config.clients_per_round if config.over_select > 1 else None,
        attacks(config, client_ids) if config.attack_share else {},
        speeds_from,
    )


def told(config: Any) -> tuple[str, ...]:
    """Returns the names of what clients' data say of them in a run."""
    asked = {"work": config.straggler_epochs, "factor": config.attack_share}
    return tuple(name for name, value in asked.items() if value)


def attacks(config: Any, client_ids: Sequence[str]) -> dict[str, float]:
    """Returns the factor of each client's uploads: 1 but of those that attack."""

    def draw(name: str) -> float:
        return keys.driver_generator("attack", config.seed, name).random()

    count = math.ceil(config.attack_share * len(client_ids) - 1e-6)
    attacking = sorted(client_ids, key=draw)[:count]
    return {n: config.attack_factor if n in attacking else 1.0 for n in client_ids}


def read_speeds(
    path: str, client_ids: Sequence[str], seed: int
) -> dict[str, tuple[float, float]]:
    """Returns each client's steps per second and transfer seconds.

    Raises:
      SettingError: If the file cannot be read, or lacks a column or a client.
    """
    found = read_table(path)
    if found[0][0] is None:
        return {
            name: found[
                keys.driver_generator("speed", seed, name).integers(len(found))
            ][1]
            for name in client_ids
        }
    known = dict(found)
    if missing := [name for name in client_ids if name not in known]:
        why = f"it has no row of {len(missing)} clients, such as {missing[0]}."
        raise SettingError("client_speeds", path, why)
    return {name: known[name] for name in client_ids}


def read_table(path: str) -> list[tuple[Optional[str], tuple[float, float]]]:
    """Reads the rows of a CSV file: the client, if it has the column, and its speed."""

    def refuse(why: str) -> SettingError:
        return SettingError("client_speeds", path, why)

    try:
        with open(path, newline="", encoding="utf-8") as file:
            rows = [*csv.DictReader(file)]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise refuse(f"it cannot be read ({error}).") from error
    found: list[tuple[Optional[str], tuple[float, float]]] = []
    for number, row in enumerate(rows, start=2):
        try:
            speed = float(row["steps_per_second"])
            transfer = float(row.get("transfer_seconds") or 0)
        except KeyError:
            raise refuse("it has no column steps_per_second.") from None
        except (TypeError, ValueError):
            raise refuse(f"line {number} has no numbers: {row}.") from None
        if not (0 < speed < math.inf and 0 <= transfer < math.inf):
            raise refuse(f"line {number} needs a speed above 0, a transfer from 0.")
        found.append((row.get("client"), (speed, transfer)))
    if not found:
        raise refuse("it has no rows.")
    if strange := {*rows[0]} - {"client", "steps_per_second", "transfer_seconds"}:
        raise refuse(f"it has an unknown column {min(map(str, strange))}.")
    names = [name for name, _ in found if name is not None]
    if twice := {name for name in names if names.count(name) > 1}:
        raise refuse(f"it has several rows of {min(twice)}.")
    return found


def empty(dataset: Any) -> Any:
    """Returns a client's whole-client data without its examples."""

    def cut(element: Mapping[str, Any]) -> Any:
        parts = {name: element[name][:0] for name in ("x", "y")}
        return collections.OrderedDict(element, **parts)

    return dataset.map(cut)
