r"""FedAdam: Adam at the server.

Sashank J. Reddi, Zachary Charles, Manzil Zaheer, Zachary Garrett, Keith Rush, Jakub
Konecny, Sanjiv Kumar, H. Brendan McMahan. "Adaptive Federated Optimization." ICLR 2021.
https://arxiv.org/abs/2003.00295

$$
m' = \beta_1 m + (1 - \beta_1) \Delta, \qquad
v' = \beta_2 v + (1 - \beta_2) \Delta^2, \qquad
\bar w' = \bar w + \eta \frac{m'}{\sqrt{v'} + \tau}
$$

Algorithm 2 with the paper's betas, 0.9 and 0.99; v begins at tau^2, without bias
correction in the first rounds. tau is 0.001, as in the FedMLB paper.

The mean is weighted by examples; FedACG's code takes the plain mean
(`--client_weighting=uniform`). TFF 0.87's own Adam has beta2 0.999, v = 0 at first, and
bias correction: over 1,000 rounds its steps are 0.3 to 0.75 times as long as these.
"""

from __future__ import annotations

import dataclasses

from tff_reg.methods import cards, method, papers


@dataclasses.dataclass(frozen=True)
class FedAdam(method.Method):
    """The server optimiser Adam."""

    name = "fedadam"
    title = "Adam as the server optimiser"
    paper = "Reddi et al., ICLR 2021"
    card = cards.Card(
        cards.SERVER,
        "Treats the mean update as a gradient for Adam.",
        "Models with sparse or badly scaled updates.",
    )
    paper_settings = papers.ADAPTIVE
    required_settings = {
        "server_optimizer": "adam",
        "server_learning_rate": 0.01,
        "server_beta1": 0.9,
    }
    exclusive = (method.SERVER,)
