r"""FedNAR: weight decay that is clipped together with the gradient.

Junbo Li, Ang Li, Chong Tian, Qirong Ho, Eric P. Xing, Hongyi Wang. "FedNAR: Federated
Optimization with Normalized Annealing Regularization." NeurIPS 2023.
https://arxiv.org/abs/2310.03163

$$
w \leftarrow w - \eta \, \mathrm{clip}(\nabla \ell(w) + \mu w)
$$

The decay is part of the gradient that `max_gradient_norm` clips, with all that other
methods add before clipping. Where nothing is clipped, it is ordinary weight decay, and
`--client_weight_decay` would be a second one outside the clipping.
"""

from __future__ import annotations

import dataclasses

from tff_reg import settings
from tff_reg.methods import cards, drift, method, papers


@dataclasses.dataclass(frozen=True)
class FedNAR(method.Method):
    """Weight decay inside the clipping."""

    name = "fednar"
    title = "Weight decay that is clipped together with the gradient"
    paper = "Li et al., NeurIPS 2023"
    card = cards.Card(
        cards.LOSS,
        "Adds the weight decay to the gradient before it is clipped, so that it cannot "
        "outweigh the gradient.",
        "Strong weight decay, and gradients that are clipped.",
    )
    paper_settings = papers.FEDNAR
    required_settings = {"client_weight_decay": 0.0, "max_gradient_norm": 10.0}

    strength: float = settings.setting(
        0.05,
        symbol="mu",
        help=(
            "mu, the weight decay: 0.05 in the authors' scripts, 0.01 with FedExP, "
            "FedAvgM and FedAdam. 0 is FedAvg."
        ),
        minimum=0,
    )

    def correct(self, local: method.Local, gradient: method.Tensors) -> method.Tensors:
        return drift.plus(gradient, [self.strength * w for w in local.weights])
