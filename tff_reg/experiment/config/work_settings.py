"""Clients that drop out, do part of their work, are late or attack.

This module needs no TensorFlow.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Optional

from tff_reg.methods import catalogue
from tff_reg.settings import FILE, conflicts, only_with, setting, wrong_when
from tff_reg.training import process_settings

_of_rounds = functools.partial(setting, group=process_settings.ROUNDS)


_CENTRAL = conflicts("process", *catalogue.POOLED, why="has one client")
_PRIVATE = conflicts("aggregator", "dp", why="counts on cohorts of one size")


@dataclasses.dataclass(frozen=True, kw_only=True)
class WorkSettings:
    """The settings of unequal work; see `rounds.unequal_work`."""

    dropout: float = _of_rounds(
        0.0,
        help="probability with which a client of a round drops out: its update never"
        " arrives, and it keeps its old state",
        minimum=0,
        below=1,
        rules=(
            _CENTRAL,
            _PRIVATE,
        ),
    )
    straggler_share: float = _of_rounds(
        0.0,
        help="probability with which a client of a round is a straggler: it trains for"
        " straggler_epochs",
        minimum=0,
        maximum=1,
        rules=(
            _CENTRAL,
            only_with(
                "straggler_epochs", why="give straggler_epochs, such as 1,4, too."
            ),
        ),
    )
    straggler_epochs: tuple[float, ...] = _of_rounds(
        (),
        help="the least and the most epochs of stragglers, such as 1,4, drawn evenly"
        " for each visit: whole numbers between whole numbers",
        above=0,
        keeps_whole=True,
        rules=(
            _CENTRAL,
            conflicts("local_steps", why="sets the steps of every client"),
            only_with("straggler_share", why="give straggler_share, such as 0.5, too."),
            wrong_when(
                lambda straggler_epochs, local_epochs: (
                    len(straggler_epochs) != 2
                    or not straggler_epochs[0] <= straggler_epochs[1] <= local_epochs
                ),
                "give the least and the most, up to local_epochs={local_epochs:g}.",
            ),
        ),
    )
    client_speeds: Optional[str] = _of_rounds(
        None,
        help="CSV file with the columns client, steps_per_second and, if known,"
        " transfer_seconds, for the simulated seconds of a round; without the column"
        " client, each client has one of the rows, drawn once",
        placeholder="FILE",
        rules=(_CENTRAL,),
        tags=(FILE,),
    )
    deadline: Optional[float] = _of_rounds(
        None,
        help="client_speeds: simulated seconds after which a round ends; clients that"
        " need longer are lost",
        above=0,
        rules=(
            _CENTRAL,
            _PRIVATE,
            only_with(
                "client_speeds",
                why="it needs client_speeds, which say how long clients take.",
            ),
        ),
    )
    over_select: float = _of_rounds(
        1.0,
        help="factor by which more clients than clients_per_round are drawn; the first"
        " clients_per_round that finish count",
        minimum=1,
        rules=(
            _CENTRAL,
            _PRIVATE,
            only_with("client_sampling", "fixed"),
            wrong_when(
                lambda over_select, clients_per_round, num_clients, scale: (
                    scale is None
                    and over_select > 1
                    and over_select * clients_per_round > num_clients
                ),
                "it draws more than the {num_clients} clients; give fewer"
                " clients_per_round.",
            ),
        ),
    )
    attack_share: float = _of_rounds(
        0.0,
        help="share of all clients, drawn once, that multiply what they upload by"
        " attack_factor; other clients' training is not changed",
        minimum=0,
        maximum=1,
        rules=(conflicts("process", *catalogue.REFERENCES, why="averages no models"),),
    )
    attack_factor: Optional[float] = _of_rounds(
        -1.0,
        help="what attackers multiply their uploads by: -1 flips the signs, 10 scales",
        rules=(only_with("attack_share"),),
    )


def is_unequal(config: WorkSettings) -> bool:
    """Whether clients drop out, attack, do part of their work or have speeds."""
    partial = config.dropout or config.straggler_epochs or config.client_speeds
    partial = partial or config.attack_share
    return bool(partial or config.over_select > 1)
