"""FedNTD: distils what the global model knows of the classes that are not true.

Gihun Lee, Minchan Jeong, Yongjin Shin, Sangmin Bae, Se-Young Yun. "Preservation of the
Global Knowledge by Not-True Distillation in Federated Learning." NeurIPS 2022.
https://arxiv.org/abs/2106.03097

The true class is removed before the softmax on both sides; the term is the KL
divergence of the local predictions from the global model's, which are constants.
"""

from __future__ import annotations

import dataclasses

from tff_reg.regularizers import distillation
from tff_reg.regularizers import regularizer


@dataclasses.dataclass(frozen=True)
class FedNTD(regularizer.Regularizer):
    """The not-true distillation.

    Attributes:
      strength: beta. 0 is FedAvg.
      temperature: tau, above 0.
    """

    name = "fedntd"
    reference_models = (regularizer.GLOBAL,)
    needs_one_label = True

    strength: float = 1.0
    temperature: float = 1.0

    def __post_init__(self):
        regularizer.check_nonnegative(self.name, strength=self.strength)
        distillation.check_temperature(self.name, self.temperature)

    def check_network(self, network) -> None:
        if network.num_classes < 3:
            raise ValueError(
                "fedntd: with fewer than three classes nothing is left to compare once "
                f"the true one is removed; the model has {network.num_classes}."
            )

    def __call__(self, step: regularizer.Step) -> regularizer.Term:
        target = step.outputs_of(regularizer.GLOBAL).logits
        value = distillation.divergence(
            distillation.without_true_class(target, step.labels),
            distillation.without_true_class(step.outputs.logits, step.labels),
            self.temperature,
        )
        return regularizer.Term(raw=value, weighted=self.strength * value)
