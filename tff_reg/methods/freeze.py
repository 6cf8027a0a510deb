r"""Freeze: a random classifier that is never trained.

As in the UniVarFL paper's comparison: the weights and the bias of the model's last
linear layer keep their random initial values, the same for all clients, so that only
the features before it are learned. The layer is sent and saved with the model's other
non-trainable weights. FedUV's `freeze` is a different method: it trains the classifier
but does not average it.

$$
z = W_0 h + b_0, \qquad W_0, b_0 \text{ random and constant}
$$
"""

from __future__ import annotations

import dataclasses

from tff_reg import settings
from tff_reg.methods import cards, method, papers


@dataclasses.dataclass(frozen=True)
class Freeze(method.Method):
    """The frozen classifier."""

    name = "freeze"
    title = "Keeps the classifier at its random initial weights"
    paper = "Gupta et al. (UniVarFL)"
    card = cards.Card(
        cards.CLASSES,
        "Keeps the classifier at its random initial weights; only the features are "
        "learned.",
        "A baseline of UniVarFL.",
        cards.BY_HAND,
    )
    paper_settings = papers.UNIVARFL
    exclusive = (method.CLASSIFIER,)

    initialization: str = settings.setting(
        "plain",
        help=(
            "Initial classifier: 'plain' keeps the classifier's own initial weights; "
            "'orthogonal' makes the class vectors orthonormal (drawn from the model's "
            "seed) and the biases zero."
        ),
        choices=("plain", "orthogonal"),
    )

    def adapt_network(self, network: method.BlockModel) -> None:
        network.freeze_classifier(self.initialization)
