"""KD: knowledge distilled from the round's global model.

Geoffrey Hinton, Oriol Vinyals, Jeff Dean. "Distilling the Knowledge in a Neural
Network." 2015. https://arxiv.org/abs/1503.02531

As a baseline of the FedMLB paper: the term is KL(softmax(global / T) ||
softmax(local / T)), with the global model's predictions as constants.
"""

from __future__ import annotations

import dataclasses

from tff_reg.regularizers import distillation
from tff_reg.regularizers import regularizer


@dataclasses.dataclass(frozen=True)
class KD(regularizer.Regularizer):
    """The divergence from the global model's predictions.

    Attributes:
      strength: Factor of the divergence. 0 is FedAvg.
      temperature: T, above 0.
    """

    name = "kd"
    reference_models = (regularizer.GLOBAL,)

    strength: float = 1.0
    temperature: float = 1.0

    def __post_init__(self):
        regularizer.check_nonnegative(self.name, strength=self.strength)
        distillation.check_temperature(self.name, self.temperature)

    def __call__(self, step: regularizer.Step) -> regularizer.Term:
        target = step.outputs_of(regularizer.GLOBAL).logits
        value = distillation.divergence(target, step.outputs.logits, self.temperature)
        return regularizer.Term(raw=value, weighted=self.strength * value)
