r"""MAN: minimising the norms of activations, layer by layer.

M. Yashwanth, Gaurav Kumar Nayak, Harsh Rangwani, Arya Singh, R. Venkatesh Babu, Anirban
Chakraborty. "Minimizing Layerwise Activation Norm Improves Generalization in Federated
Learning." WACV 2024.

$$
\ell(w) + \zeta \sum_l \operatorname{mean}(a_l^2)
$$

The term is the sum over hidden layers of the mean square of the activation after its
non-linearity and before any pooling; the mean runs over the batch, channels and
positions (Eq. 16). The logits are not counted. Eq. 15 adds zeta times the sum; the code
that produced the published numbers adds zeta / 2 times the sum. The recipes' factor of
the sum is 0.075 for CIFAR-100 (0.15 / 2; 0.15 is as well founded) and 0.1 for
Tiny-ImageNet, as in the authors' scripts (0.2 / 2).

On their ConvNet for Tiny-ImageNet the authors' two code bases sum different terms;
`terms` offers both.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from tff_reg import settings
from tff_reg.lazy import tf
from tff_reg.methods import cards, method, papers
from tff_reg.models import pooling


@dataclasses.dataclass(frozen=True)
class MAN(method.Method):
    """The activation norm."""

    name = "man"
    title = "Penalty on the squared activations of all hidden layers"
    paper = "Yashwanth et al., WACV 2024"
    card = cards.Card(
        cards.LOSS,
        "Adds the mean square of every hidden layer's activations to the loss, which "
        "leads local training to flatter minima.",
        "An addition to another method at nearly no cost.",
    )
    paper_settings = papers.MAN

    strength: float = settings.setting(
        0.15,
        symbol="zeta",
        help=(
            "zeta of Eq. 15, factor of the activation norms: 0.15 for CIFAR-100, 0.1 "
            "for Tiny-ImageNet. 0 is FedAvg."
        ),
        minimum=0,
    )
    scaling: str = settings.setting(
        "code",
        help=(
            "Scale of the term: 'code' adds zeta / 2 times the norms, as the authors' "
            "code does; 'paper' adds zeta times the norms, as Eq. 15."
        ),
        choices=("code", "paper"),
    )
    terms: str = settings.setting(
        "paper",
        help=(
            "Layers of man_convnet that count: 'paper' all; 'code' leaves out the "
            "third convolution and adds the mean variance (over n - 1) of the last "
            "layer's units; 'samcode' takes the third convolution after its pooling."
        ),
        choices=("paper", "code", "samcode"),
    )

    def term(self, step: method.Step) -> method.Term:
        if not step.outputs.activations:
            raise ValueError(
                "man: the model has no non-linear layer. Give it one, such as a ReLU."
            )
        total = tf.add_n(self._parts(step.outputs.activations))
        factor = self.strength * (0.5 if self.scaling == "code" else 1.0)
        return method.Term(raw=total, weighted=factor * total)

    def _parts(self, activations: Sequence[Any]) -> method.Tensors:
        """Returns one scalar per layer.

        Raises:
          SettingError: If `terms` needs another network.
        """
        if self.terms == "paper":
            return [_mean_square(a) for a in activations]
        if [a.shape.rank for a in activations] != [4, 4, 4, 2, 2]:
            raise settings.SettingError(
                "man_terms",
                self.terms,
                "it needs three convolutions and two hidden layers (man_convnet); on "
                "feddyn_cnn the authors' codes agree with the paper.",
            )
        first, second, third, *hidden = activations
        if self.terms == "samcode":
            third = pooling.max_pool(third, size=2, stride=2)
            return [_mean_square(a) for a in (first, second, third, *hidden)]
        squares = [_mean_square(a) for a in (first, second, *hidden)]
        return [*squares, _mean_variance(hidden[-1])]


def _mean_variance(x: tf.Tensor) -> tf.Tensor:
    """Computes the units' mean variance (n - 1) over the batch; 0 for one example."""
    count = tf.cast(tf.shape(x)[0], x.dtype)
    squares = tf.reduce_sum(tf.math.squared_difference(x, tf.reduce_mean(x, 0)), 0)
    return tf.reduce_mean(squares / tf.maximum(count - 1, 1))


def _mean_square(x: tf.Tensor) -> tf.Tensor:
    """Computes the mean of all squares in one pass, and its gradient in one pass."""
    return tf.nn.l2_loss(x) * (2 / tf.cast(tf.size(x), x.dtype))
