r"""FedGAMMA: SCAFFOLD's control variates with SAM's gradients.

Rong Dai, Xun Yang, Yan Sun, Li Shen, Xinmei Tian, Meng Wang, Yongdong Zhang. "FedGAMMA:
Federated Learning with Global Sharpness-Aware Minimization." IEEE Transactions on
Neural Networks and Learning Systems, 2023.

$$
\nabla \ell\left(w + \rho \frac{g}{\| g \|}\right) - s_i + s, \qquad
g = \nabla \ell(w)
$$

Here `fedgamma` computes the same as `scaffold+fedsam`, to the bit. FL-Simulator's rho
is 0.01, ours is FedSAM's 0.05; FL-Simulator's control variates divide by the current
learning rate, ours by the undecayed one.
"""

from __future__ import annotations

import dataclasses

from tff_reg import settings
from tff_reg.methods import cards, fedsam, method, scaffold


@dataclasses.dataclass(frozen=True)
class FedGAMMA(fedsam.FedSAM, scaffold.SCAFFOLD):
    """SCAFFOLD and FedSAM."""

    name = "fedgamma"
    title = "Control variates combined with sharpness-aware gradients"
    paper = "Dai et al., TNNLS 2023"
    card = cards.Card(
        cards.DRIFT,
        "SCAFFOLD's control variates with FedSAM's gradients.",
        "Skewed classes; a step costs two gradients.",
        cards.BY_HAND,
    )
    exclusive = (method.DRIFT,)

    radius: float = settings.setting(
        0.05,
        symbol="rho",
        help="rho, the radius of the perturbation. 0 is SCAFFOLD.",
        minimum=0,
    )
