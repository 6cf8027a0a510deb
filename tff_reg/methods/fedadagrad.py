r"""FedAdagrad: Adagrad at the server.

Sashank J. Reddi, Zachary Charles, Manzil Zaheer, Zachary Garrett, Keith Rush, Jakub
Konecny, Sanjiv Kumar, H. Brendan McMahan. "Adaptive Federated Optimization." ICLR 2021.
https://arxiv.org/abs/2003.00295

$$
v' = v + \Delta^2, \qquad
\bar w' = \bar w + \eta \frac{\Delta}{\sqrt{v'} + \tau}, \qquad
\Delta = \operatorname{mean}_i (w_i - \bar w)
$$

Algorithm 2 without momentum (beta1 = 0), as in the paper's experiments; v begins at
tau^2. The learning rates and tau are those of the FedMLB paper's FedAdam.

The mean is weighted by examples; FedACG's code takes the plain mean
(`--client_weighting=uniform`).
"""

from __future__ import annotations

import dataclasses

from tff_reg.methods import cards, method, papers


@dataclasses.dataclass(frozen=True)
class FedAdagrad(method.Method):
    """The server optimiser Adagrad."""

    name = "fedadagrad"
    title = "Adagrad as the server optimiser"
    paper = "Reddi et al., ICLR 2021"
    card = cards.Card(
        cards.SERVER,
        "Treats the mean update as a gradient for Adagrad.",
        "Models with sparse updates.",
    )
    paper_settings = papers.ADAPTIVE
    required_settings = {
        "server_optimizer": "adagrad",
        "server_learning_rate": 0.01,
        "server_beta1": 0.0,
    }
    exclusive = (method.SERVER,)
