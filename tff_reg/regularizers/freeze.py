"""Freeze: a random classifier that is never trained.

As the UniVarFL paper compares it: the weights and the bias of the model's last linear
layer keep their random initial values, the same for all clients, so that only the
features before it are learned. They travel and are saved with the model's other weights
that are not trained.
"""

from __future__ import annotations

import dataclasses

from tff_reg.regularizers import regularizer

INITIALIZATIONS = ("plain", "orthogonal")


@dataclasses.dataclass(frozen=True)
class Freeze(regularizer.Regularizer):
    """The frozen classifier.

    Attributes:
      initialization: 'plain' keeps the classifier's own initial weights, 'orthogonal'
        makes the classes' vectors orthonormal (drawn from the model's seed) and the
        biases zero.
    """

    name = "freeze"
    has_term = False

    initialization: str = "plain"

    def __post_init__(self):
        regularizer.check_choice(
            self.name, INITIALIZATIONS, initialization=self.initialization
        )

    def adapt_network(self, network) -> None:
        network.freeze_classifier(self.initialization)
