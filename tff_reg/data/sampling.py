"""Sampling of the clients that take part in a round.

All functions are stateless: round 17 of seed 3 has the same cohort whether or not
rounds 0 to 16 were run before it.
"""

from __future__ import annotations

import math
import numbers
import operator
import reprlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from tff_reg.data import keys
from tff_reg.lazy import np


class SamplingError(ValueError):
    """A cohort that cannot be drawn."""


def _check_clients(client_ids: Sequence[str]) -> None:
    if not len(client_ids):
        raise SamplingError(
            "There are no clients to sample from; pass at least one client id."
        )


def sample_clients(
    client_ids: Sequence[str], clients_per_round: int, *, seed: int, round_num: int
) -> list[str]:
    """Draws a fixed number of clients, uniformly and without replacement.

    >>> from tff_reg import data
    >>> data.sample_clients(["a", "b", "c", "d"], 2, seed=0, round_num=1)
    ['a', 'b']

    Args:
      client_ids: All clients' names.
      clients_per_round: Number of clients to draw, from 1 to all.
      seed: The run's seed.
      round_num: The round.

    Returns:
      `clients_per_round` distinct names in the order of `client_ids`.

    Raises:
      SamplingError: If there are no clients, or `clients_per_round` is not between
        1 and their number.
    """
    _check_clients(client_ids)
    clients_per_round = operator.index(clients_per_round)
    if not 1 <= clients_per_round <= len(client_ids):
        raise SamplingError(
            f"Cannot draw {clients_per_round} clients per round from "
            f"{len(client_ids)}; draw 1 to {len(client_ids)}."
        )
    generator = keys.driver_generator("sample_clients", seed, round_num)
    chosen = generator.permutation(len(client_ids))[:clients_per_round]
    return [client_ids[int(position)] for position in np.sort(chosen)]


def mean_size(kind: str, clients_per_round: int, num_clients: int) -> float:
    """Returns the mean size of cohorts, of which none is empty."""
    if kind != "independent":
        return clients_per_round
    are_empty = (1 - clients_per_round / num_clients) ** num_clients
    return clients_per_round / (1 - are_empty)


def sample_clients_bernoulli(
    client_ids: Sequence[str], participation: float, *, seed: int, round_num: int
) -> list[str]:
    """Draws each client independently with the same probability.

    The FedDyn code and its descendants (FedDC, FedSpeed, MAN) sample in this way: the
    cohort's size varies from round to round, and an empty cohort is drawn again. This
    function draws from the same distribution directly (the first member from a
    truncated geometric distribution, the others independently), so that small
    probabilities need no repetition.

    >>> from tff_reg import data
    >>> data.sample_clients_bernoulli(["a", "b", "c", "d"], 0.5, seed=0, round_num=1)
    ['a', 'd']

    Args:
      client_ids: All clients' names.
      participation: The probability, above 0 and at most 1.
      seed: The run's seed.
      round_num: The round.

    Returns:
      At least one name, in the order of `client_ids`.

    Raises:
      SamplingError: If there are no clients or `participation` is out of range.
    """
    _check_clients(client_ids)
    if not isinstance(participation, numbers.Real) or not 0 < participation <= 1:
        raise SamplingError(
            f"participation is {participation!r}; pass a probability above 0 and at "
            "most 1."
        )
    count = len(client_ids)
    if participation == 1:
        return list(client_ids)
    generator = keys.driver_generator("sample_clients_bernoulli", seed, round_num)
    # log P(one client is absent), and P(at least one client is present).
    log_absent = math.log1p(-participation)
    some_present = -math.expm1(count * log_absent)
    first = int(math.log1p(-generator.random() * some_present) / log_absent)
    first = min(first, count - 1)
    present = generator.random(count) < participation
    present[:first] = False
    present[first] = True
    return [client_ids[int(position)] for position in np.flatnonzero(present)]


def sample_by(
    sample_fn: Callable[[int, list[str]], Sequence[str]],
    client_ids: Sequence[str],
    *,
    round_num: int,
) -> list[str]:
    """Draws clients with a user's function.

    >>> from tff_reg.data import sampling
    >>> def in_turn(round_num, client_ids):
    ...     return [client_ids[round_num % len(client_ids)]]
    >>> sampling.sample_by(in_turn, ["a", "b", "c"], round_num=4)
    ['b']
    """
    _check_clients(client_ids)
    found: Any = sample_fn(round_num, list(client_ids))
    given = f"sample_fn returned {reprlib.repr(found)} in round {round_num}"
    if isinstance(found, str) or not isinstance(found, Iterable):
        raise SamplingError(f"{given}; it must return a list of client ids.")
    cohort = list(found)
    known = set(client_ids)
    for name in cohort:
        if not isinstance(name, str) or name not in known:
            raise SamplingError(
                f"{given}, but {name!r} is no client; the clients are"
                f" {reprlib.repr(list(client_ids))}."
            )
    if not cohort or len(set(cohort)) < len(cohort):
        raise SamplingError(f"{given}; give at least one client, and none twice.")
    again: Any = [*sample_fn(round_num, list(client_ids))]
    if again != cohort:
        raise SamplingError(
            f"{given}, and when it was called again {reprlib.repr(again)}; it must"
            " depend on the round and the clients alone: draw with"
            " np.random.default_rng([seed, round_num])."
        )
    return [str(name) for name in cohort]
