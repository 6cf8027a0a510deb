"""Anchor: a client's features stay near those of the model that it received."""

import dataclasses

from tff_reg import methods, settings
from tff_reg.lazy import tf


@dataclasses.dataclass(frozen=True)
class Anchor(methods.Method):
    """The distance between a client's features and the received model's."""

    name = "anchor"
    title = "Features near the global model's"
    paper_settings = {"local_epochs": 1, "client_learning_rate": 0.03}

    strength: float = settings.setting(0.5, help="Factor of the distance.", minimum=0)
    power: int = settings.setting(2, help="Of the distance.", choices=(1, 2))

    def term(self, step):
        """The distance, averaged over the batch and the features."""
        anchor = step.outputs_of("global").embedding
        distance = tf.abs(step.outputs.embedding - anchor) ** self.power
        mean = tf.reduce_mean(distance)
        return methods.Term(raw=mean, weighted=self.strength * mean)
