r"""FedETF: a fixed simplex classifier of equally distant classes.

Zexi Li, Xinyi Shang, Rui He, Tao Lin, Chao Wu. "No Fear of Classifier Biases: Neural
Collapse Inspired Federated Learning with Synthetic and Fixed Classifier." ICCV 2023.
https://arxiv.org/abs/2303.10058

$$
z = g\, \frac{f^\top}{\| f \|} M, \qquad
M = \sqrt{\frac{C}{C - 1}}\, P \left(I - \frac{1}{C} 1 1^\top\right)
$$

A linear layer with d >= C outputs f, normalised to length 1, and logits g f'M replace
the last linear layer. M = sqrt(C / (C - 1)) P (I - 11' / C), with P from the QR
decomposition of a d x C matrix of uniform numbers, is drawn from the model's seed, is
the same for all clients, and is not trained; g is trained. The task loss adds log
max(n_c, 1) to the logits, n_c being the client's examples of class c; evaluation not.
With batched client data a repeated example, as over epochs, counts each time in n_c.

In the authors' code g starts at 10 for their CNN and VGG and at 1 for ResNets, clients
keep their momentum across rounds, and evaluation leaves g out, which changes no
prediction. Personalised models, the paper's second part, are not implemented. No
setting makes it FedAvg.
"""

from __future__ import annotations

import dataclasses
from typing import Optional

from tff_reg import settings
from tff_reg.lazy import tf
from tff_reg.methods import cards, method, papers


@dataclasses.dataclass(frozen=True)
class FedETF(method.Method):
    """The fixed simplex classifier and its balanced loss."""

    name = "fedetf"
    title = "Replaces the classifier by a fixed simplex of equally distant classes"
    paper = "Li et al., ICCV 2023"
    card = cards.Card(
        cards.CLASSES,
        "Replaces the classifier by a fixed simplex, whose class vectors are equally "
        "far apart, and adds the logarithm of the class counts to the logits.",
        "Classifiers that drift apart under skewed classes.",
    )
    paper_settings = papers.FEDETF
    exclusive = (method.CLASSIFIER,)

    scaling: float = settings.setting(
        10.0,
        symbol="g",
        help="Initial value of g, the trained factor of the logits.",
        above=0,
    )
    dimensions: Optional[int] = settings.setting(
        None,
        symbol="d",
        help=(
            "d, the dimension of the features before the classifier, at least the "
            "number of classes; empty for the number of classes."
        ),
        minimum=1,
        maximum=2**16,
    )

    def adapt_network(self, network: method.BlockModel) -> None:
        network.use_simplex_classifier(self.dimensions, self.scaling)

    def change_logits(self, logits: tf.Tensor, class_counts: tf.Tensor) -> tf.Tensor:
        counts = tf.cast(tf.maximum(class_counts, 1), logits.dtype)
        return logits + tf.math.log(counts)
