r"""FedCM: mixes every local gradient with the previous global update.

Jing Xu, Sen Wang, Liwei Wang, Andrew Chi-Chih Yao. "FedCM: Federated Learning with
Client-level Momentum." 2021. https://arxiv.org/abs/2106.10874

$$
\alpha \nabla \ell(w) + (1 - \alpha) D, \qquad
D' = \operatorname{mean}_i \frac{\bar w - w_i}{K \eta}
$$

The client uses the gradient alpha g + (1 - alpha) D, clipped, where g is the gradient
of the loss. D is the mean of wg - w_i over the previous round's clients, weighted as in
the average, divided by the mean of K l; K is a client's number of steps and l its
learning rate in that round. In the first round D is 0, so steps are alpha times as
long. The server sends D with the model. Clients upload the number K l beside their
update. With any client optimiser other than SGD without momentum, l times the sum of
the gradients that the optimiser used replaces wg - w_i, and clients upload it as well.
With adaptive client optimisers FedCM stays far behind FedAvg: D has the scale of
gradients, but adaptive steps do not.

FL-Simulator, another group's implementation, takes the number of steps of the first
client (epochs times examples over batch size, a fraction) as K for all clients. Here K
is the population's `local_steps`, which may be a fraction. Its default is the number of
steps of an average-sized client, or, if sizes are not known, the steps taken.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from tff_reg import settings
from tff_reg.lazy import tf
from tff_reg.methods import cards, memories, method, papers


@dataclasses.dataclass(frozen=True)
class FedCM(method.Method):
    """Client-level momentum."""

    name = "fedcm"
    title = (
        "Mixes local gradients with the previous global update (client-level momentum)"
    )
    paper = "Xu et al., 2021"
    card = cards.Card(
        cards.DRIFT,
        "Mixes every local gradient with the last global update: momentum from the "
        "server, applied on the clients.",
        "Few clients out of many per round, as clients keep no state.",
    )
    paper_settings = papers.MAN
    required_settings = {"client_weighting": "uniform"}
    exclusive = (method.DRIFT,)
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

    def update_memory(self, server: method.Server) -> Any:
        uploads = server.uploads["direction"]
        taken = [-total for total in server.delta_sum]
        if "taken" in uploads:
            factor = tf.math.divide_no_nan(uploads["count"], uploads["weight"])
            taken = [factor * t for t in uploads["taken"]]
        total = uploads["step_size"]
        direction = [tf.math.divide_no_nan(t, total) for t in taken]
        return {"direction": direction}
