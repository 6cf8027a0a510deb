r"""FedSpeed: FedDyn's correction with a gradient taken after an ascent step.

Yan Sun, Li Shen, Tiansheng Huang, Liang Ding, Dacheng Tao. "FedSpeed: Larger Local
Interval, Less Communication Round, and Higher Generalization Accuracy." ICLR 2023.
https://arxiv.org/abs/2302.10429

$$
\nabla \ell\left(w + \rho \frac{g}{\| g \|}\right) +
\alpha (w - \bar w + h_i), \qquad h_i' = h_i + w_i - \bar w
$$

The gradient of the loss is taken at w + rho g / (||g|| + 1e-7), where g is the gradient
at w. Then alpha_i (h_i - wg) is added, the result is clipped, and alpha_i w is added.
Memories and server are FedDyn's.

The MAN authors' code does not clear the gradient between the two passes, so that it
adds the previous step's clipped gradient to g (0 in a round's first step). This is the
default here; `ascent='clean'` leaves it out. alpha and rho are 0.01 in their script and
in the recipes. `--averages_all_clients` also evaluates the mean of all clients' last
models.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from tff_reg import settings
from tff_reg.methods import cards, drift, feddyn, fedsam, memories, method


@dataclasses.dataclass(frozen=True)
class FedSpeed(fedsam.FedSAM, feddyn.FedDyn):
    """FedDyn with a gradient taken after an ascent step."""

    name = "fedspeed"
    title = "Dynamic regularisation combined with a gradient taken after an ascent step"
    paper = "Sun et al., ICLR 2023"
    card = cards.Card(
        cards.DRIFT,
        "FedDyn's correction with the gradient taken after a step uphill, as in "
        "FedSAM.",
        "Long local training under skewed classes; a step costs two gradients.",
        cards.NUMPY,
    )
    exclusive = (method.DRIFT,)
    _norm_epsilon = 1e-7
    server_step = (
        "plain mean of the clients plus fedspeed's memory, the mean of h over all"
        " clients"
    )

    strength: float = settings.setting(
        0.01,
        symbol="alpha",
        help=(
            "alpha, factor of the proximal term, as in FedDyn; 0.01 in the MAN "
            "authors' script."
        ),
        minimum=0,
    )
    radius: float = settings.setting(
        0.01,
        symbol="rho",
        help=(
            "rho, the radius of the ascent step: 0.01 in the MAN authors' script, 0.1 "
            "in FL-Simulator, by FedSpeed's authors. 0 is FedDyn."
        ),
        minimum=0,
    )
    ascent: str = settings.setting(
        "code",
        help=(
            "Direction of the ascent step: 'code' adds the previous step's gradient; "
            "'clean' does not."
        ),
        choices=("code", "clean"),
    )

    @property
    def _adds_previous(self) -> bool:
        return self.radius > 0 and self.ascent == "code"

    def begin(self, local: method.Local) -> tuple[Any, ...]:
        return tuple(memories.zeros(local.start)) if self._adds_previous else ()

    def perturbation(
        self, local: method.Local, gradient: method.Tensors
    ) -> method.Tensors:
        way = drift.plus(gradient, local.state) if self._adds_previous else gradient
        return super().perturbation(local, way)

    def keep(self, local: method.Local, gradient: method.Tensors) -> tuple[Any, ...]:
        return tuple(gradient) if self._adds_previous else ()
