r"""FedACG: server momentum that is added to the weights that clients receive.

Geeho Kim, Jinkyu Kim, Bohyung Han. "Communication-Efficient Federated Learning with
Accelerated Client Gradient." CVPR 2024. https://arxiv.org/abs/2201.03172

$$
\ell(w) + \beta' \| w - \bar w \|^2, \qquad
\bar w = w_g + \lambda m, \qquad
m' = \lambda m + \operatorname{mean}_i (w_i - \bar w), \qquad w_g' = w_g + m'
$$

With m the server's momentum, clients receive a = w_g + lambda m and add beta' ||w -
a||^2 to the loss, as the authors' code does (a proximal term of mu = 2 beta').
Afterwards m' = lambda m + mean of (w_i - a), and the new model, w_g + m', is the
plain mean of the clients' models. Evaluation uses w_g, not the a that clients receive.

The authors' code also applies a round's learning-rate decay after every local epoch
(`epoch_decay`), and computes in mixed precision, which ours does not.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from tff_reg import settings
from tff_reg.lazy import tf
from tff_reg.methods import cards, drift, memories, method, papers


@dataclasses.dataclass(frozen=True)
class FedACG(method.Method):
    """The accelerated client gradient."""

    name = "fedacg"
    title = "Server momentum that is added to the weights that clients receive"
    paper = "Kim et al., CVPR 2024"
    card = cards.Card(
        cards.SERVER,
        "Adds the server's momentum to the weights that clients receive, and holds "
        "clients near that point by a proximal term.",
        "Skewed classes, as clients keep no state.",
    )
    paper_settings = papers.FEDACG
    needs = (method.UNIFORM_WEIGHTING,)
    server_memory = {"momentum": memories.zeros}
    server_step = "plain mean of the clients, which receive fedacg's look-ahead"

    strength: float = settings.setting(
        1e-3,
        symbol="beta'",
        help="beta', factor of the squared distance. 0 is FedAvg if lambda is 0 and"
        " epoch_decay is 1.",
        minimum=0,
    )
    momentum: float = settings.setting(
        0.85,
        symbol="lambda",
        help="lambda, the server's momentum.",
        minimum=0,
        below=1,
    )

    epoch_decay: float = drift.epoch_decay()

    def scale_rate(self, local: method.Local) -> Any:
        return drift.epoch_factor(self.epoch_decay, local)

    def term(self, step: method.Step) -> method.Term:
        squared_distance = tf.add_n(
            [
                tf.reduce_sum(tf.math.squared_difference(local, received))
                for local, received in zip(step.weights, step.start)
            ]
        )
        return method.Term(
            raw=squared_distance, weighted=self.strength * squared_distance
        )

    def broadcast(
        self, weights: method.Tensors, memory: method.Memory
    ) -> method.Tensors:
        return drift.plus(weights, self._decayed(memory))

    def update_memory(self, server: method.Server) -> method.Memory:
        ahead = self._decayed(server.memory)
        return {"momentum": drift.plus(ahead, server.mean_delta)}

    def next_model(self, server: method.Server) -> method.Tensors:
        # `server.weights` is wg plus the mean of w_i - a_i.
        return drift.plus(server.weights, self._decayed(server.old_memory))

    def _decayed(self, memory: method.Memory) -> method.Tensors:
        return [self.momentum * m for m in memory["momentum"]]
