r"""GradAug: distils the network into narrower sub-networks on resized images.

Taojiannan Yang, Sijie Zhu, Chen Chen. "GradAug: A New Regularization Method for Deep
Neural Networks." NeurIPS 2020. https://arxiv.org/abs/2006.07989

$$
\ell(w) + \mu \sum_{i=1}^{n}
\mathrm{KL}(F(x) \,\|\, F_{w_i}(T_i(x)))
$$

F is the network and F_w the sub-network of its first channels at width w. The term is
the sum over n sub-networks of KL(F(x) || F_w(T(x))), as in Eq. 2 of the FedAlign paper.
The whole network's predictions are constants, and T resizes the batch to one of a few
resolutions (bilinear, corners aligned). BatchNorm in sub-networks uses the batch's
statistics and does not update the running ones. Channels are rounded to multiples of 8.

The paper draws every width uniformly. In the FedAlign authors' code one of the n widths
is always the narrowest and the others are drawn; this is the default here. Its lambda
of 1 is the paper's mu of 1.75 here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from tff_reg import models, settings
from tff_reg.lazy import tf
from tff_reg.methods import cards, distillation, method, papers
from tff_reg.models import forward as forward_lib


@dataclasses.dataclass(frozen=True)
class GradAug(method.Method):
    """The sub-networks' divergences."""

    name = "gradaug"
    title = "Distils the network into narrower sub-networks on resized images"
    paper = "Yang et al., NeurIPS 2020"
    card = cards.Card(
        cards.LOSS,
        "Trains narrower sub-networks on resized images to agree with the whole "
        "network.",
        "Networks with room for regularisation, where a step may cost more than twice "
        "as much.",
    )
    paper_settings = papers.FEDALIGN

    strength: float = settings.setting(
        1.75,
        symbol="mu",
        help=(
            "mu of Eq. 2, factor of the divergences; the FedAlign paper has 1.75 for "
            "two sub-networks, 2.0 for one, 1.5 for three, 1.25 for four. 0 is "
            "FedAvg."
        ),
        minimum=0,
    )
    subnetworks: int = settings.setting(
        2,
        symbol="n",
        help="n, the number of sub-networks per step.",
        minimum=1,
        maximum=100,
    )
    minimum_width: float = settings.setting(
        0.8,
        help="Width of the narrowest sub-network, in (0, 1].",
        above=0,
        maximum=1,
    )
    resolutions: tuple[float, ...] = settings.setting(
        (1.0, 0.875, 0.75, 0.625),
        help=(
            "Resolutions of the resized images, as fractions of the image's height "
            "and width; the default is 32, 28, 24 and 20 of 32 pixels."
        ),
        above=0,
        maximum=1,
    )
    width_choice: str = settings.setting(
        "code",
        help=(
            "How widths are drawn: 'code' always includes the narrowest and draws the "
            "others; 'paper' draws all."
        ),
        choices=("code", "paper"),
    )

    def check_network(self, network: method.BlockModel) -> None:
        network.check_supports(forward_lib.ForwardPass(width=self.minimum_width))
        network.check_takes_any_size()

    def draw(
        self, image_shape: Sequence[int], key: tf.Tensor
    ) -> list[tuple[Any, Any, Any]]:
        """Draws the widths and resolutions of one step.

        Args:
          image_shape: (height, width) of the images.
          key: int64 [2].

        Returns:
          One triple (width, image height, image width) per sub-network; a width is a
          float64 scalar, or a Python number for the fixed narrowest one.
        """
        width_key, size_key = tf.unstack(
            tf.random.experimental.stateless_split(key, 2, alg="philox")
        )
        count = self.subnetworks
        drawn = tf.random.stateless_uniform(
            [count], width_key, self.minimum_width, 1.0, tf.float64, alg="philox"
        )
        widths = tf.unstack(drawn)
        if self.width_choice == "code":
            widths = [self.minimum_width, *widths[1:]]
        fractions = self.resolutions
        indices = tf.random.stateless_uniform(
            [count], size_key, 0, len(fractions), tf.int32, alg="philox"
        )
        sizes = tf.constant(
            [[max(1, round(side * f)) for side in image_shape] for f in fractions]
        )
        chosen = tf.gather(sizes, indices)
        return [(width, chosen[i, 0], chosen[i, 1]) for i, width in enumerate(widths)]

    def term(self, step: method.Step) -> method.Term:
        draws = self.draw(step.network.input_shape[:2], step.key)
        target = tf.stop_gradient(step.outputs.logits)
        divergences = [
            distillation.divergence(target, subnetwork_logits(step, *draw))
            for draw in draws
        ]
        value = tf.add_n(divergences)
        return method.Term(raw=value, weighted=self.strength * value)


def subnetwork_logits(
    step: method.Step, width: Any, height: Any, image_width: Any
) -> tf.Tensor:
    """Computes the predictions of a sub-network for the resized batch.

    Args:
      step: The step.
      width: Fraction of the channels, a Python number or a float64 scalar.
      height: Height of the resized images, an int or an int32 scalar.
      image_width: Width of the resized images, an int or an int32 scalar.

    Returns:
      float [batch, classes].
    """
    forward = forward_lib.ForwardPass(training=True, width=width)
    resized = models.resize_bilinear(step.features, height, image_width)
    return step.network(resized, forward).logits
