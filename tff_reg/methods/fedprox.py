r"""FedProx: a proximal term that holds local weights near the global ones.

Tian Li, Anit Kumar Sahu, Manzil Zaheer, Maziar Sanjabi, Ameet Talwalkar, Virginia
Smith. "Federated Optimization in Heterogeneous Networks." MLSys 2020.
https://arxiv.org/abs/1812.06127

$$
\ell(w) + \frac{\mu}{2} \| w - \bar w \|^2
$$

The term is Eq. 2's (mu / 2) ||w - w_g||^2, over trainable weights: scales and biases of
norms are among them, running statistics are not.

Nothing here departs from the paper. (TFF 0.87's own `build_weighted_fed_prox` adds the
proximal gradient with the wrong sign, initial minus local weights, and so drives
clients away from the global model.)
"""

from __future__ import annotations

import dataclasses

from tff_reg import settings
from tff_reg.lazy import tf
from tff_reg.methods import cards, method, papers


@dataclasses.dataclass(frozen=True)
class FedProx(method.Method):
    """The proximal term."""

    name = "fedprox"
    title = "Proximal term that keeps local weights near the global ones"
    paper = "Li et al., MLSys 2020"
    card = cards.Card(
        cards.LOSS,
        "Adds the squared distance between local and global weights to the loss, so "
        "that no client moves far from the global model.",
        "Clients that do very different numbers of local steps.",
    )
    paper_settings = papers.FEDALIGN

    strength: float = settings.setting(
        1e-4,
        symbol="mu",
        help=(
            "mu of Eq. 2, factor of the proximal term: 1e-4 in the FedAlign paper, "
            "0.01 in UniVarFL's, one of 0.1, 0.01, 0.001 in FedMLB's. 0 is FedAvg."
        ),
        minimum=0,
    )

    def term(self, step: method.Step) -> method.Term:
        # The squared distance itself, never its root: the root has no gradient
        # at w = w_g, where every round begins.
        squared_distance = tf.add_n(
            [
                tf.reduce_sum(tf.math.squared_difference(local, received))
                for local, received in zip(step.weights, step.start)
            ]
        )
        return method.Term(
            raw=squared_distance, weighted=0.5 * self.strength * squared_distance
        )
