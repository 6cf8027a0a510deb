r"""FedLC: logits calibrated by the client's number of examples per class.

Jie Zhang, Zhiqi Li, Bo Li, Jianghe Xu, Shuang Wu, Shouhong Ding, Chao Wu. "Federated
Learning with Label Distribution Skew via Logits Calibration." ICML 2022.
https://arxiv.org/abs/2209.00189

$$
\mathrm{CE}(\mathrm{softmax}_c(z_c - \tau\, n_c^{-1/4}),\, y)
$$

The task loss takes z_c - tau n_c^(-1/4), with n_c the number of examples of class c in
the client's training set. A class that the client lacks has probability and gradient 0.
Evaluation takes the plain logits. With batched client data an example that is repeated,
for example over epochs, counts each time in n_c.

No code of the authors was found. As printed, the paper's softmax leaves the true class
out of the denominator, which does not train; ours keeps the true class, as do the
implementations of FedDecorr's (tau 0.1) and FedACG's (tau 1) authors.
"""

from __future__ import annotations

import dataclasses

from tff_reg import settings
from tff_reg.lazy import tf
from tff_reg.methods import cards, method, papers


@dataclasses.dataclass(frozen=True)
class FedLC(method.Method):
    """The calibration of the logits."""

    name = "fedlc"
    title = "Reduces the logits of classes that are rare on the client"
    paper = "Zhang et al., ICML 2022"
    card = cards.Card(
        cards.CLASSES,
        "Lowers the logits of classes that are rare on the client before the softmax.",
        "Skewed classes.",
    )
    paper_settings = papers.MAN

    strength: float = settings.setting(
        1.0,
        symbol="tau",
        help=(
            "tau, factor of the calibration: 1 in FedACG's code, 0.1 in FedDecorr's. "
            "0 is FedAvg, without any class leaving the softmax."
        ),
        minimum=0,
    )

    def change_logits(self, logits: tf.Tensor, class_counts: tf.Tensor) -> tf.Tensor:
        if not self.strength:
            return logits
        counts = tf.cast(class_counts, logits.dtype)
        return logits - self.strength * tf.pow(counts, -0.25)
