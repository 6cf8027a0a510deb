r"""FedRep: a client trains its own head first, then the body that all share.

Liam Collins, Hamed Hassani, Aryan Mokhtari, Sanjay Shakkottai. "Exploiting Shared
Representations for Personalized Federated Learning." ICML 2021.
https://arxiv.org/abs/2102.07078

$$
h_i \leftarrow \text{SGD}(h_i; \phi), \qquad
\phi_i \leftarrow \text{SGD}(\phi; h_i), \qquad
\phi \leftarrow \sum_i \frac{n_i}{n} \phi_i
$$

The head $h_i$ stays at its client, as in FedPer. In the first steps of a round it
trains alone, in the others the body $\phi$ does: 10 epochs and 1 in the paper's
experiments with CIFAR. What does not train has a gradient of 0, without weight decay;
momentum that it has gathered goes on, as in the authors' code. The paper's server takes
the plain mean, its code the mean by examples.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from tff_reg import settings
from tff_reg.lazy import tf
from tff_reg.methods import cards, fedbabu, method, papers


@dataclasses.dataclass(frozen=True)
class FedRep(method.Method):
    """Alternating steps of a client's own head and the shared body."""

    name = "fedrep"
    title = "Each client keeps its own classifier, which trains before the body"
    paper = "Collins et al., ICML 2021"
    if_adaptive = "holds a part of the weights, which adamw's decoupled decay moves"
    card = cards.Card(
        cards.PERSONAL,
        "As FedPer, but first the client's own classifier trains alone, then the body "
        "that all share.",
        "Clients with classes, or meanings of classes, of their own.",
        cards.BY_HAND,
    )
    paper_settings = papers.MAN
    exclusive = (method.CLASSIFIER,)

    head_share: float = settings.setting(
        10 / 11,
        help="Share of a round's local steps, the first ones, in which the head trains;"
        " the body trains in the others.",
        minimum=0,
        maximum=1,
    )

    def personal(self, network: method.BlockModel) -> Sequence[Any]:
        return network.head_variables

    def correct(self, local: method.Local, gradient: method.Tensors) -> method.Tensors:
        return fedbabu.held(local, gradient, self._trained(local))

    def correct_clipped(
        self, local: method.Local, gradient: method.Tensors
    ) -> method.Tensors:
        return fedbabu.held(local, gradient, self._trained(local), is_clipped=True)

    def _trained(self, local: method.Local) -> list[Any]:
        count = tf.cast(local.total_steps, tf.float64) * self.head_share
        # A share such as 10 / 11 may give a step's number less a rounding error.
        of_head = tf.cast(tf.math.floor(count + 1e-6), local.num_steps.dtype)
        is_head = local.num_steps < of_head
        return [tf.equal(is_head, in_head) for in_head in local.in_head]
