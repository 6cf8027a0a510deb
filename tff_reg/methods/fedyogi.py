r"""FedYogi: Yogi at the server.

Sashank J. Reddi, Zachary Charles, Manzil Zaheer, Zachary Garrett, Keith Rush, Jakub
Konecny, Sanjiv Kumar, H. Brendan McMahan. "Adaptive Federated Optimization." ICLR 2021.
https://arxiv.org/abs/2003.00295

$$
m' = \beta_1 m + (1 - \beta_1) \Delta, \qquad
v' = v - (1 - \beta_2)\, \Delta^2 \operatorname{sign}(v - \Delta^2), \qquad
\bar w' = \bar w + \eta \frac{m'}{\sqrt{v'} + \tau}
$$

Algorithm 2 with the paper's betas, 0.9 and 0.99; v begins at tau^2. The learning rates
and tau are those of the FedMLB paper's FedAdam.

The mean is weighted by examples; FedACG's code takes the plain mean
(`--client_weighting=uniform`).
"""

from __future__ import annotations

import dataclasses

from tff_reg.methods import cards, method, papers


@dataclasses.dataclass(frozen=True)
class FedYogi(method.Method):
    """The server optimiser Yogi."""

    name = "fedyogi"
    title = "Yogi as the server optimiser"
    paper = "Reddi et al., ICLR 2021"
    card = cards.Card(
        cards.SERVER,
        "Treats the mean update as a gradient for Yogi.",
        "The same as FedAdam, with a slower second moment.",
    )
    paper_settings = papers.ADAPTIVE
    required_settings = {
        "server_optimizer": "yogi",
        "server_learning_rate": 0.01,
        "server_beta1": 0.9,
    }
    exclusive = (method.SERVER,)
