r"""FedAvg: federated averaging.

H. Brendan McMahan, Eider Moore, Daniel Ramage, Seth Hampson, Blaise Aguera y Arcas.
"Communication-Efficient Learning of Deep Networks from Decentralized Data." AISTATS
2017. https://arxiv.org/abs/1602.05629

$$
\bar w' = \sum_i \frac{n_i}{\sum_j n_j}\, w_i
$$
"""

from __future__ import annotations

import dataclasses

from tff_reg.methods import cards, method, papers


@dataclasses.dataclass(frozen=True)
class FedAvg(method.Method):
    """Plain federated averaging, without any change."""

    name = "fedavg"
    title = "Weighted average of the clients' models"
    paper = "McMahan et al., AISTATS 2017"
    card = cards.Card(
        cards.LOSS,
        "Each client trains the global model on its own data with SGD; the server "
        "averages the models, weighted by the examples that each client has.",
        "The baseline of every comparison, and hard to beat where clients' data are "
        "alike.",
    )
    paper_settings = papers.FEDALIGN
