r"""pFedMe: each client trains a model of its own, which draws the local one.

Canh T. Dinh, Nguyen H. Tran, Tuan Dung Nguyen. "Personalized Federated Learning with
Moreau Envelopes." NeurIPS 2020. https://arxiv.org/abs/2006.08848

$$
\theta_i \approx \arg\min_\theta f_i(\theta) + \frac{\lambda}{2}
\lVert \theta - w_i \rVert^2, \qquad
w_i \leftarrow w_i - \eta \lambda (w_i - \theta_i)
$$

Algorithm 1: on each batch the personal model $\theta_i$ takes K steps of plain SGD with
a learning rate of its own, then the local model moves towards it. As in the authors'
code $\theta_i$ goes on from batch to batch, and begins a round as the received model.
The server's $w \leftarrow (1 - \beta) w + \beta \bar w$ is SGD with the learning rate
`--server_learning_rate`. A client is evaluated with its last $\theta_i$. With BatchNorm
its statistics are the global model's.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from tff_reg import settings
from tff_reg.lazy import tf
from tff_reg.methods import cards, ditto, method, papers


@dataclasses.dataclass(frozen=True)
class PFedMe(ditto.OwnModel):
    """Gradients of Moreau envelopes."""

    name = "pfedme"
    title = "Local models follow personal ones that stay near them"
    paper = "Dinh et al., NeurIPS 2020"
    card = cards.Card(
        cards.PERSONAL,
        "A model of each client's own takes several steps on a batch, held near the "
        "local model, which then follows it; a step costs K gradients.",
        "Each client's own accuracy.",
        cards.BY_HAND,
    )
    paper_settings = papers.MAN

    strength: float = settings.setting(
        15.0,
        symbol="lambda",
        help="lambda, which draws personal and local model together: 15 in the paper.",
        above=0,
    )
    steps: int = settings.setting(
        5, symbol="K", help="Steps of the personal model on each batch.", minimum=1
    )
    learning_rate: float = settings.setting(
        0.09,
        help="Learning rate of the personal model: 0.09 in the authors' scripts.",
        above=0,
    )

    def begin(self, local: method.Local) -> Any:
        return tuple(tf.identity(w) for w in local.weights)

    def gradient(
        self, local: method.Local, gradient_at: method.GradientAt
    ) -> method.Change:
        own = list(local.state)
        for _ in range(self.steps):
            away = [v - w for v, w in zip(own, local.weights)]
            own = [
                v - self.learning_rate * (g + self.strength * d)
                for v, g, d in zip(own, gradient_at(away), away)
            ]
        gradient = [self.strength * (w - v) for v, w in zip(own, local.weights)]
        return method.Change(gradient, kept={"own": tuple(own)})
