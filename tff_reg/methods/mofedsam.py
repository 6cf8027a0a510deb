r"""MoFedSAM: FedCM with sharpness-aware gradients.

Zhe Qu, Xingyu Li, Rui Duan, Yao Liu, Bo Tang, Zhuo Lu. "Generalized Federated Learning
via Sharpness Aware Minimization." ICML 2022. https://arxiv.org/abs/2206.02618

$$
\alpha \nabla \ell\left(w + \rho \frac{g}{\| g \|}\right) +
(1 - \alpha) D, \qquad g = \nabla \ell(w)
$$

FedCM's gradient is taken at w + rho g / (||g|| + 1e-7), with g the gradient of the loss
at w: not clipped, without D, alpha or weight decay, as in FL-Simulator. D is FedCM's, a
mean with the clients' weights in the average.
"""

from __future__ import annotations

import dataclasses

from tff_reg import settings
from tff_reg.methods import cards, fedcm, fedsam, method


@dataclasses.dataclass(frozen=True)
class MoFedSAM(fedsam.FedSAM, fedcm.FedCM):
    """Client-level momentum with sharpness-aware gradients."""

    name = "mofedsam"
    title = "Client-level momentum combined with sharpness-aware gradients"
    paper = "Qu et al., ICML 2022"
    card = cards.Card(
        cards.DRIFT,
        "FedCM with the gradient taken after a step uphill, as in FedSAM.",
        "FedCM's use; a step costs two gradients.",
    )
    exclusive = (method.DRIFT,)
    _norm_epsilon = 1e-7

    share: float = settings.setting(
        0.1,
        symbol="alpha",
        help="alpha, the weight of the client's own gradient. 1 is FedSAM.",
        above=0,
        maximum=1,
    )
    radius: float = settings.setting(
        0.1,
        symbol="rho",
        help="rho, the radius of the perturbation. 0 is FedCM.",
        minimum=0,
    )
