"""FedDyn: a proximal term whose linear part remembers a client's drift.

Durmus Alp Emre Acar, Yue Zhao, Ramon Matas, Matthew Mattina, Paul Whatmough, Venkatesh
Saligrama. "Federated Learning Based on Dynamic Regularization." ICLR 2021.
https://arxiv.org/abs/2111.04263

The gradient is that of the loss plus alpha_i (h_i - cloud), clipped, plus alpha_i w:
half of the proximal term is not clipped, as in the authors' code, where it is extra
weight decay. Afterwards h_i += w_i - cloud, and the new model is the unweighted mean of
the cohort's models plus the mean of h over all clients.
"""

from __future__ import annotations

import dataclasses

from tff_reg.corrections import correction
from tff_reg.regularizers import regularizer


@dataclasses.dataclass(frozen=True)
class FedDyn(correction.Correction):
    """Dynamic regularisation.

    Attributes:
      strength: alpha; 0.1 in the FedMLB and MAN papers.
    """

    name = "feddyn"
    client_memories = ("h",)
    server_memories = ("h",)
    from_update = ("h",)
    added_to_model = "h"

    strength: float = 0.1

    def __post_init__(self):
        regularizer.check_nonnegative(self.name, strength=self.strength)

    def before_clipping(self, local: correction.Local) -> list:
        alpha = correction.alpha_of(self.strength, local)
        return [alpha * (h - c) for h, c in zip(local.client["h"], local.cloud)]

    def after_clipping(self, local: correction.Local) -> list:
        alpha = correction.alpha_of(self.strength, local)
        return [alpha * w for w in local.weights]

    def finish(self, local: correction.Local) -> tuple[dict, dict]:
        drift = correction.moved(local)
        return {"h": [h + d for h, d in zip(local.client["h"], drift)]}, {}
