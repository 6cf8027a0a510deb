r"""FedSWA: a learning rate that falls within each round.

Junkang Liu, Yuanyuan Liu, Fanhua Shang, Hongying Liu, Jin Liu, Wei Feng. "FedSWA:
Improving Generalization in Federated Learning with Highly Heterogeneous Data via
Momentum-Based Stochastic Controlled Weight Averaging." ICML 2025. https://arxiv.org/abs/2507.20016

$$
\eta_k = 2 \eta \left(1 - \frac{k}{K}\right), \qquad k = 0, \ldots, K - 1
$$

Step k of a client's K has the rate eta_k; eta has the cosine schedule over rounds. The
mean of the clients' models is unweighted; the server may take longer steps. Methods
that divide by K eta (SCAFFOLD) or count steps (FedNova) take the K steps as equally
long; in the sum the rates are (K + 1) / K of that.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from tff_reg.lazy import tf
from tff_reg.methods import cards, method, papers


@dataclasses.dataclass(frozen=True)
class FedSWA(method.Method):
    """A learning rate that falls within each round, without hyperparameters."""

    name = "fedswa"
    title = "Learning rate that falls linearly to 0 within each round"
    paper = "Liu et al., ICML 2025"
    card = cards.Card(
        cards.LOSS,
        "Lets a client's learning rate fall from twice its value to 0 within a round, "
        "so that the averaged models are near their minima.",
        "Skewed classes at FedAvg's cost and traffic.",
    )
    paper_settings = papers.FEDSWA
    required_settings = {"client_weighting": "uniform"}
    exclusive = (method.RATE,)

    def scale_rate(self, local: method.Local) -> Any:
        return 2 * falling(local)


def falling(local: method.Local) -> Any:
    """Returns 1 - k / K for step k of K, a scalar in the weights' data type."""
    dtype = local.start[0].dtype
    return 1 - tf.cast(local.num_steps, dtype) / tf.cast(local.total_steps, dtype)
