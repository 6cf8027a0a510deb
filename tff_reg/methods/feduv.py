r"""FedUV: varied predictions, and features spread evenly over space.

Ha Min Son, Moon-Hyun Kim, Tai-Myoung Chung, Chao Huang, Xin Liu. "FedUV: Uniformity and
Variance for Heterogeneous Federated Learning." CVPR 2024.
https://arxiv.org/abs/2402.18372

$$
\ell(w) + \frac{a}{C} \sum_{c=1}^{C}
\max\left(0, \frac{1}{\sqrt{C}} - \mathrm{std}(p_c)\right) +
b\, \operatorname{mean}_{i < j} e^{-d_{ij} / s}
$$

The term is a V + b U. V is the mean over the C classes of max(0, 1 / sqrt(C) - std_c),
with std_c the (unbiased) standard deviation over the batch of class c's predicted
probability. U is the mean over the pairs of the batch of exp(-d / s), with d the
squared distance of their embeddings and s the lower median of the non-zero distances;
gradients flow through s, too.

a is 2.5 for ten classes in the authors' code, a quarter of the number of classes. As
there, the embeddings come from a two-layer projector with batch norm and ReLU, and
gradients are not clipped. Their code drops the last short batch (`drop_remainder`).
"""

from __future__ import annotations

import dataclasses
import math

from tff_reg import settings
from tff_reg.lazy import tf
from tff_reg.methods import cards, method, papers, univarfl


@dataclasses.dataclass(frozen=True)
class FedUV(method.Method):
    """The uniformity of the features and the missing variance of the predictions."""

    name = "feduv"
    title = "Terms that spread features over space and keep predictions varied"
    paper = "Son et al., CVPR 2024"
    card = cards.Card(
        cards.FEATURES,
        "One term spreads the features over space, another keeps the predicted "
        "probabilities varied over the batch.",
        "Clients that lack classes, without the global model's help.",
    )
    paper_settings = papers.UNIVARFL
    required_settings = {"projector": "feduv"}
    exclusive = (method.FEATURES,)

    strength: float = settings.setting(
        1.0,
        help="Factor of both terms together; 1 in the paper. 0 is FedAvg.",
        minimum=0,
    )
    variance_per_class: float = settings.setting(
        0.25,
        symbol="a / C",
        help=(
            "a, the factor of the term of the predictions, divided by the number of "
            "classes C."
        ),
        minimum=0,
    )
    uniformity: float = settings.setting(
        0.5,
        symbol="b",
        help="b, the factor of the term of the features.",
        minimum=0,
    )

    def term(self, step: method.Step) -> method.Term:
        logits = step.outputs.logits
        missing = missing_deviation(tf.nn.softmax(logits))
        spread = uniformity(step.outputs.embedding)
        factor = self.variance_per_class * logits.shape[-1]
        value = factor * missing + self.uniformity * spread
        return method.Term(
            raw=value,
            weighted=self.strength * value,
            measurements={"missing_deviation": missing, "uniformity": spread},
        )


def missing_deviation(probabilities: tf.Tensor) -> tf.Tensor:
    """Computes V, the shortfall of the predictions' standard deviations.

    Args:
      probabilities: float [batch, classes].

    Returns:
      A scalar.
    """
    return univarfl.missing_variance(probabilities, is_sample=True, as_deviation=True)


def uniformity(features: tf.Tensor) -> tf.Tensor:
    """Computes U, the mean similarity between the features of a batch.

    Args:
      features: float [batch, dimensions].

    Returns:
      A scalar from 0 to 1; 1 where all are equal, 0 for fewer than two examples.
    """
    # Not from inner products: rounding would separate equal features.
    differences = features[:, tf.newaxis] - features[tf.newaxis]
    squares = tf.reduce_sum(tf.square(differences), -1)
    numbers = tf.range(tf.shape(features)[0])
    distances = tf.boolean_mask(squares, numbers[:, tf.newaxis] < numbers)
    apart = tf.boolean_mask(distances, distances > 0)
    # An additional last entry: the median of a batch whose features are all equal.
    one = tf.ones([1], apart.dtype)
    order = tf.argsort(tf.concat([apart, math.inf * one], 0))
    middle = order[tf.maximum(tf.size(apart) - 1, 0) // 2]
    median = tf.concat([apart, one], 0)[middle]
    similarities = tf.exp(-distances / median)
    count = tf.cast(tf.size(similarities), similarities.dtype)
    return tf.math.divide_no_nan(tf.reduce_sum(similarities), count)
