"""FedDC: a proximal term around the drift-corrected model, and a control variate.

Liang Gao, Huazhu Fu, Li Li, Yingwen Chen, Ming Xu, Cheng-Zhong Xu. "FedDC: Federated
Learning with Non-IID Data via Local Drift Decoupling and Correction." CVPR 2022.
https://arxiv.org/abs/2203.11751

The gradient is that of the loss plus alpha_i (w - (cloud - h_i)) - s_i + s / wt_i,
clipped as a whole. Afterwards h_i += w_i - cloud,
s_i' = s_i - s / wt_i + (cloud - w_i) / (K lr0) and s += 1/N sum of wt_i (s_i' - s_i)
over the cohort; the new model is the unweighted mean of the cohort's models plus the
mean of h over all clients.
"""

from __future__ import annotations

import dataclasses

from tff_reg.corrections import correction
from tff_reg.lazy import tf
from tff_reg.regularizers import regularizer


@dataclasses.dataclass(frozen=True)
class FedDC(correction.Correction):
    """Drift decoupling and correction.

    Attributes:
      strength: alpha; 0.01 in the authors' runs.
    """

    name = "feddc"
    client_memories = ("h", "s")
    server_memories = ("h", "s")
    sent = ("s",)
    from_update = ("h",)
    added_to_model = "h"
    infers_gradient = True

    strength: float = 0.01

    def __post_init__(self):
        regularizer.check_nonnegative(self.name, strength=self.strength)

    def before_clipping(self, local: correction.Local) -> list:
        alpha = correction.alpha_of(self.strength, local)
        return [
            alpha * (w - c + h) - own + common
            for w, c, h, own, common in zip(
                local.weights,
                local.cloud,
                local.client["h"],
                local.client["s"],
                _scaled_common(local),
            )
        ]

    def finish(self, local: correction.Local) -> tuple[dict, dict]:
        drift = correction.moved(local)
        change = [
            -common - tf.math.divide_no_nan(d, local.step_size)
            for common, d in zip(_scaled_common(local), drift)
        ]
        memories = {
            "h": [h + d for h, d in zip(local.client["h"], drift)],
            "s": [own + c for own, c in zip(local.client["s"], change)],
        }
        return memories, {"s": [local.relative_size * c for c in change]}


def _scaled_common(local: correction.Local) -> list:
    """s / wt_i."""
    return [
        tf.math.divide_no_nan(common, local.relative_size)
        for common in local.server["s"]
    ]
