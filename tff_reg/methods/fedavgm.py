r"""FedAvgM: server momentum.

Tzu-Ming Harry Hsu, Hang Qi, Matthew Brown. "Measuring the Effects of Non-Identical Data
Distribution for Federated Visual Classification." 2019.
https://arxiv.org/abs/1909.06335

$$
m' = \beta m + \Delta, \qquad \bar w' = \bar w + \eta m', \qquad
\Delta = \operatorname{mean}_i (w_i - \bar w)
$$
"""

from __future__ import annotations

import dataclasses

from tff_reg.methods import cards, method, papers


@dataclasses.dataclass(frozen=True)
class FedAvgM(method.Method):
    """Momentum of the server's SGD."""

    name = "fedavgm"
    title = "Momentum in the server's update"
    paper = "Hsu et al., 2019"
    card = cards.Card(
        cards.SERVER,
        "Applies the mean update with momentum.",
        "Skewed classes at FedAvg's cost.",
    )
    paper_settings = papers.FEDMLB
    # The FedMLB paper chooses among 0.4, 0.6 and 0.8; the group's later code has 0.4.
    required_settings = {"server_optimizer": "sgd", "server_momentum": 0.4}
    exclusive = (method.SERVER,)
