"""MAN: minimising the norms of activations, layer by layer.

M. Yashwanth, Gaurav Kumar Nayak, Harsh Rangwani, Arya Singh, R. Venkatesh Babu,
Anirban Chakraborty. "Minimizing Layerwise Activation Norm Improves Generalization in
Federated Learning." WACV 2024.

The term is the sum over hidden layers of the mean square of the activation after
its non-linearity and before any pooling; the mean runs over the batch, channels
and positions (Eq. 16). The logits are not counted. Eq. 15 adds zeta times the sum;
the code that produced the published numbers adds zeta / 2 times it.
"""

from __future__ import annotations

import dataclasses

from tff_reg import settings
from tff_reg.lazy import tf
from tff_reg.methods import method, papers


@dataclasses.dataclass(frozen=True)
class MAN(method.Method):
    """The activation norm."""

    name = "man"
    title = "Minimal activation norms"
    paper_settings = papers.MAN
    records_activations = True

    strength: float = settings.setting(
        0.15,
        symbol="zeta",
        help="zeta of Eq. 15: 0.15 for CIFAR-100, 0.1 for Tiny-ImageNet. 0 is FedAvg.",
        minimum=0,
    )
    scaling: str = settings.setting(
        "code",
        help=(
            "'code' adds zeta / 2 times the sum, as the authors' code does; 'paper' "
            "adds zeta times the sum, as Eq. 15 says."
        ),
        choices=("code", "paper"),
    )

    def term(self, step: method.Step) -> method.Term:
        if not step.outputs.activations:
            raise ValueError(
                "man: the model has no non-linear layer whose activations could be "
                "kept small. Give it one (a ReLU, for example)."
            )
        total = tf.add_n([_mean_square(a) for a in step.outputs.activations])
        factor = self.strength * (0.5 if self.scaling == "code" else 1.0)
        return method.Term(raw=total, weighted=factor * total)


def _mean_square(x: tf.Tensor) -> tf.Tensor:
    """The mean of all squares, in one pass there and one back."""
    return tf.nn.l2_loss(x) * (2 / tf.cast(tf.size(x), x.dtype))
