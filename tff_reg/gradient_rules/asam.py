"""FedASAM: SAM whose neighbourhood is measured relative to the weights.

Jungmin Kwon, Jeongseop Kim, Hyunseo Park, In Kwon Choi. "ASAM: Adaptive Sharpness-Aware
Minimization for Scale-Invariant Learning of Deep Neural Networks." ICML 2021.
https://arxiv.org/abs/2102.11600. On the clients of a federation: Caldarola et al., ECCV
2022.

With t = |w| + eta for weights and 1 for biases, the displacement is
rho t^2 g / ||t g||. As in the authors' code, weights are what PyTorch calls so:
kernels, and the scales of norms.
"""

from __future__ import annotations

import dataclasses
import re

from tff_reg.gradient_rules import gradient_rule
from tff_reg.gradient_rules import sam
from tff_reg.lazy import tf
from tff_reg.regularizers import regularizer

SCALED = {"code": r"(kernel|gamma)(_\d+)?:0$", "kernels": r"kernel(_\d+)?:0$"}


@dataclasses.dataclass(frozen=True)
class FedASAM(sam.FedSAM):
    """Adaptive sharpness-aware gradients.

    Attributes:
      radius: rho. 0 is FedAvg.
      offset: eta, added to the size of a weight.
      scaled: Which weights are measured by their size: 'code' kernels and the scales of
        norms, 'kernels' kernels alone.
    """

    name = "fedasam"

    radius: float = 0.5
    offset: float = 0.2
    scaled: str = "code"

    def __post_init__(self):
        super().__post_init__()
        regularizer.check_nonnegative(self.name, offset=self.offset)
        regularizer.check_choice(self.name, tuple(SCALED), scaled=self.scaled)

    def ascent(self, variables, gradient) -> list:
        scales = [
            tf.abs(v) + self.offset if re.search(SCALED[self.scaled], v.name) else None
            for v in variables
        ]
        scaled = [g if t is None else t * g for t, g in zip(scales, gradient)]
        norm = gradient_rule.global_norm(scaled) + sam.NORM_EPSILON
        factor = self.radius / norm
        return [factor * (g if t is None else t * g) for t, g in zip(scales, scaled)]
