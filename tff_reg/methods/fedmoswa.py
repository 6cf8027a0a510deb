r"""FedMoSWA: FedSWA's falling learning rate with control variates.

Junkang Liu et al., ICML 2025, as `fedswa`.

$$
w \leftarrow w - \eta \left(1 - \frac{k}{K}\right) (g + c - c_i), \qquad
c_i' = \frac{a_i - w_i}{K \eta / 2} + c_i - c, \qquad
c' = c + \gamma \operatorname{mean}_i (c_i' - c)
$$

g is the clipped gradient with weight decay, and with momentum its buffer (Nesterov's
form also has a part of c - c_i from the buffer); c' of the first round is the mean of
c_i'. The authors' option for FedMoSWA (`rule` 'published') runs another method: a
constant learning rate and K eta instead of K eta / 2; and it keeps c_i with the worker
process that trains a client, where ours has one for each client.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from tff_reg import settings
from tff_reg.lazy import tf
from tff_reg.methods import cards, drift, fedswa, memories, method, papers


@dataclasses.dataclass(frozen=True)
class FedMoSWA(method.Method):
    """Control variates with a learning rate that falls within each round."""

    name = "fedmoswa"
    title = "Control variates with a learning rate that falls within each round"
    paper = "Liu et al., ICML 2025"
    card = cards.Card(
        cards.DRIFT,
        "Control variates, the server's a moving mean, with a learning rate that falls "
        "to 0 within a round.",
        "Skewed classes, and clients that take part repeatedly.",
    )
    paper_settings = papers.FEDSWA
    required_settings = {"client_weighting": "uniform"}
    exclusive = (method.DRIFT, method.RATE)
    client_memory = {"c": memories.zeros}
    server_memory = {"c": memories.sent(memories.zeros), "rounds": memories.count}
    uploads = ("c",)

    share: float = settings.setting(
        0.4,
        symbol="gamma",
        help="gamma, the weight of a round in the server's control variate.",
        above=0,
        maximum=1,
    )
    rule: str = settings.setting(
        "paper",
        help="'paper', or 'published': the authors' option, with a constant rate.",
        choices=("paper", "published"),
    )

    def correct_clipped(
        self, local: method.Local, gradient: method.Tensors
    ) -> method.Tensors:
        pairs = zip(local.server_memory["c"], local.memory["c"])
        added = [common - own for common, own in pairs]
        if "momentum" in local.hparams:
            # So much that what comes of it with the momentum's buffer is c - c_i.
            dtype = local.start[0].dtype
            rest = 1 - tf.cast(local.hparams["momentum"], dtype)
            factor = tf.where(local.num_steps == 0, tf.ones_like(rest), rest)
            added = [factor * a for a in added]
        return drift.plus(gradient, added)

    def scale_rate(self, local: method.Local) -> Any:
        if self.rule == "published":
            return 1.0
        return fedswa.falling(local)

    def finish(self, local: method.Local) -> method.Finished:
        dtype = local.start[0].dtype
        rate = tf.cast(local.hparams["learning_rate"], dtype)
        length = tf.cast(local.num_steps, dtype) * rate
        if self.rule == "paper":
            length /= 2
        triples = zip(local.delta, local.memory["c"], local.server_memory["c"])
        new = [
            own - common - tf.math.divide_no_nan(moved, length)
            for moved, own, common in triples
        ]
        return method.Finished({"c": new}, {"c": new})

    def update_memory(self, server: method.Server) -> method.Memory:
        is_first = server.memory["rounds"] == 0
        old, means = server.memory["c"], server.mean_of(server.uploads["c"])
        new = [
            tf.where(is_first, mean, c + self.share * (mean - c))
            for c, mean in zip(old, means)
        ]
        return {"c": new, "rounds": server.memory["rounds"] + 1}
