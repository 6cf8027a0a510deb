r"""FedRS: the logits of classes that a client lacks are scaled down.

Xin-Chun Li, De-Chuan Zhan. "FedRS: Federated Learning with Restricted Softmax for Label
Distribution Non-IID Data." KDD 2021.

$$
\mathrm{CE}(\mathrm{softmax}_c(s_c z_c),\, y), \qquad
s_c = 1 \text{ if } n_c > 0, \text{ else } \alpha
$$

The task loss takes s_c z_c, where s_c is 1 for the classes that a client has and alpha
for the classes that it lacks. Evaluation takes the plain logits.

The authors' code has s_c = alpha + (1 - alpha) n_c / max n (`scaling='frequency'`),
with n_c the client's examples of class c, and a classifier without bias. Ours scales
the logits including the bias, as FedDecorr's authors do.
"""

from __future__ import annotations

import dataclasses

from tff_reg import settings
from tff_reg.lazy import tf
from tff_reg.methods import cards, method, papers


@dataclasses.dataclass(frozen=True)
class FedRS(method.Method):
    """The restricted softmax."""

    name = "fedrs"
    title = "Scales down the logits of classes that the client lacks"
    paper = "Li and Zhan, KDD 2021"
    card = cards.Card(
        cards.CLASSES,
        "Scales down the logits of classes that the client lacks, so that their "
        "weights are not pushed away.",
        "Clients that lack classes.",
    )
    paper_settings = papers.MAN

    factor: float = settings.setting(
        0.5,
        symbol="alpha",
        help=(
            "alpha, factor of the logits of classes that the client lacks, from 0 to "
            "1; the authors try 0.1 to 0.9. 1 is FedAvg."
        ),
        minimum=0,
        maximum=1,
    )
    scaling: str = settings.setting(
        "binary",
        help=(
            "Which logits are scaled: 'binary' those of classes that the client "
            "lacks, as in the paper; 'frequency' those of all classes, less for "
            "frequent ones, as in the authors' code."
        ),
        choices=("binary", "frequency"),
    )

    def change_logits(self, logits: tf.Tensor, class_counts: tf.Tensor) -> tf.Tensor:
        if self.factor == 1:
            return logits
        counts = tf.cast(class_counts, logits.dtype)
        if self.scaling == "binary":
            share = tf.sign(counts)
        else:
            share = tf.math.divide_no_nan(counts, tf.reduce_max(counts))
        return (self.factor + (1 - self.factor) * share) * logits
