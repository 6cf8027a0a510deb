r"""FedGKD: distillation from the average of the last global models.

Dezhong Yao, Wanning Pan, Yutong Dai, Yao Wan, Xiaofeng Ding, Hai Jin, Zheng Xu, Lichao
Sun. "Local-Global Knowledge Distillation in Heterogeneous Federated Learning with
Non-IID Data." 2021. https://arxiv.org/abs/2107.00051

$$
\ell(w) + \frac{\gamma}{2}\, \mathrm{KL}(p_A \,\|\, p), \qquad
w_A = \frac{1}{M} \sum_{m=0}^{M-1} \bar w^{(r-m)}
$$

The term is (gamma / 2) KL(averaged || local). The averaged weights are the mean of the
last M global models, including this round's (with FedACG not its look-ahead); rounds in
which no client trained are skipped. The server keeps the models and sends the mean with
the current model. With M = 1 this is KD with strength gamma / 2. The FedMLB paper,
which has FedGKD as a baseline, prints gamma but not M; ours is 5.
"""

from __future__ import annotations

import dataclasses

from tff_reg import settings
from tff_reg.methods import cards, distillation, memories, method, papers

_AVERAGED = "averaged"


@dataclasses.dataclass(frozen=True)
class FedGKD(method.Method):
    """The divergence from the averaged model's predictions."""

    name = "fedgkd"
    title = "Distils the predictions of the average of the last global models"
    paper = "Yao et al., 2021"
    card = cards.Card(
        cards.DISTILLATION,
        "Distils the predictions of the average of the last global models.",
        "Global models that change much from round to round.",
        cards.BY_HAND,
    )
    paper_settings = papers.FEDMLB

    strength: float = settings.setting(
        0.2,
        symbol="gamma",
        help="gamma, factor of the divergence; 0.2 in the FedMLB paper. 0 is FedAvg.",
        minimum=0,
    )
    temperature: float = settings.setting(
        1.0,
        help="Temperature of both softmaxes, above 0.",
        above=0,
    )
    averaged_rounds: int = settings.setting(
        5,
        symbol="M",
        help="M, the number of global models that are averaged, at least 1.",
        minimum=1,
        maximum=1000,
    )

    @property
    def server_memory(self) -> method.Declarations:  # pyright: ignore
        return {_AVERAGED: memories.recent(self.averaged_rounds)}

    def term(self, step: method.Step) -> method.Term:
        target = step.outputs_of(_AVERAGED).logits
        value = distillation.divergence(target, step.outputs.logits, self.temperature)
        return method.Term(raw=value, weighted=0.5 * self.strength * value)
