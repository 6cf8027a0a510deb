r"""FedCM: every gradient is mixed with the direction of the last round.

Jing Xu, Sen Wang, Liwei Wang, Andrew Chi-Chih Yao. "FedCM: Federated Learning with
Client-level Momentum." 2021. https://arxiv.org/abs/2106.10874

$$
\alpha \nabla \ell(w) + (1 - \alpha) D, \qquad
D' = \operatorname{mean}_i \frac{\bar w - w_i}{K \eta}
$$

The gradient is alpha g + (1 - alpha) D, clipped, with g that of the loss. D is the last
round's mean of (wg - w_i) / (K l), with K a client's steps and l its learning rate
in that round; in the first round it is 0, so the steps are alpha times as long. D is
sent with the model; clients upload K l, one number, beside their update. With a client
optimiser other than SGD without momentum, wg - w_i is replaced by l times the sum of
the gradients that the optimiser followed, which clients then upload as well. Where
clients weigh by their examples, they do so in D. With adaptive client optimisers it
stays far behind FedAvg: D has the scale of gradients, which these do not keep.

FL-Simulator, which has FedCM's implementation by others, takes the steps of the first
client (epochs times examples over batch size, a fraction) as everyone's K. Ours are
the population's `local_steps`, which may be a fraction: by default those of a client of
mean size, or, where sizes are not known, those that were taken.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from tff_reg import settings
from tff_reg.lazy import tf
from tff_reg.methods import memories, method, papers


@dataclasses.dataclass(frozen=True)
class FedCM(method.Method):
    """Client-level momentum."""

    name = "fedcm"
    title = (
        "Mixes local gradients with the previous global update (client-level momentum)"
    )
    paper = "Xu et al., 2021"
    paper_settings = papers.MAN
    required_settings = {"client_weighting": "uniform"}
    exclusive = (method.DRIFT,)
    needs = (method.EXACT_UPLOADS,)
    server_memory = {"direction": memories.sent(memories.zeros)}
    uploads = ("direction",)
    if_adaptive = (
        "stays far behind FedAvg (digits: 0.333 with Adam, where FedAvg has 0.797), as"
        " its direction has the scale of gradients"
    )

    share: float = settings.setting(
        0.1,
        symbol="alpha",
        help=(
            "alpha, the weight of the client's own gradient, above 0 and at most 1. 1 "
            "is FedAvg."
        ),
        above=0,
        maximum=1,
    )

    def correct(self, local: method.Local, gradient: method.Tensors) -> method.Tensors:
        if self.share == 1:
            return gradient
        return [
            self.share * own + (1 - self.share) * common
            for own, common in zip(gradient, local.server_memory["direction"])
        ]

    def finish(self, local: method.Local) -> method.Finished:
        dtype = local.start[0].dtype
        rate = tf.cast(local.hparams["learning_rate"], dtype)
        step_size = tf.cast(local.local_steps, dtype) * rate
        uploads: dict[str, Any] = {"step_size": step_size}
        if local.scaled_gradient_sum is not None:
            uploads["count"] = tf.ones([], dtype)
            uploads["weight"] = local.weight
            uploads["taken"] = [local.weight * t for t in local.taken]
        return method.Finished(upload={"direction": uploads})

    def update_memory(self, server: method.Server) -> method.Memory:
        uploads = server.uploads["direction"]
        taken = [-total for total in server.delta_sum]
        if "taken" in uploads:
            factor = tf.math.divide_no_nan(uploads["count"], uploads["weight"])
            taken = [factor * t for t in uploads["taken"]]
        total = uploads["step_size"]
        direction = [tf.math.divide_no_nan(t, total) for t in taken]
        return {"direction": direction}
