r"""Mixup: training on convex combinations of examples.

Hongyi Zhang, Moustapha Cisse, Yann N. Dauphin, David Lopez-Paz. "mixup: Beyond
Empirical Risk Minimization." ICLR 2018. https://arxiv.org/abs/1710.09412

$$
x \leftarrow b x + (1 - b) x_\pi, \qquad
b\, \mathrm{CE}(p, y) + (1 - b)\, \mathrm{CE}(p, y_\pi), \qquad
b \sim \mathrm{Beta}(\gamma, \gamma)
$$

Each batch draws one coefficient b ~ Beta(gamma, gamma) and one permutation. The batch
becomes b x + (1 - b) x[permutation], and its loss b CE(p, y) + (1 - b) CE(p,
y[permutation]). All methods of a combination see the mixed batch. The training
accuracy counts y.

This follows the FedAlign authors' code, except for gamma, which is the paper's 0.1 here
instead of the code's default 0.
"""

from __future__ import annotations

import dataclasses

from tff_reg import settings
from tff_reg.lazy import tf
from tff_reg.methods import cards, method, papers


@dataclasses.dataclass(frozen=True)
class Mixup(method.Method):
    """Mixed batches."""

    name = "mixup"
    title = "Trains on convex combinations of pairs of examples"
    paper = "Zhang et al., ICLR 2018"
    card = cards.Card(
        cards.LOSS,
        "Trains on random convex combinations of pairs of examples and of their "
        "labels.",
        "Small local data sets, where clients overfit.",
    )
    paper_settings = papers.FEDALIGN

    concentration: float = settings.setting(
        0.1,
        symbol="gamma",
        help=("gamma, the concentration of the Beta distribution. 0 is FedAvg."),
        minimum=0,
    )

    def check_network(self, network: method.BlockModel) -> None:
        specs = tf.nest.flatten(network.input_spec)
        if self.concentration and not (len(specs) == 1 and specs[0].dtype.is_floating):
            raise ValueError(
                "mixup mixes examples that are one tensor of real numbers, and the"
                f" model takes {' and '.join(s.dtype.name for s in specs)}: leave mixup"
                " out."
            )

    def change_batch(self, batch: method.Batch, key: tf.Tensor) -> method.Change:
        if not self.concentration:
            return method.Change(batch, {"coefficient": 1.0})
        coefficient_key, order_key = tf.unstack(
            tf.random.experimental.stateless_split(key, 2, alg="philox")
        )
        coefficient = _beta(self.concentration, coefficient_key)
        size = tf.shape(batch.features)[0]
        numbers = tf.random.stateless_uniform(
            [size], order_key, None, None, tf.int64, alg="philox"
        )
        permutation = tf.argsort(numbers, stable=True)
        return method.Change(
            mix(batch, coefficient, permutation), {"coefficient": coefficient}
        )


def mix(
    batch: method.Batch, coefficient: tf.Tensor, permutation: tf.Tensor
) -> method.Batch:
    """Mixes a batch with a permutation of itself.

    Args:
      batch: The batch, with one label per example.
      coefficient: b, a float64 scalar.
      permutation: int [batch].

    Returns:
      The mixed batch.
    """
    ((labels, _),) = batch.targets
    coefficient = tf.cast(coefficient, batch.features.dtype)
    others = tf.gather(batch.features, permutation)
    features = coefficient * batch.features + (1 - coefficient) * others
    targets = [
        (labels, coefficient),
        (tf.gather(labels, permutation), 1 - coefficient),
    ]
    return method.Batch(features, targets)


def _beta(concentration: float, key: tf.Tensor) -> tf.Tensor:
    """Draws from Beta(concentration, concentration); a float64 scalar.

    Works with logarithms, because a gamma variable of small shape underflows:
    Gamma(a) is distributed as Gamma(a + 1) U^(1 / a).
    """
    gamma_key, uniform_key = tf.unstack(
        tf.random.experimental.stateless_split(key, 2, alg="philox")
    )
    gammas = tf.random.stateless_gamma(
        [2], gamma_key, tf.constant(concentration + 1.0, tf.float64), dtype=tf.float64
    )
    uniforms = tf.random.stateless_uniform([2], uniform_key, dtype=tf.float64)
    # 1 - U is never 0.
    logarithms = tf.math.log(gammas) + tf.math.log1p(-uniforms) / concentration
    return tf.math.sigmoid(logarithms[0] - logarithms[1])
