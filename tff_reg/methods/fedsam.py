r"""FedSAM: sharpness-aware minimisation on the clients.

Pierre Foret, Ariel Kleiner, Hossein Mobahi, Behnam Neyshabur. "Sharpness-Aware
Minimization for Efficiently Improving Generalization." ICLR 2021.
https://arxiv.org/abs/2010.01412. On the clients of a federation: Debora Caldarola,
Barbara Caputo, Marco Ciccone. "Improving Generalization in Federated Learning by
Seeking Flat Minima." ECCV 2022. https://arxiv.org/abs/2203.11834

$$
\nabla \ell\left(w + \rho \frac{g}{\| g \|}\right), \qquad
g = \nabla \ell(w)
$$

A step from w uses the gradient of the whole loss, regularisers included, at w + rho g /
||g||, with g the gradient at w (Eq. 2 of SAM).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from tff_reg import settings
from tff_reg.lazy import tf
from tff_reg.methods import cards, method, papers


@dataclasses.dataclass(frozen=True)
class FedSAM(method.Method):
    """Sharpness-aware gradients."""

    name = "fedsam"
    title = "Sharpness-aware minimisation: gradients after an ascent step"
    paper = "Foret et al., ICLR 2021; Caldarola et al., ECCV 2022"
    card = cards.Card(
        cards.GRADIENTS,
        "Takes the gradient after a step uphill of fixed length, which leads to flat "
        "minima.",
        "Local minima that are sharp; a step costs two gradients.",
    )
    paper_settings = papers.MAN
    # Added to the norm, as in the MAN authors' code.
    _norm_epsilon = 1e-16

    radius: float = settings.setting(
        0.05,
        symbol="rho",
        help="rho, the radius of the perturbation. 0 is FedAvg.",
        minimum=0,
    )

    def gradient(
        self, local: method.Local, gradient_at: method.GradientAt
    ) -> method.Tensors:
        gradient = gradient_at()
        # A second pass at the same weights could differ in the last bits.
        if not self.radius:
            return gradient
        return gradient_at(self.perturbation(local, gradient))

    def perturbation(
        self, local: method.Local, gradient: method.Tensors
    ) -> method.Tensors:
        """Computes the perturbation of the weights for the gradient of a step.

        Args:
          local: The client.
          gradient: The gradient at the client's weights.

        Returns:
          One tensor per weight.
        """
        return ascend(gradient, self.radius, self._norm_epsilon)


def ascend(gradient: Sequence[Any], radius: float, epsilon: float) -> method.Tensors:
    """Returns the ascent step of length `radius`: rho g / (||g|| + epsilon)."""
    factor = radius / (global_norm(gradient) + epsilon)
    return [factor * g for g in gradient]


def global_norm(tensors: Sequence[Any]) -> tf.Tensor:
    """Computes the joint Euclidean norm of tensors of one data type."""
    return tf.sqrt(tf.add_n([tf.reduce_sum(tf.square(t)) for t in tensors]))
