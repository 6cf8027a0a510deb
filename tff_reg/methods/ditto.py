r"""Ditto: each client trains its own model near the global one.

Tian Li, Shengyuan Hu, Ahmad Beirami, Virginia Smith. "Ditto: Fair and Robust Federated
Learning Through Personalization." ICML 2021. https://arxiv.org/abs/2012.04221

$$
v_i \leftarrow v_i - \eta \left( \nabla F_i(v_i) + \lambda (v_i - w_g) \right)
$$

Algorithm 1: the client's own model $v_i$ stays with it and is what it is evaluated
with; the global model trains as in FedAvg, whatever $v_i$ is. As in the authors' code
both take a step on each batch. Those of $v_i$ are plain SGD with the round's learning
rate, without momentum, weight decay and clipping; terms of other methods count in its
loss. With BatchNorm its statistics are the global model's.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from tff_reg import settings
from tff_reg.lazy import tf
from tff_reg.methods import cards, memories, method, papers


class OwnModel(method.Method):
    """A model that stays with its client; `gradient` gives its new weights as kept."""

    client_memory = {"own": memories.initial_weights}

    def keep(self, local: method.Local, gradient: method.Tensors) -> Any:
        return local.kept["own"]

    def finish(self, local: method.Local) -> method.Finished:
        return method.Finished(memory={"own": list(local.state)})

    def own_model(
        self, weights: method.Tensors, memory: method.Memory
    ) -> method.Tensors:
        return list(memory["own"])


@dataclasses.dataclass(frozen=True)
class Ditto(OwnModel):
    """A personal model with a proximal term."""

    name = "ditto"
    title = "Each client also trains a model of its own near the global one"
    paper = "Li et al., ICML 2021"
    card = cards.Card(
        cards.PERSONAL,
        "FedAvg, and beside it a model of each client's own that a proximal term keeps "
        "near the global one; a step costs two gradients.",
        "Each client's own accuracy, fairness between clients, unreliable clients.",
        cards.BY_HAND,
    )
    paper_settings = papers.MAN

    strength: float = settings.setting(
        1.0,
        symbol="lambda",
        help="lambda, the factor of the proximal term: 0.05 to 2 in the paper. 0 trains"
        " each client's own model alone.",
        minimum=0,
    )

    def begin(self, local: method.Local) -> Any:
        return tuple(local.memory["own"])

    def gradient(
        self, local: method.Local, gradient_at: method.GradientAt
    ) -> method.Change:
        gradient = gradient_at()
        own = gradient_at([v - w for v, w in zip(local.state, local.weights)])
        rate = local.hparams["learning_rate"]
        moved = [
            v - tf.cast(rate, v.dtype) * (g + self.strength * (v - received))
            for v, g, received in zip(local.state, own, local.global_weights)
        ]
        return method.Change(gradient, kept={"own": tuple(moved)})
