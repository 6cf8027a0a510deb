"""Clients that drop out, do part of their work, or are late.

This module needs no TensorFlow.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any, Optional

from tff_reg.settings import SettingError, setting
from tff_reg.training import process_settings

_of_rounds = functools.partial(setting, group=process_settings.ROUNDS)


@dataclasses.dataclass(frozen=True, kw_only=True)
class WorkSettings:
    """The settings of unequal work; see `rounds.unequal_work`."""

    dropout: float = _of_rounds(
        0.0,
        help="probability with which a client of a round drops out: its update never"
        " arrives, and it keeps its old state",
        minimum=0,
        below=1,
    )
    straggler_share: float = _of_rounds(
        0.0,
        help="probability with which a client of a round is a straggler: it trains for"
        " straggler_epochs",
        minimum=0,
        maximum=1,
    )
    straggler_epochs: tuple[float, ...] = _of_rounds(
        (),
        help="the least and the most epochs of stragglers, such as 1,4, drawn evenly"
        " for each visit: whole numbers between whole numbers",
        above=0,
        keeps_whole=True,
    )
    client_speeds: Optional[str] = _of_rounds(
        None,
        help="CSV file with the columns client, steps_per_second and, if known,"
        " transfer_seconds, for the simulated seconds of a round; without the column"
        " client, each client has one of the rows, drawn once",
        placeholder="FILE",
    )
    deadline: Optional[float] = _of_rounds(
        None,
        help="client_speeds: simulated seconds after which a round ends; clients that"
        " need longer are lost",
        above=0,
    )
    over_select: float = _of_rounds(
        1.0,
        help="factor by which more clients than clients_per_round are drawn; the first"
        " clients_per_round that finish count",
        minimum=1,
    )


NAMES = tuple(WorkSettings.__dataclass_fields__)


def is_unequal(config: WorkSettings) -> bool:
    """Whether a run's clients drop out, do part of their work or have speeds."""
    partial = config.dropout or config.straggler_epochs or config.client_speeds
    return bool(partial or config.over_select > 1)


def resolve(values: dict[str, Any], given: Mapping[str, Any]) -> None:
    """Applies the rules of these settings and of the clients' optimiser."""

    def refuse(name: str, why: str) -> None:
        if given.get(name):
            raise SettingError(name, given[name], why)

    _local_steps(values, refuse)
    values |= process_settings.of_optimizer(given)
    _optimizer(values, refuse)
    _stragglers(values, refuse)
    if values["client_speeds"] is None:
        refuse("deadline", "it needs client_speeds, which say how long clients take.")
        values["deadline"] = None
    if values["over_select"] != 1 and values["client_sampling"] != "fixed":
        refuse("over_select", "it is for client_sampling=fixed.")
    drawn = values["over_select"] * values["clients_per_round"]
    if values["scale"] is None and drawn > values["num_clients"]:
        why = f"it draws more than the {values['num_clients']} clients; give fewer"
        refuse("over_select", f"{why} clients_per_round.")
    if values["aggregator"] == "dp":
        for name in ("dropout", "deadline", "over_select"):
            refuse(name, "aggregator=dp counts on cohorts of one size; leave it out.")
    if values["process"] == "central":
        for name in NAMES:
            refuse(name, "process=central has one client; leave it out.")
            values[name] = WorkSettings.__dataclass_fields__[name].default


def _local_steps(values: dict[str, Any], refuse: Callable[[str, str], None]) -> None:
    if values["local_steps"] is None:
        return
    for name in ("local_epochs", "same_local_steps", "straggler_epochs"):
        refuse(name, "local_steps sets the steps of every client; give one of both.")
    values["same_local_steps"] = False


def _optimizer(values: dict[str, Any], refuse: Callable[[str, str], None]) -> None:
    kind, name = values["client_optimizer"], "keep_client_optimizer"
    if kind == "sgd" and not values["client_momentum"]:
        refuse(
            name, "client_optimizer=sgd without client_momentum has nothing to keep."
        )
        values[name] = False


def _stragglers(values: dict[str, Any], refuse: Callable[[str, str], None]) -> None:
    epochs, share = values["straggler_epochs"], values["straggler_share"]
    if bool(epochs) != bool(share):
        for name, other in (
            ("straggler_share", "straggler_epochs, such as 1,4"),
            ("straggler_epochs", "straggler_share, such as 0.5"),
        ):
            if values[name]:
                refuse(name, f"give {other}, too.")
    if not epochs:
        return
    most = values["local_epochs"]
    if len(epochs) != 2 or epochs[0] > epochs[1] or epochs[1] > most:
        why = f"give the least and the most, up to local_epochs={most:g}."
        raise SettingError("straggler_epochs", epochs, why)
