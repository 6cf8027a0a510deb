r"""FedSOL: gradients at weights perturbed along the distillation gradient.

Gihun Lee, Minchan Jeong, Sangmook Kim, Jaehoon Oh, Se-Young Yun. "FedSOL: Stabilized
Orthogonal Learning with Proximal Restrictions in Federated Learning." CVPR 2024.
https://arxiv.org/abs/2308.12532

$$
\nabla \ell\left(w + \rho \frac{N p}{\| p \|}\right), \qquad
p = \nabla\, \mathrm{KL}(\mathrm{softmax}(\bar z / T) \,\|\,
\mathrm{softmax}(z / T))
$$

With p the gradient of KL(softmax(global / T) || softmax(local / T)), a mean over the
batch without T^2, a step from w uses the gradient of the loss at w + e. 'adaptive'
takes e = rho N p / (||p|| + 1e-12), entry by entry, where N is |w - wg| of each
weight, scaled to length 1 along its outputs (PyTorch's first axis); 'fixed' leaves N
out. The global model runs in evaluation mode.

At w = wg, where every round begins, p is only rounding error and N is 0. A norm of p
below 1e-6 therefore counts as 0: 'fixed' would otherwise step rho in a random
direction. The authors' code has no such bound, and there the teacher of the very first
client is in training mode.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from tff_reg import settings
from tff_reg.lazy import tf
from tff_reg.methods import cards, distillation, fedsam, method, papers

_NORM_EPSILON = 1e-12
_LEAST_NORM = 1e-6


@dataclasses.dataclass(frozen=True)
class FedSOL(method.Method):
    """Stabilised orthogonal learning."""

    name = "fedsol"
    title = (
        "Cross-entropy gradients at weights perturbed along the distillation gradient"
    )
    paper = "Lee et al., CVPR 2024"
    card = cards.Card(
        cards.GRADIENTS,
        "Takes the gradient of the loss at weights perturbed along the gradient of the "
        "distillation loss.",
        "Keeping the global model's knowledge without a distillation term in the loss.",
    )
    paper_settings = papers.FEDSOL

    radius: float = settings.setting(
        1.0,
        symbol="rho",
        help=(
            "rho, the radius of the perturbation; 1 in the authors' configurations. 0 "
            "is FedAvg."
        ),
        minimum=0,
    )
    perturbation: str = settings.setting(
        "adaptive",
        help=(
            "Scale of the perturbation: 'adaptive' is larger for weights farther from "
            "the global ones; 'fixed' ignores that distance."
        ),
        choices=("adaptive", "fixed"),
    )
    temperature: float = settings.setting(
        3.0,
        symbol="T",
        help="T, the temperature of both softmaxes, above 0.",
        above=0,
    )
    part: str = settings.setting(
        "all",
        help=(
            "Weights that are perturbed: 'all'; 'head' the last layer (with FedETF "
            "its factor; with Freeze there is none); 'body' all others. The norm of p "
            "is taken over the same weights."
        ),
        choices=("all", "head", "body"),
    )

    def check_network(self, network: method.BlockModel) -> None:
        if self.part == "head" and not network.head_variables:
            why = "nothing of the last layer is trained (freeze)."
            raise settings.SettingError("fedsol_part", self.part, why)

    def gradient(
        self, local: method.Local, gradient_at: method.GradientAt
    ) -> method.Tensors:
        if not self.radius:
            return gradient_at()
        proximal = gradient_at(loss=self.proximal_loss)
        return gradient_at(self.ascent(local, proximal))

    def proximal_loss(self, step: method.Step) -> tf.Tensor:
        """Computes the divergence from the global model's predictions, a scalar."""
        target = step.outputs_of(method.EVALUATED).logits
        return distillation.divergence(target, step.outputs.logits, self.temperature)

    def ascent(self, local: method.Local, gradient: method.Tensors) -> method.Tensors:
        """Computes the perturbation e; see the module.

        Args:
          local: The client.
          gradient: p, one tensor per weight.

        Returns:
          The perturbation, one tensor per weight.
        """
        if self.part != "all":
            is_head = self.part == "head"
            gradient = [
                g if in_head == is_head else tf.zeros_like(g)
                for g, in_head in zip(gradient, local.in_head)
            ]
        norm = fedsam.global_norm(gradient)
        factor = self.radius / (norm + _NORM_EPSILON)
        factor = tf.where(norm < _LEAST_NORM, tf.zeros_like(factor), factor)
        if self.perturbation == "fixed":
            return [factor * g for g in gradient]
        distances = [tf.abs(moved) for moved in local.delta]
        units = map(_unit, distances, local.output_axes)
        return [factor * unit * g for unit, g in zip(units, gradient)]


def _unit(distances: tf.Tensor, axes: Sequence[int]) -> tf.Tensor:
    """Scales the entries along some axes to length 1; those of length 0 stay 0."""
    norm = tf.sqrt(tf.reduce_sum(tf.square(distances), axes, keepdims=True))
    return distances / tf.maximum(norm, _NORM_EPSILON)
