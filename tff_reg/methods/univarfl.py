r"""UniVarFL: varied predictions, and features spread evenly over the sphere.

Sunny Gupta, Nikita Jangid, Amit Sethi. "UniVarFL: Uniformity and Variance Regularized
Federated Learning for Heterogeneous Data."

$$
\ell(w) + \mu \frac{1}{n^2} \sum_{i \neq j}
\frac{1}{1 - z_i^\top z_j + \epsilon} +
\lambda \frac{1}{D} \sum_{j=1}^{D} \max(0, c - \mathrm{Var}(p_j))
$$

The term (Eq. 4) is mu L_HE + lambda L_V. L_V is the mean over the D classes of
max(0, c - Var_j): Var_j is the variance of class j's predicted probability over the
batch (Eq. 1), and c is the mean variance of the columns of the identity matrix (Eq. 2).
L_HE is the hyperspherical energy of the embeddings scaled to unit length, 1/n^2
sum_{i,j} 1 / (1 - z_i . z_j + epsilon) (Eq. 3).

There is no public code. The paper follows FedUV (H. Son et al., "FedUV: Uniformity and
Variance for Heterogeneous Federated Learning", CVPR 2024), whose code has unbiased
standard deviations in place of variances (`spread='deviation'` here). The paper leaves
three points open. Variances divide by n - 1, as in FedUV's code. The pairs i = j of
Eq. 3 are left out by default: they are a constant 1/(n epsilon) without gradient, and
its rounding error would hide the other pairs. The value of epsilon is our choice.

Other settings follow FedUV's code: by default the projector `feduv`, a cosine
learning rate and batches of 128; in the recipes also the networks `feduv_cnn` and
`resnet18_feduv`, no shorter last batch, and STL-10 normalised by 0.5. The embedding is
the input of the model's classifier, after the projector unless `--projector=none`.
"""

from __future__ import annotations

import dataclasses

from tff_reg import settings
from tff_reg.lazy import tf
from tff_reg.methods import cards, method, papers


@dataclasses.dataclass(frozen=True)
class UniVarFL(method.Method):
    """The energy of the features and the missing variance of the predictions."""

    name = "univarfl"
    title = "Terms that spread features over the sphere and keep predictions varied"
    paper = "Gupta et al."
    card = cards.Card(
        cards.FEATURES,
        "One term spreads the features over the unit sphere, another keeps the "
        "predicted probabilities varied over the batch, as they would be on IID data.",
        "Clients that lack classes, without the global model's help.",
        cards.NUMPY,
    )
    paper_settings = papers.UNIVARFL
    required_settings = {"projector": "feduv"}
    exclusive = (method.FEATURES,)

    strength: float = settings.setting(
        1.0,
        help="Factor of both terms together; 1 in the paper. 0 is FedAvg.",
        minimum=0,
    )
    energy: float = settings.setting(
        0.5,
        symbol="mu",
        help="mu of Eq. 4, factor of the hyperspherical energy.",
        minimum=0,
    )
    variance_per_class: float = settings.setting(
        0.25,
        symbol="lambda / D",
        help=(
            "lambda of Eq. 4 divided by the number of classes D; the paper's lambda "
            "is D / 4."
        ),
        minimum=0,
    )
    epsilon: float = settings.setting(
        1e-3,
        symbol="epsilon",
        help="epsilon of Eq. 3, added to distances, above 0; not given in the paper.",
        above=0,
    )
    variance_kind: str = settings.setting(
        "sample",
        help=(
            "Divisor of the variances, of the batch and of c: 'population' divides by "
            "n, 'sample' by n - 1."
        ),
        choices=("population", "sample"),
    )
    spread: str = settings.setting(
        "variance",
        help=(
            "Measure of spread, for the batch and for c: 'variance' as in Eqs. 1 and "
            "2, or 'deviation' (standard deviation) as in FedUV's code."
        ),
        choices=("variance", "deviation"),
    )
    include_diagonal: bool = settings.setting(
        False,
        help="Whether the reported energy includes the constant of the pairs i = j.",
    )

    def term(self, step: method.Step) -> method.Term:
        logits = step.outputs.logits
        is_sample = self.variance_kind == "sample"
        missing = missing_variance(
            tf.nn.softmax(logits), is_sample, self.spread == "deviation"
        )
        energy = hyperspherical_energy(step.outputs.embedding, self.epsilon)
        reported = energy
        if self.include_diagonal:
            count = tf.cast(tf.shape(logits)[0], energy.dtype)
            reported += tf.math.divide_no_nan(1.0 / self.epsilon, count)
        factor = self.variance_per_class * logits.shape[-1]
        value = self.energy * reported + factor * missing
        return method.Term(
            raw=value,
            weighted=self.strength * value,
            measurements={"energy": reported, "missing_variance": missing},
        )


def missing_variance(
    probabilities: tf.Tensor, is_sample: bool, as_deviation: bool = False
) -> tf.Tensor:
    """Computes L_V of Eq. 1.

    Args:
      probabilities: float [n, classes].
      is_sample: Whether variances divide by n - 1 (and c by D - 1) instead of n.
      as_deviation: Whether to use standard deviations instead of variances. A class
        with deviation 0 has gradient 0.

    Returns:
      A scalar.
    """
    classes = probabilities.shape[-1]
    count = tf.cast(tf.shape(probabilities)[0], probabilities.dtype)
    mean = tf.math.divide_no_nan(tf.reduce_sum(probabilities, 0), count)
    squares = tf.reduce_sum(tf.math.squared_difference(probabilities, mean), 0)
    divisor = tf.maximum(count - 1, 1) if is_sample else tf.maximum(count, 1)
    threshold = 1 / classes if is_sample else (classes - 1) / classes**2
    spread = squares / divisor
    if as_deviation:
        threshold = threshold**0.5
        # The square root of 0 would have an infinite gradient.
        varies = spread > 0
        root = tf.sqrt(tf.where(varies, spread, tf.ones_like(spread)))
        spread = tf.where(varies, root, tf.zeros_like(root))
    return tf.reduce_mean(tf.nn.relu(threshold - spread))


def hyperspherical_energy(features: tf.Tensor, epsilon: float) -> tf.Tensor:
    """Computes L_HE of Eq. 3 without the pairs i = j.

    Args:
      features: float [n, dimensions], not yet of unit length.
      epsilon: Added to the distance, above 0.

    Returns:
      A scalar; 0 for fewer than two examples.
    """
    unit = tf.math.l2_normalize(features, axis=-1)
    cosines = tf.linalg.matmul(unit, unit, transpose_b=True)
    count = tf.shape(features)[0]
    others = 1 - tf.eye(count, dtype=features.dtype)
    # Rounding may take a cosine beyond 1 by less than epsilon, the denominator to 0.
    distances = tf.maximum(1 - cosines, 0) + epsilon
    squared_count = tf.square(tf.cast(count, features.dtype))
    return tf.math.divide_no_nan(tf.reduce_sum(others / distances), squared_count)
