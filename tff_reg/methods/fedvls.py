r"""FedVLS: distillation of missing classes, and smaller logits of the others.

Kuangpu Guo, Yuhe Ding, Jian Liang, Ran He, Zilei Wang, Tieniu Tan. "Exploring Vacant
Classes in Label-Skewed Federated Learning." AAAI 2025. https://arxiv.org/abs/2401.02329

$$
\mathrm{CE}(z + \log(\pi + \epsilon), y) + \lambda\, \mathrm{KL}(\bar p_\emptyset \,\|\,
p_\emptyset) + \mu \sum_c \pi_c \log \frac{1}{B} \sum_j e^{s_{jc}}
$$

The task loss takes the logits plus the logarithms of the classes' shares pi on the
client (epsilon is 1e-9). The divergence is that of the softmax over the logits of the
classes that the client lacks alone; it is 0 if the client lacks fewer than two. In the
last part $s_{jc} = z_{jc} - \log(\pi_c + \epsilon) + \log(1 / C + \epsilon)$, but 0
where c is the true class of example j. The received model is in training mode, and
evaluation takes the plain logits.

lambda is 1 in the authors' code and 0.1 in its README. The code has no weight decay and
does not clip gradients.
"""

from __future__ import annotations

import dataclasses

from tff_reg import settings
from tff_reg.lazy import tf
from tff_reg.methods import cards, distillation, method, papers

# Added to shares of classes, as in the authors' code.
_EPSILON = 1e-9


@dataclasses.dataclass(frozen=True)
class FedVLS(method.Method):
    """The prior, the distillation and the suppression."""

    name = "fedvls"
    title = "Distils the classes that a client lacks, and calibrates the others' logits"
    paper = "Guo et al., AAAI 2025"
    card = cards.Card(
        cards.DISTILLATION,
        "Distils the global model's predictions among the classes that a client lacks, "
        "adds the client's class shares to the logits, and keeps the logits of wrong "
        "classes small.",
        "Clients that lack classes.",
    )
    paper_settings = papers.FEDVLS
    needs = (method.ONE_LABEL,)

    strength: float = settings.setting(
        1.0,
        help=(
            "Factor of distillation and suppression together; 1 in the paper. 0 is"
            " FedAvg if prior is false."
        ),
        minimum=0,
    )
    distillation: float = settings.setting(
        1.0,
        symbol="lambda",
        help="lambda, factor of the divergence: 1 in the code, 0.1 in its README.",
        minimum=0,
    )
    suppression: float = settings.setting(
        0.005,
        symbol="mu",
        help="mu, factor of the part that keeps logits small.",
        minimum=0,
    )
    prior: bool = settings.setting(
        True,
        help="Whether log shares of the client's classes are added to its logits.",
    )

    def change_logits(self, logits: tf.Tensor, class_counts: tf.Tensor) -> tf.Tensor:
        if not self.prior:
            return logits
        return logits + tf.math.log(_shares(class_counts, logits) + _EPSILON)

    def term(self, step: method.Step) -> method.Term:
        logits, counts = step.outputs.logits, step.class_counts
        target = step.outputs_of(method.GLOBAL).logits
        divergence = missing_divergence(target, logits, counts)
        excess = suppressed(logits, step.labels, counts)
        value = self.distillation * divergence + self.suppression * excess
        return method.Term(
            raw=value,
            weighted=self.strength * value,
            measurements={"divergence": divergence, "suppression": excess},
        )


def _shares(class_counts: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
    """Returns the classes' shares of the client's examples, float [classes]."""
    counts = tf.cast(class_counts, logits.dtype)
    return tf.math.divide_no_nan(counts, tf.reduce_sum(counts))


def missing_divergence(
    target: tf.Tensor, logits: tf.Tensor, class_counts: tf.Tensor
) -> tf.Tensor:
    """Computes the divergence of predictions among the classes that a client lacks.

    Args:
      target: float [batch, classes], the received model's logits.
      logits: float [batch, classes].
      class_counts: int [classes].

    Returns:
      A scalar; 0 if fewer than two classes are missing.
    """
    is_missing = tf.equal(class_counts, 0)
    # So low that present classes have probability 0.
    target, logits = (tf.where(is_missing, z, -1e9) for z in (target, logits))
    return distillation.divergence(target, logits)


def suppressed(
    logits: tf.Tensor, labels: tf.Tensor, class_counts: tf.Tensor
) -> tf.Tensor:
    """Computes the mean size of wrong classes' logits, weighted by class shares.

    Args:
      logits: float [batch, classes].
      labels: int [batch].
      class_counts: int [classes].

    Returns:
      A scalar.
    """
    shares = _shares(class_counts, logits)
    classes = logits.shape[-1]
    even = tf.math.log(tf.constant(1 / classes + _EPSILON, logits.dtype))
    shifted = logits - tf.math.log(shares + _EPSILON) + even
    is_true = tf.one_hot(labels, classes, on_value=True, off_value=False)
    shifted = tf.where(is_true, tf.zeros_like(shifted), shifted)
    count = tf.cast(tf.shape(logits)[0], logits.dtype)
    means = tf.reduce_logsumexp(shifted, 0) - tf.math.log(count)
    return tf.reduce_sum(shares * means)
