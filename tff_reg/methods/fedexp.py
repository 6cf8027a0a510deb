r"""FedExP: a server step that is longer where clients' updates differ.

Divyansh Jhunjhunwala, Shiqiang Wang, Gauri Joshi. "FedExP: Speeding Up Federated
Averaging via Extrapolation." ICLR 2023. https://arxiv.org/abs/2301.09604

$$
\eta_t = \max\left(1, \frac{\sum_i p_i \| \Delta_i \|^2}
{2 (\| \bar \Delta \|^2 + |S| \epsilon_t)}\right), \qquad
\bar w' = \bar w + \eta_t \bar \Delta, \qquad \Delta_i = w_i - a_i
$$

eps_t is epsilon times the decay to the power 2 t, for t = 1, 2, ... This is the
authors' code; the paper leaves |S| out (`rule` 'paper') and weighs clients alike
(`--client_weighting=uniform`). Clients upload one number more. Evaluated is the mean of
the last two models, after the first round the model itself; clients train on the last.
The factor eta_t is the measurement `server_rate`.
"""

from __future__ import annotations

import dataclasses

from tff_reg import settings
from tff_reg.lazy import tf
from tff_reg.methods import cards, memories, method, papers


@dataclasses.dataclass(frozen=True)
class FedExP(method.Method):
    """Extrapolation at the server."""

    name = "fedexp"
    title = "A server step that is longer where clients' updates differ"
    paper = "Jhunjhunwala et al., ICLR 2023"
    card = cards.Card(
        cards.SERVER,
        "Lengthens the server's step by the ratio of the updates' mean squared norm to "
        "the squared norm of their mean, and evaluates the mean of two models.",
        "Clients whose updates point in different directions, at FedAvg's cost.",
    )
    paper_settings = papers.FEDEXP
    server_memory = {"previous": memories.initial_weights, "rounds": memories.count}
    uploads = ("squared_norm",)
    server_step = "the clients' mean update times fedexp's factor"

    epsilon: float = settings.setting(
        1e-3,
        symbol="epsilon",
        help="epsilon, added to the denominator: 0.1 for EMNIST.",
        above=0,
    )
    decay: float = settings.setting(
        0.998,
        help="decay of the clients' learning rate a round, whose square epsilon has.",
        above=0,
        maximum=1,
    )
    rule: str = settings.setting(
        "code",
        help="Factor of epsilon: 'code' has the number of clients, 'paper' 1.",
        choices=("code", "paper"),
    )

    def finish(self, local: method.Local) -> method.Finished:
        square = tf.add_n([tf.reduce_sum(tf.square(d)) for d in local.delta])
        sums = {"weight": local.weight, "square": local.weight * square}
        return method.Finished(upload={"squared_norm": sums})

    def update_memory(self, server: method.Server) -> method.Memory:
        rounds = server.memory["rounds"] + 1
        return {"previous": list(server.before), "rounds": rounds}

    def next_model(self, server: method.Server) -> method.Change:
        mean, sums = server.mean_delta, server.uploads["squared_norm"]
        dtype = mean[0].dtype
        rounds = tf.cast(server.memory["rounds"], dtype)
        added = self.epsilon * tf.constant(self.decay, dtype) ** (2 * rounds)
        if self.rule == "code":
            added *= tf.cast(server.count, dtype)
        squared = tf.add_n([tf.reduce_sum(tf.square(m)) for m in mean])
        factor = sums["square"] / sums["weight"] / (2 * (squared + added))
        factor = tf.maximum(factor, tf.ones_like(factor))
        model = [b + factor * m for b, m in zip(server.before, mean)]
        return method.Change(model, {"server_rate": factor})

    def evaluated(
        self, weights: method.Tensors, memory: method.Memory
    ) -> method.Tensors:
        is_first = memory["rounds"] < 2
        return [
            tf.where(is_first, w, (w + p) / 2)
            for w, p in zip(weights, memory["previous"])
        ]
