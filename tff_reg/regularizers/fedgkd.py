"""FedGKD: knowledge distilled from the last rounds' global models.

Dezhong Yao, Wanning Pan, Yutong Dai, Yao Wan, Xiaofeng Ding, Hai Jin, Zheng Xu, Lichao
Sun. "Local-Global Knowledge Distillation in Heterogeneous Federated Learning with
Non-IID Data." 2021. https://arxiv.org/abs/2107.00051

The term is (gamma / 2) KL(averaged || local), where the averaged model's weights are
the mean of those of the last M global models, this round's among them. The server keeps
them and sends the mean with the model. With M = 1 this is KD.
"""

from __future__ import annotations

import dataclasses

from tff_reg.regularizers import distillation
from tff_reg.regularizers import regularizer


@dataclasses.dataclass(frozen=True)
class FedGKD(regularizer.Regularizer):
    """The divergence from the averaged model's predictions.

    Attributes:
      strength: gamma; 0.2 in the FedMLB paper. 0 is FedAvg.
      temperature: Of both softmaxes, above 0.
      averaged_rounds: M, how many global models are averaged, at least 1.
    """

    name = "fedgkd"
    reference_models = (regularizer.AVERAGED,)

    strength: float = 0.2
    temperature: float = 1.0
    averaged_rounds: int = 5

    def __post_init__(self):
        regularizer.check_nonnegative(self.name, strength=self.strength)
        distillation.check_temperature(self.name, self.temperature)
        regularizer.check_count(self.name, averaged_rounds=self.averaged_rounds)

    def __call__(self, step: regularizer.Step) -> regularizer.Term:
        target = step.outputs_of(regularizer.AVERAGED).logits
        value = distillation.divergence(target, step.outputs.logits, self.temperature)
        return regularizer.Term(raw=value, weighted=0.5 * self.strength * value)
