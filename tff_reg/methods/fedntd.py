r"""FedNTD: distils the global model's predictions for all classes but the true one.

Gihun Lee, Minchan Jeong, Yongjin Shin, Sangmin Bae, Se-Young Yun. "Preservation of the
Global Knowledge by Not-True Distillation in Federated Learning." NeurIPS 2022.
https://arxiv.org/abs/2106.03097

$$
\ell(w) + \beta \sum_{c \neq y} \tilde{\bar p}_c
\log \frac{\tilde{\bar p}_c}{\tilde p_c}, \qquad
\tilde p_c = \frac{e^{z_c / \tau}}{\sum_{k \neq y} e^{z_k / \tau}}
$$

The true class is removed before the softmax on both sides; the term is the KL
divergence of the local predictions from the global model's, which are constants. The
authors' code multiplies it by tau^2. The FedMLB group's (FedACG's, 2024) does not, and
trains on 0.7 of the cross-entropy and 0.3 of the divergence, as its recipes here do
(`cross_entropy`, `strength`).
"""

from __future__ import annotations

import dataclasses

from tff_reg import settings
from tff_reg.methods import cards, distillation, method, papers


@dataclasses.dataclass(frozen=True)
class FedNTD(method.Method):
    """The not-true distillation."""

    name = "fedntd"
    title = "Distils the global model's predictions for all classes but the true one"
    paper = "Lee et al., NeurIPS 2022"
    card = cards.Card(
        cards.DISTILLATION,
        "Distils the global model's predictions for all classes but the true one, so "
        "that clients keep what they know of classes that they lack.",
        "Clients that forget the classes that they lack.",
        cards.BY_HAND,
    )
    paper_settings = papers.FEDMLB
    needs = (method.ONE_LABEL,)

    strength: float = settings.setting(
        1.0,
        symbol="beta",
        help="beta, factor of the divergence. 0 is FedAvg.",
        minimum=0,
    )
    temperature: float = settings.setting(
        1.0,
        symbol="tau",
        help="tau, the temperature of both softmaxes, above 0.",
        above=0,
    )
    squared_temperature: bool = settings.setting(
        False,
        help="Whether the divergence is multiplied by tau^2.",
    )
    cross_entropy: float = settings.setting(
        1.0,
        help="Factor of the task loss, if beta is above 0.",
        minimum=0,
    )

    def check_network(self, network: method.BlockModel) -> None:
        if network.num_classes < 3:
            raise ValueError(
                "fedntd: with fewer than three classes nothing is left to compare once "
                f"the true one is removed; the model has {network.num_classes}."
            )

    def term(self, step: method.Step) -> method.Term:
        target = step.outputs_of(method.GLOBAL).logits
        value = distillation.divergence(
            distillation.without_true_class(target, step.labels),
            distillation.without_true_class(step.outputs.logits, step.labels),
            self.temperature,
        )
        if self.squared_temperature:
            value *= self.temperature**2
        weighted = self.strength * value
        if self.strength and self.cross_entropy != 1.0:
            weighted += (self.cross_entropy - 1.0) * step.task_loss
        return method.Term(raw=value, weighted=weighted)
