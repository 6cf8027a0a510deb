r"""FedNova: averages updates normalised by the number of local steps.

Jianyu Wang, Qinghua Liu, Hao Liang, Gauri Joshi, H. Vincent Poor. "Tackling the
Objective Inconsistency Problem in Heterogeneous Federated Optimization." NeurIPS 2020.
https://arxiv.org/abs/2007.07481

$$
\bar w' = \bar w + \tau \sum_i p_i \frac{w_i - \bar w}{a_i}, \qquad
\tau = \sum_i p_i a_i
$$

A client's update is divided by a_i, the total length of its steps. For plain SGD a_i is
the number of steps, tau_i. With a momentum rho every step computes c <- rho c + 1 and
a <- a + c; with a proximal factor mu and the learning rate l, a <- a (1 - l mu) + 1;
with both, one after the other. The model moves by tau times the sum of p_i (w_i - wg) /
a_i, where p_i are the clients' weights in the mean and tau is the sum of p_i a_i (of
p_i tau_i with a proximal factor). With a server momentum gmf, G <- gmf G + (this
movement) / l, and the model moves by l G.

p_i is a client's share of the cohort's data, as in the paper's theory. Batched data do
not show what a client has: there the examples of all its steps count.

The proximal term mu (w - wg) is added to the gradient after any clipping, as in the
authors' optimiser; they do not clip. As in their code, a_i does not depend on terms of
other methods, and Nesterov's momentum has the a_i of plain momentum. Other methods of a
combination get the mean of the scaled updates (FedLESAM's `server`).
"""

from __future__ import annotations

import dataclasses
from typing import Any

from tff_reg import settings
from tff_reg.lazy import tf
from tff_reg.methods import cards, drift, memories, method, papers


@dataclasses.dataclass(frozen=True)
class FedNova(method.Method):
    """Normalised averaging."""

    name = "fednova"
    title = "Averages updates normalised by the number of local steps"
    paper = "Wang et al., NeurIPS 2020"
    card = cards.Card(
        cards.SERVER,
        "Divides each client's update by its number of local steps before averaging.",
        "Clients that do very different numbers of local steps.",
    )
    paper_settings = papers.FEDNOVA
    exclusive = (method.DRIFT, method.FIRST_STATE)
    if_adaptive = "counts steps, whose lengths are not equal: its a_i are for SGD"
    uploads = ("steps",)
    server_step = "the clients' mean step times fednova's mean number of them"

    proximal: float = settings.setting(
        0.0,
        symbol="mu",
        help="mu, factor of a proximal term. 0 leaves it out.",
        minimum=0,
    )
    server_momentum: float = settings.setting(
        0.0,
        symbol="gmf",
        help="gmf, the server's momentum. 0 leaves it out.",
        minimum=0,
        below=1,
    )

    @property
    def server_memory(self) -> method.Declarations:  # pyright: ignore
        return {"momentum": memories.zeros} if self.server_momentum else {}

    def begin(self, local: method.Local) -> Any:
        zero = tf.zeros([], local.start[0].dtype)
        return {"length": zero, "of_last_step": zero}

    def correct_clipped(
        self, local: method.Local, gradient: method.Tensors
    ) -> method.Tensors:
        if not self.proximal:
            return gradient
        return drift.plus(gradient, [self.proximal * m for m in local.delta])

    def keep(self, local: method.Local, gradient: method.Tensors) -> Any:
        length, of_step = local.state["length"], local.state["of_last_step"]
        if "momentum" in local.hparams:
            of_step = tf.cast(local.hparams["momentum"], length.dtype) * of_step + 1
            length += of_step
        if self.proximal:
            rate = tf.cast(local.hparams["learning_rate"], length.dtype)
            length = length * (1 - rate * self.proximal) + 1
        elif "momentum" not in local.hparams:
            length += 1
        return {"length": length, "of_last_step": of_step}

    def finish(self, local: method.Local) -> method.Finished:
        weight = local.weight
        steps = local.state["length"]
        if self.proximal:
            steps = tf.cast(local.num_steps, weight.dtype)
        upload = {"weight": weight, "steps": weight * steps}
        if self.server_momentum:
            rate = tf.cast(local.hparams["learning_rate"], weight.dtype)
            upload["learning_rate"] = weight * rate
        return method.Finished(
            upload={"steps": upload}, scale=1 / local.state["length"]
        )

    def update_memory(self, server: method.Server) -> method.Memory:
        if not self.server_momentum:
            return {}
        rate = _mean(server, "learning_rate")
        return {
            "momentum": [
                self.server_momentum * old + tf.math.divide_no_nan(step, rate)
                for old, step in zip(server.memory["momentum"], _step(server))
            ]
        }

    def next_model(self, server: method.Server) -> method.Tensors:
        if not self.server_momentum:
            return drift.plus(server.before, _step(server))
        rate = _mean(server, "learning_rate")
        moved = [rate * m for m in server.memory["momentum"]]
        return drift.plus(server.before, moved)


def _mean(server: method.Server, name: str) -> tf.Tensor:
    """Returns the clients' weighted mean of an upload, a scalar."""
    upload = server.uploads["steps"]
    return tf.math.divide_no_nan(upload[name], upload["weight"])


def _step(server: method.Server) -> method.Tensors:
    """Returns the clients' mean step times the mean number of steps, tau."""
    steps = _mean(server, "steps")
    return [steps * (w - b) for w, b in zip(server.weights, server.before)]
