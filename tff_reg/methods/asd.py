r"""ASD: distillation in which examples weigh by class and by the global model's doubt.

M. Yashwanth, Gaurav Kumar Nayak, Arya Singh, Yogesh Simmhan, Anirban Chakraborty.
"Adaptive Self-Distillation for Minimizing Client Drift in Heterogeneous Federated
Learning." TMLR 2024. https://arxiv.org/abs/2305.19600

$$
\ell(w) + \lambda \sum_j \alpha_j\, \mathrm{KL}(\bar p_j \,\|\, p_j), \qquad
\alpha_j \propto \frac{e^{-\beta_2 H_j}}{s(y_j)^{\beta_1}}, \quad \sum_j \alpha_j = 1
$$

s(y) is the share of the class y in the client's data, and H_j the entropy of the
received model's prediction for example j, at temperature 1. The divergence is taken at
the temperature T and not multiplied by T^2. The received model is in evaluation mode.

The configuration in the authors' code has `uniform`: all examples of a batch weigh
alike. Their ASD, the default here, has weights. Their clients weigh by their numbers of
batches in the mean; ours by their numbers of examples. `not_true` removes the true
class from both predictions, as FedNTD does.
"""

from __future__ import annotations

import dataclasses

from tff_reg import settings
from tff_reg.lazy import tf
from tff_reg.methods import cards, distillation, method, papers


@dataclasses.dataclass(frozen=True)
class ASD(method.Method):
    """Distillation whose examples have weights."""

    name = "asd"
    title = "Distils the global model's predictions, weighted per example"
    paper = "Yashwanth et al., TMLR 2024"
    card = cards.Card(
        cards.DISTILLATION,
        "Distils the global model's predictions. An example weighs more if its class is"
        " rare on the client and the global model is sure of its prediction.",
        "Skewed classes, as an addition to another method.",
    )
    paper_settings = papers.MAN
    needs = (method.ONE_LABEL,)

    strength: float = settings.setting(
        2.0,
        symbol="lambda",
        help="lambda, factor of the weighted divergence. 0 is FedAvg.",
        minimum=0,
    )
    temperature: float = settings.setting(
        2.0,
        symbol="T",
        help="T, the temperature of both softmaxes, above 0.",
        above=0,
    )
    label_exponent: float = settings.setting(
        1.0,
        symbol="beta_1",
        help="beta_1, exponent of the class's share on the client.",
        minimum=0,
    )
    entropy_factor: float = settings.setting(
        1.0,
        symbol="beta_2",
        help="beta_2, factor of the entropy of the global model's prediction.",
        minimum=0,
    )
    entropy_temperature: float = settings.setting(
        1.0,
        help="Temperature of the prediction whose entropy counts, above 0.",
        above=0,
    )
    uniform: bool = settings.setting(
        False,
        help="Whether all examples weigh alike, as in the published configuration.",
    )
    not_true: bool = settings.setting(
        False,
        help="Whether the true class is left out of the distilled predictions.",
    )

    def check_network(self, network: method.BlockModel) -> None:
        if self.not_true and network.num_classes < 3:
            raise settings.SettingError(
                "asd_not_true",
                self.not_true,
                "without the true class a model of two classes has one left.",
            )

    def term(self, step: method.Step) -> method.Term:
        target, logits = step.outputs_of(method.EVALUATED).logits, step.outputs.logits
        weights = self._weights(target, step)
        if self.not_true:
            target = distillation.without_true_class(target, step.labels)
            logits = distillation.without_true_class(logits, step.labels)
        each = distillation.divergences(target, logits, self.temperature)
        value = tf.reduce_sum(weights * each)
        return method.Term(raw=value, weighted=self.strength * value)

    def _weights(self, target: tf.Tensor, step: method.Step) -> tf.Tensor:
        """Returns the examples' weights, float [batch], with sum 1."""
        counts = tf.gather(tf.cast(step.class_counts, target.dtype), step.labels)
        if self.uniform:
            return tf.nn.softmax(tf.zeros_like(counts))
        of_class = self.label_exponent * tf.math.log(tf.maximum(counts, 1))
        logs = tf.nn.log_softmax(target / self.entropy_temperature)
        entropy = -tf.reduce_sum(tf.exp(logs) * logs, axis=-1)
        return tf.nn.softmax(-self.entropy_factor * entropy - of_class)
