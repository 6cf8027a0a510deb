r"""FedASAM: sharpness-aware minimisation relative to the weights' sizes.

Jungmin Kwon, Jeongseop Kim, Hyunseo Park, In Kwon Choi. "ASAM: Adaptive Sharpness-Aware
Minimization for Scale-Invariant Learning of Deep Neural Networks." ICML 2021.
https://arxiv.org/abs/2102.11600. On the clients of a federation: Caldarola et al., ECCV
2022.

$$
\nabla \ell\left(w + \rho \frac{t^2 g}{\| t g \|}\right), \qquad
g = \nabla \ell(w), \quad t = |w| + \eta
$$

With t = |w| + eta for weights and 1 for biases, the perturbation is rho t^2 g / ||t
g||. As in the authors' code, weights are the parameters that PyTorch names `weight`:
kernels and the scales of norms and of PReLU. `scaled='kernels'` takes kernels only.
"""

from __future__ import annotations

import dataclasses

from tff_reg import settings
from tff_reg.lazy import tf
from tff_reg.methods import cards, fedsam, method
from tff_reg.models import roles

SCALED = ("code", "kernels")


@dataclasses.dataclass(frozen=True)
class FedASAM(fedsam.FedSAM):
    """Adaptive sharpness-aware gradients."""

    name = "fedasam"
    title = "Sharpness-aware minimisation with a radius relative to each weight's size"
    paper = "Kwon et al., ICML 2021"
    card = cards.Card(
        cards.GRADIENTS,
        "FedSAM with a perturbation in proportion to each weight's size.",
        "The same, with layers of very different scales.",
    )

    radius: float = settings.setting(
        0.5,
        symbol="rho",
        help="rho, the radius of the perturbation. 0 is FedAvg.",
        minimum=0,
    )
    offset: float = settings.setting(
        0.2,
        symbol="eta",
        help="eta, added to each weight's size.",
        minimum=0,
    )
    scaled: str = settings.setting(
        "code",
        help=(
            "Weights whose perturbation is relative to their size: 'code' kernels and "
            "the scales of norms; 'kernels' kernels only."
        ),
        choices=SCALED,
    )

    def _is_scaled(self, weight: tf.Variable) -> bool:
        if roles.is_scale(weight):
            return self.scaled == "code"
        return not roles.is_bias(weight)

    def perturbation(
        self, local: method.Local, gradient: method.Tensors
    ) -> method.Tensors:
        scales = [
            tf.abs(v) + self.offset if self._is_scaled(v) else None
            for v in local.weights
        ]
        scaled = [g if t is None else t * g for t, g in zip(scales, gradient)]
        norm = fedsam.global_norm(scaled) + self._norm_epsilon
        factor = self.radius / norm
        return [factor * (g if t is None else t * g) for t, g in zip(scales, scaled)]
