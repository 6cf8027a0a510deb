r"""FedDecorr: features that do not collapse to a few dimensions.

Yujun Shi, Jian Liang, Wenqing Zhang, Vincent Y. F. Tan, Song Bai. "Towards
Understanding and Mitigating Dimensional Collapse in Heterogeneous Federated Learning."
ICLR 2023. https://arxiv.org/abs/2210.00226

$$
\ell(w) + \frac{\beta}{B}\, \operatorname{mean}_{i \neq j} M_{ij}^2
$$

With x the embeddings of a batch of B, each of the d dimensions standardised to mean 0
and (unbiased) variance 1, and M = x'x, the term is the mean square of M's off-diagonal
entries, divided by B, as in the authors' code. The paper's term is ||K||_F^2 / d^2 with
the correlation matrix K, about B / (B - 1)^2 times as much (1 / 62 at B = 64), so its
hyperparameters do not carry over. The code does not clip gradients.

For a batch of one example the term is 0. For two examples all correlations are 1 or -1,
so the term is constant.
"""

from __future__ import annotations

import dataclasses

from tff_reg import settings
from tff_reg.lazy import tf
from tff_reg.methods import cards, method, papers

# Added to the variance, as in the authors' code.
_EPSILON = 1e-8


@dataclasses.dataclass(frozen=True)
class FedDecorr(method.Method):
    """The correlation of the features."""

    name = "feddecorr"
    title = "Penalty on the correlation between feature dimensions"
    paper = "Shi et al., ICLR 2023"
    card = cards.Card(
        cards.FEATURES,
        "Penalises the correlation between the dimensions of the features, which "
        "collapse to a few where clients have few classes.",
        "Strongly skewed classes.",
    )
    paper_settings = papers.FEDDECORR

    strength: float = settings.setting(
        0.1,
        symbol="beta",
        help=(
            "beta, factor of the term on the scale of the authors' code: 0.1 in its "
            "scripts for CIFAR-10, 0.05 for CIFAR-100. 0 is FedAvg."
        ),
        minimum=0,
    )

    def term(self, step: method.Step) -> method.Term:
        value = correlation(step.outputs.embedding)
        return method.Term(raw=value, weighted=self.strength * value)


def correlation(features: tf.Tensor) -> tf.Tensor:
    """Computes the mean squared correlation between dimensions, on the code's scale.

    Args:
      features: float [batch, dimensions].

    Returns:
      A scalar; 0 for fewer than two examples or dimensions.
    """
    count = tf.cast(tf.shape(features)[0], features.dtype)
    dimensions = features.shape[-1]
    mean = tf.math.divide_no_nan(tf.reduce_sum(features, 0), count)
    centred = features - mean
    variance = tf.reduce_sum(tf.square(centred), 0) / tf.maximum(count - 1, 1)
    unit = centred * tf.math.rsqrt(variance + _EPSILON)
    products = tf.linalg.matmul(unit, unit, transpose_a=True)
    off_diagonal = tf.linalg.set_diag(products, tf.zeros([dimensions], products.dtype))
    entries = max(dimensions * (dimensions - 1), 1)
    total = tf.reduce_sum(tf.square(off_diagonal)) / entries
    return tf.math.divide_no_nan(total, count)
