"""The guarantee of a run with differentially private aggregation.

The neighbouring relation is the replacement of one client, with all its data, by
another: cohorts have a fixed size and are drawn without replacement, which makes the
number of clients public. A clipped sum then changes by twice the clipping norm, so half
the noise multiplier counts. Accounting is by Renyi differential privacy (Wang, Balle,
Kasiviswanathan, "Subsampled Renyi Differential Privacy and Analytical Moments
Accountant", AISTATS 2019, https://arxiv.org/abs/1808.00087), with `dp_accounting`'s
`RdpAccountant` and `SampledWithoutReplacementDpEvent`.

Amplification by sampling needs rounds that depend on each other only through released
values. If clients have a memory, a client's update depends on the earlier rounds that
it took part in, so every client is then counted in every round.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from tff_reg.experiment.config.run_config import ResolvedConfig
from tff_reg.lazy import dp_accounting, rdp
from tff_reg.methods import method

_NO_SAMPLING = "not counted"


def epsilon(
    *,
    noise_multiplier: float,
    delta: float,
    rounds: int,
    clients_per_round: int,
    num_clients: int,
    remembers: bool = False,
    sums_per_round: int = 1,
) -> float:
    """Computes epsilon for the replacement of one client.

    `remembers` says whether clients or the server have a memory from round to round.
    """
    if noise_multiplier == 0:
        return math.inf
    # A sum of vectors of norm C changes by 2 C; two sums are one of twice the length.
    ratio = noise_multiplier / 2 / math.sqrt(sums_per_round)
    event = dp_accounting.GaussianDpEvent(ratio)
    if clients_per_round < num_clients and not remembers:
        event = dp_accounting.SampledWithoutReplacementDpEvent(
            num_clients, clients_per_round, event
        )
    accountant = rdp.RdpAccountant(
        neighboring_relation=dp_accounting.NeighboringRelation.REPLACE_ONE
    )
    accountant.compose(event, rounds)
    return float(accountant.get_epsilon(delta))


def summarize(settings: Mapping[str, Any], rounds: int) -> dict[str, Any]:
    """Returns the guarantee of a run, for `summary.json`; epsilon None is none."""
    methods = ResolvedConfig.load(settings).methods
    # A server's memory that no hook changes holds past models, which are released.
    remembers = any(
        method.keeps_at_clients(m)
        or (m.server_memory and method.overrides(m, "update_memory"))
        for m in methods
    )
    # Uploads beside the update are another noisy sum.
    sums_per_round = 2 if any(m.uploads for m in methods) else 1
    found = epsilon(
        noise_multiplier=settings["dp_noise_multiplier"],
        delta=settings["dp_delta"],
        rounds=rounds,
        clients_per_round=settings["clients_per_round"],
        num_clients=settings["num_clients"],
        remembers=remembers,
        sums_per_round=sums_per_round,
    )
    return {
        "epsilon": round(found, 6) if math.isfinite(found) else None,
        "delta": settings["dp_delta"],
        "neighbours": "one client replaced",
        "sampling": _NO_SAMPLING if remembers else "without replacement",
        "accountant": "RDP",
        "noisy_sums_per_round": sums_per_round,
        "process": settings["process"],
        "clients_per_round": settings["clients_per_round"],
        "num_clients": settings["num_clients"],
    }


def in_words(guarantee: Mapping[str, Any]) -> list[str]:
    """Describes a guarantee in sentences."""
    process, found = guarantee["process"], guarantee["epsilon"]
    shown = "none, there is no noise" if found is None else f"{found:.4g}"
    lines = [
        f"Privacy: epsilon {shown} at delta {guarantee['delta']:g} for replacing one"
        f" client (RDP accountant, cohorts of {guarantee['clients_per_round']} of"
        f" {guarantee['num_clients']} drawn without replacement). It is of the models:"
        " training metrics are exact sums, and the sizes of clients and the images'"
        " normalisation are taken as public."
    ]
    if guarantee["sampling"] == _NO_SAMPLING:
        lines.append(
            f"Clients of {process} have a memory, so epsilon counts every client in"
            " every round."
        )
    if guarantee["noisy_sums_per_round"] > 1:
        lines.append(
            f"The uploads of {process} beside the updates have noise of their own, and"
            " epsilon counts both."
        )
    return lines
