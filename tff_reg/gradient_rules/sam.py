"""FedSAM: the gradient where the loss is highest nearby.

Pierre Foret, Ariel Kleiner, Hossein Mobahi, Behnam Neyshabur. "Sharpness-Aware
Minimization for Efficiently Improving Generalization." ICLR 2021.
https://arxiv.org/abs/2010.01412. On the clients of a federation: Debora Caldarola,
Barbara Caputo, Marco Ciccone. "Improving Generalization in Federated Learning by
Seeking Flat Minima." ECCV 2022. https://arxiv.org/abs/2203.11834

A step from w uses the gradient of the whole loss, regularisers included, at
w + rho g / ||g||, with g the gradient at w (Eq. 2 of SAM).
"""

from __future__ import annotations

import dataclasses

from tff_reg.gradient_rules import gradient_rule
from tff_reg.regularizers import regularizer

# Added to the norm, as in the MAN authors' code.
NORM_EPSILON = 1e-16


@dataclasses.dataclass(frozen=True)
class FedSAM(gradient_rule.GradientRule):
    """Sharpness-aware gradients.

    Attributes:
      radius: rho. 0 is FedAvg.
    """

    name = "fedsam"
    runs_twice = True

    radius: float = 0.05

    def __post_init__(self):
        regularizer.check_nonnegative(self.name, radius=self.radius)

    def ascent(self, variables, gradient) -> list:
        """The displacement, one tensor a weight."""
        factor = self.radius / (gradient_rule.global_norm(gradient) + NORM_EPSILON)
        return [factor * g for g in gradient]

    def __call__(self, compute_gradient, variables, slots) -> list:
        if not self.radius:
            # A second pass at the same weights could differ in the last bits.
            return compute_gradient()
        ascent = self.ascent(variables, compute_gradient())
        return gradient_rule.gradient_at(compute_gradient, variables, ascent)
