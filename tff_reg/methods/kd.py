r"""KD: knowledge distilled from the round's global model.

Geoffrey Hinton, Oriol Vinyals, Jeff Dean. "Distilling the Knowledge in a Neural
Network." 2015. https://arxiv.org/abs/1503.02531

$$
\ell(w) + \mathrm{KL}(\mathrm{softmax}(\bar z / T) \,\|\,
\mathrm{softmax}(z / T))
$$

As a baseline of the FedMLB paper: the term is KL(softmax(global / T) || softmax(local /
T)), with the global model's predictions as constants. That paper prints no strength;
ours is 1.
"""

from __future__ import annotations

import dataclasses

from tff_reg import settings
from tff_reg.methods import cards, distillation, method, papers


@dataclasses.dataclass(frozen=True)
class KD(method.Method):
    """The divergence from the global model's predictions."""

    name = "kd"
    title = "Distils the global model's predictions into the local model"
    paper = "Hinton et al., 2015"
    card = cards.Card(
        cards.DISTILLATION,
        "Adds the divergence between the global model's predictions and the local ones "
        "to the loss.",
        "A global model that predicts better than the client's data teach.",
        cards.BY_HAND,
    )
    paper_settings = papers.FEDMLB

    strength: float = settings.setting(
        1.0,
        help=(
            "Factor of the divergence from the global model's predictions. 0 is FedAvg."
        ),
        minimum=0,
    )
    temperature: float = settings.setting(
        1.0,
        symbol="T",
        help="T, the temperature of both softmaxes, above 0.",
        above=0,
    )

    def term(self, step: method.Step) -> method.Term:
        target = step.outputs_of(method.GLOBAL).logits
        value = distillation.divergence(target, step.outputs.logits, self.temperature)
        return method.Term(raw=value, weighted=self.strength * value)
