r"""FedRCL: contrastive learning within a batch that does not pull similar ones closer.

Seonguk Seo, Jinkyu Kim, Geeho Kim, Bohyung Han. "Relaxed Contrastive Learning for
Federated Learning." CVPR 2024. https://arxiv.org/abs/2401.04928

$$
\ell(w) + \frac{1}{M} \sum_{m=1}^{M} \frac{1}{B} \sum_{i=1}^{B} \left[
\lambda_1\, n\left(\min_{j: y_j = y_i} s_{ij};\ \text{largest } s_{ik},
y_k \neq y_i\right) + \lambda_2\, n\left(s_{ii};\ \min_{j \neq i: y_j = y_i}
s_{ij}\right) \right]
$$

Here s_ij are cosines between the features of two examples of the batch, and
$n(p; q_1, \ldots) = -\log \frac{e^{p / \tau}}{e^{p / \tau} + \sum_k e^{q_k / \tau}}$.
The first part takes the least similar example of the same class (the example itself
counts) and the two most similar ones of other classes; it is 0 if there are none. The
second part pushes examples of a class apart if even the least similar one is nearer
than `threshold`; otherwise, and for the only example of a class, its cosine is replaced
by -1.

The features are those of every block before the classifier, before the block's last
ReLU, averaged over positions; gradients flow into both examples, and no other model is
used. In the authors' code the rate also decays by a round's factor after every
local epoch (`epoch_decay`).
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from tff_reg import settings
from tff_reg.lazy import tf
from tff_reg.methods import cards, drift, method, papers


@dataclasses.dataclass(frozen=True)
class FedRCL(method.Method):
    """The relaxed contrastive loss."""

    name = "fedrcl"
    title = "Contrastive term on all blocks' features that spreads examples of a class"
    paper = "Seo et al., CVPR 2024"
    card = cards.Card(
        cards.FEATURES,
        "Pulls the features of a class together and other classes apart at every "
        "block, and pushes examples of a class apart that are too similar.",
        "Skewed classes, without a second model.",
    )
    paper_settings = papers.FEDRCL
    needs = (method.ONE_LABEL,)

    strength: float = settings.setting(
        1.0,
        help="Factor of both parts together; 1 in the paper. 0 is FedAvg if"
        " epoch_decay is 1.",
        minimum=0,
    )
    contrast: float = settings.setting(
        1.0,
        symbol="lambda_1",
        help="lambda_1, factor of the contrastive part.",
        minimum=0,
    )
    penalty: float = settings.setting(
        1.0,
        symbol="lambda_2",
        help="lambda_2, factor of the part that pushes similar examples apart.",
        minimum=0,
    )
    temperature: float = settings.setting(
        0.05,
        symbol="tau",
        help="tau, divisor of the cosines, above 0.",
        above=0,
    )
    threshold: float = settings.setting(
        0.7,
        help="Least cosine of examples of a class that are pushed apart, from 0 to 1.",
        minimum=0,
        maximum=1,
    )
    negatives: int = settings.setting(
        2,
        help="Number of the most similar examples of other classes that count.",
        minimum=1,
    )
    levels: tuple[int, ...] = settings.setting(
        (),
        help=(
            "Blocks whose features count, from 1; empty for all before the classifier, "
            "whose number stands for the logits."
        ),
        minimum=1,
    )
    before_relu: bool = settings.setting(
        True,
        help="Whether features are those before the last ReLU of a block.",
    )

    def check_network(self, network: method.BlockModel) -> None:
        if max(self.levels, default=0) > len(network.blocks):
            raise settings.SettingError(
                "fedrcl_levels",
                self.levels,
                f"the model has only {len(network.blocks)} blocks.",
            )

    epoch_decay: float = drift.epoch_decay()

    def scale_rate(self, local: method.Local) -> Any:
        return drift.epoch_factor(self.epoch_decay, local)

    def term(self, step: method.Step) -> method.Term:
        blocks = step.outputs.block_outputs[:-1]
        if self.before_relu:
            blocks = step.outputs.preactivations
        blocks = [*blocks, step.outputs.logits]
        levels = self.levels or range(1, len(blocks))
        cosines = tf.stack([_cosines(blocks[level - 1]) for level in levels])
        contrast, penalty = parts(
            cosines, step.labels, self.temperature, self.negatives, self.threshold
        )
        value = self.contrast * contrast + self.penalty * penalty
        return method.Term(
            raw=value,
            weighted=self.strength * value,
            measurements={"contrast": contrast, "penalty": penalty},
        )


def parts(
    cosines: tf.Tensor,
    labels: tf.Tensor,
    temperature: float,
    negatives: int,
    threshold: float,
) -> tuple[tf.Tensor, tf.Tensor]:
    """Computes the two parts of the term, each a mean over levels and examples.

    Args:
      cosines: float [levels, batch, batch].
      labels: int [batch].
      temperature: tau.
      negatives: The number of examples of other classes that count.
      threshold: The least cosine of examples that are pushed apart.

    Returns:
      Two scalars: the contrastive part and the penalty.
    """
    numbers = tf.range(tf.shape(labels)[0])
    same = tf.equal(labels[:, tf.newaxis], labels)
    other = tf.logical_and(same, tf.not_equal(numbers[:, tf.newaxis], numbers))
    # Cosines are at most 1, so that 2 is no example's.
    positive = tf.reduce_min(tf.where(same, cosines, 2.0), -1)
    of_others = tf.where(tf.logical_not(same), cosines, -math.inf)
    nearest = tf.math.top_k(of_others, tf.minimum(negatives, tf.size(labels))).values
    contrast = _against(positive, nearest, temperature)
    least = tf.reduce_min(tf.where(other, cosines, 2.0), -1)
    is_near = tf.logical_and(least >= threshold, tf.reduce_any(other, -1))
    least = tf.where(is_near, least, -1.0)[..., tf.newaxis]
    penalty = _against(tf.linalg.diag_part(cosines), least, temperature)
    return contrast, penalty


def _cosines(features: tf.Tensor) -> tf.Tensor:
    """Computes the cosines [batch, batch] between features [batch, ..., channels]."""
    pooled = tf.reduce_mean(features, [*range(1, features.shape.rank - 1)])
    # The epsilon of PyTorch's normalize, squared.
    unit = tf.math.l2_normalize(pooled, axis=-1, epsilon=1e-24)
    return tf.linalg.matmul(unit, unit, transpose_b=True)


def _against(positive: tf.Tensor, negative: tf.Tensor, temperature: float) -> tf.Tensor:
    """Computes the mean of -log(e^p / (e^p + sum_k e^q_k)), p and q over tau."""
    logits = tf.concat([positive[..., tf.newaxis], negative], -1) / temperature
    return -tf.reduce_mean(tf.nn.log_softmax(logits)[..., 0])
