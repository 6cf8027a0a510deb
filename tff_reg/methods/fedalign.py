r"""FedAlign: aligns the last block's Lipschitz constant with that of a sub-block.

Matias Mendieta, Taojiannan Yang, Pu Wang, Minwoo Lee, Zhengming Ding, Chen Chen. "Local
Learning Matters: Rethinking Data Heterogeneity in Federated Learning." CVPR 2022.
https://arxiv.org/abs/2111.14213

$$
\ell(w) + \frac{\mu}{B} \sum_{b=1}^{B} (K_S(x_b) - K_F(x_b))^2,
\qquad K = \| X \|_2, \quad X = f_{L-1} f_L^\top
$$

The last stage runs a second time at a fraction of its width, on the first channels of
its input. Both runs give a transmitting matrix (Eqs. 6-7), whose spectral norm stands
for a Lipschitz constant; the term is the mean squared difference of the two norms over
the batch (Eq. 5).

The authors' code goes beyond the paper's text: it pools the features to the same size
and divides the transmitting matrix by the number of positions; the full block's
features are constants in the term, so that only the sub-block's weights learn from it;
and the term is rescaled in every step to `strength` times the cross-entropy
(`lipschitz_scaling='relative'`). The defaults here follow the code, which gave the
published numbers. Gradients are clipped at norm 10. The code runs two backward passes;
ours runs one on the sum of the losses, with the same gradient.
"""

from __future__ import annotations

import dataclasses

from tff_reg import settings
from tff_reg.lazy import tf
from tff_reg.methods import cards, method, papers
from tff_reg.models import forward, pooling


@dataclasses.dataclass(frozen=True)
class FedAlign(method.Method):
    """The alignment of Lipschitz constants."""

    name = "fedalign"
    title = (
        "Term that aligns the last block's Lipschitz constant with that of a narrow "
        "sub-block"
    )
    paper = "Mendieta et al., CVPR 2022"
    card = cards.Card(
        cards.LOSS,
        "Runs the last block a second time at a fraction of its width, and penalises "
        "the difference between the two Lipschitz constants.",
        "Residual networks on clients that cannot afford a second forward pass.",
    )
    paper_settings = papers.FEDALIGN
    # The authors' code clips for FedAlign only.
    required_settings = {"max_gradient_norm": 10.0}

    strength: float = settings.setting(
        0.45,
        symbol="mu",
        help="mu of Eq. 5, factor of the term. 0 is FedAvg.",
        minimum=0,
    )
    width: float = settings.setting(
        0.25,
        symbol="omega_S",
        help="omega_S, the sub-block's fraction of the channels, in (0, 1).",
        above=0,
        below=1,
    )
    lipschitz_scaling: str = settings.setting(
        "relative",
        help=(
            "Scale of the term: 'relative' rescales it to `strength` times the "
            "cross-entropy with the ratio held constant (the authors' code, which gave "
            "the published numbers); 'absolute' is Eq. 5 as printed."
        ),
        choices=("relative", "absolute"),
    )
    stop_gradients: bool = settings.setting(
        True,
        help=(
            "Whether the sub-block's input and the full block's norm are constants in "
            "the term, as in the authors' code."
        ),
    )
    power_iterations: int = settings.setting(
        10,
        help="Steps of the power iteration for the spectral norm.",
        minimum=1,
        maximum=1000,
    )

    def check_network(self, network: method.BlockModel) -> None:
        network.check_supports(self._sub_pass())
        if len(network.blocks) < 3:
            raise ValueError(
                "fedalign: the model needs at least two blocks before its classifier."
            )

    def _sub_pass(self):
        return forward.ForwardPass(training=True, width=self.width)

    def term(self, step: method.Step) -> method.Term:
        previous, full = step.outputs.block_outputs[-3:-1]
        if self.stop_gradients:
            previous, full = tf.stop_gradient(previous), tf.stop_gradient(full)
        channels = forward.channels_at_width(previous.shape[-1], self.width)
        sub_input = previous[..., :channels]
        sub = step.network.run_block(-2, sub_input, self._sub_pass())
        full_norm = self._norm(previous, full)
        sub_norm = self._norm(sub_input, sub)
        gap = tf.reduce_mean(tf.math.squared_difference(sub_norm, full_norm))
        factor = self.strength
        if self.lipschitz_scaling == "relative":
            ratio = tf.math.divide_no_nan(step.task_loss, gap)
            factor *= tf.stop_gradient(ratio)
        return method.Term(
            raw=gap,
            weighted=factor * gap,
            measurements={
                "full_norm": tf.reduce_mean(full_norm),
                "sub_norm": tf.reduce_mean(sub_norm),
            },
        )

    def _norm(self, block_input: tf.Tensor, block_output: tf.Tensor) -> tf.Tensor:
        matrix = transmitting_matrix(block_input, block_output)
        return spectral_norm(matrix, self.power_iterations)


def transmitting_matrix(block_input: tf.Tensor, block_output: tf.Tensor) -> tf.Tensor:
    """Computes X of Eqs. 6-7 per example: products of input and output channels.

    Args:
      block_input: float [batch, height1, width1, channels1], pooled to the output's
        height and width where it is larger.
      block_output: float [batch, height2, width2, channels2].

    Returns:
      float [batch, channels1, channels2], divided by the number of positions.

    Raises:
      ValueError: If the features are not images of known size.
    """
    if block_input.shape.rank != 4 or block_output.shape.rank != 4:
        raise ValueError(
            "fedalign: the last two blocks before the classifier must give feature "
            f"maps [batch, height, width, channels], but give {block_input.shape} and "
            f"{block_output.shape}."
        )
    _, height, width, channels = block_output.shape
    pooled = adaptive_average_pool(block_input, height, width)
    positions = height * width
    pooled = tf.reshape(pooled, [-1, positions, pooled.shape[-1]])
    output = tf.reshape(block_output, [-1, positions, channels])
    return tf.linalg.matmul(pooled, output, transpose_a=True) / positions


def spectral_norm(matrix: tf.Tensor, iterations: int) -> tf.Tensor:
    """Computes the largest singular value by power iteration from the all-ones vector.

    With G = matrix matrix^T and n iterations it is (|G^n 1| / |G^(n-1) 1|)^(1/2).
    Powers of G come from repeated squaring, which is faster than n small products.

    Args:
      matrix: float [batch, rows, columns].
      iterations: n, the number of multiplications with G.

    Returns:
      float [batch], a lower bound; differentiable through the iterations. With a
      single iteration the starting vector is not normalised (as in the authors' code),
      so that the value is too large by the fourth root of the number of rows.
    """

    def multiply(matrix: tf.Tensor, vector: tf.Tensor):
        return tf.reduce_sum(matrix * vector[:, tf.newaxis, :], axis=2)

    gram = tf.linalg.matmul(matrix, matrix, transpose_b=True)
    vector = tf.ones_like(gram[:, 0])
    power, left = gram, iterations - 1
    while left:
        # The scale cancels below; the largest entry is at most the largest eigenvalue.
        largest = tf.reduce_max(power, axis=[1, 2], keepdims=True)
        power = tf.math.divide_no_nan(power, tf.stop_gradient(largest))
        if left % 2:
            vector = multiply(power, vector)
        left //= 2
        if left:
            power = tf.linalg.matmul(power, power)
    if iterations > 1:
        vector = tf.math.divide_no_nan(vector, _length(vector)[:, tf.newaxis])
    return tf.sqrt(_length(multiply(gram, vector)))


def adaptive_average_pool(x: tf.Tensor, height: int, width: int) -> tf.Tensor:
    """Averages over nearly equal windows, as PyTorch's adaptive pooling does.

    Args:
      x: float [batch, rows, columns, channels].
      height: Rows of the result.
      width: Columns of the result.

    Returns:
      float [batch, height, width, channels]; `x` itself if it is not larger than that.
    """
    _, rows, columns, _ = x.shape
    if rows <= height and columns <= width:
        return x
    return pooling.adaptive_average_pool(x, height, width)


def _length(vector: tf.Tensor) -> tf.Tensor:
    """Computes the norms [batch] of vectors [batch, rows]; the gradient at 0 is 0."""
    squared = tf.reduce_sum(tf.square(vector), axis=1)
    positive = squared > 0
    return tf.where(positive, tf.sqrt(tf.where(positive, squared, 1.0)), 0.0)
