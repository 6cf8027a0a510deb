"""Scaling down a run: the effect of `scale` on rounds, clients, epochs and data.

A fraction multiplies the rounds, clients, local epochs and examples of the other
settings, rounded and at least one; the examples per client stay the same. `tiny` is a
smoke test that does everything once: a round of two clients with a few steps each,
except for settings that are given. This module needs no TensorFlow.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Container, Mapping
from typing import Any

from tff_reg.settings import ROUND, SettingError, tagged
from tff_reg.training.process_settings import ProcessSettings

TINY = "tiny"

# The largest values of `tiny`. 12 examples per client are more than the minimum of 10
# that some partitions guarantee, and in batches of 4 they make three steps.
TINY_MOST = {
    "total_rounds": 1,
    "num_clients": 4,
    "clients_per_round": 2,
    "local_epochs": 1,
    "local_steps": 3,
    "batch_size": 4,
    "train_examples": 48,
    "test_examples": 24,
}
_NOT_IN_PROPORTION = ("batch_size",)
_OF_DATA = ("train_examples", "test_examples")
# Numbers of rounds beside `total_rounds`.
_ROUNDS = tagged(ProcessSettings, ROUND)


@dataclasses.dataclass(frozen=True)
class Scale:
    """A fraction by which a run is scaled down.

    Attributes:
      fraction: In (0, 1]; None for 'tiny'.
    """

    fraction: float | None

    def __call__(self, name: str, value: int) -> int:
        """Returns the scaled value of one number."""
        if self.fraction is None:
            return min(value, TINY_MOST[name])
        if name in _NOT_IN_PROPORTION:
            return value
        return min(value, max(1, round(value * self.fraction)))

    def settings(
        self, values: Mapping[str, Any], given: Container[str]
    ) -> dict[str, Any]:
        """Returns the scaled settings; `tiny` leaves the `given` ones as they are.

        The partition `domain` keeps its number of clients: each domain has its own.
        """
        scaled = [
            name
            for name in TINY_MOST
            if name not in _OF_DATA and values.get(name) is not None
        ]
        left: dict[str, Any] = {name: self(name, values[name]) for name in scaled}
        if self.fraction is not None:
            for name in {*_ROUNDS} & values.keys():
                if isinstance(value := values[name], tuple):
                    left[name] = tuple(self(name, each) for each in value)
                else:
                    left[name] = self(name, value)
        if self.fraction is None:
            left.update({name: values[name] for name in scaled if name in given})
            if "clients_per_round" in given and "num_clients" not in given:
                enough = max(left["num_clients"], left["clients_per_round"])
                left["num_clients"] = enough
        share = left["local_epochs"] / values["local_epochs"]
        epochs = values.get("straggler_epochs", ())
        left["straggler_epochs"] = tuple(share * each for each in epochs)
        if values["partition"] == "domain":
            left["num_clients"] = values["num_clients"]
        left["clients_per_round"] = min(left["clients_per_round"], left["num_clients"])
        return left


def parse(text: str) -> Scale:
    """Returns the scale of a setting: `tiny`, or a number above 0 and of at most 1."""
    if text == TINY:
        return Scale(None)
    try:
        fraction = float(text)
    except ValueError:
        fraction = 0.0
    if not 0 < fraction <= 1:
        raise SettingError(
            "scale", text, "it must be tiny, or a number above 0 and of at most 1."
        )
    return Scale(fraction)
