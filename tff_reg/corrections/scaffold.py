"""SCAFFOLD: control variates against client drift.

Sai Praneeth Karimireddy, Satyen Kale, Mehryar Mohri, Sashank J. Reddi, Sebastian U.
Stich, Ananda Theertha Suresh. "SCAFFOLD: Stochastic Controlled Averaging for Federated
Learning." ICML 2020. https://arxiv.org/abs/1910.06378. Option II of Algorithm 1.

The gradient is that of the loss minus s_i plus s / wt_i, clipped. Afterwards
s_i' = s_i - s + (cloud - w_i) / (K lr0) and s += 1/N sum of wt_i (s_i' - s_i) over the
cohort. The relative sizes wt_i are the MAN authors' (the paper has none), who divide by
them in training and not in the update; with equally large clients they are 1. In their
runs every client takes exactly K steps.
"""

from __future__ import annotations

import dataclasses

from tff_reg.corrections import correction
from tff_reg.lazy import tf


@dataclasses.dataclass(frozen=True)
class Scaffold(correction.Correction):
    """Control variates; there is nothing to set."""

    name = "scaffold"
    client_memories = ("s",)
    server_memories = ("s",)
    sent = ("s",)
    infers_gradient = True

    def before_clipping(self, local: correction.Local) -> list:
        return [
            tf.math.divide_no_nan(common, local.relative_size) - own
            for own, common in zip(local.client["s"], local.server["s"])
        ]

    def finish(self, local: correction.Local) -> tuple[dict, dict]:
        change = [
            -common - tf.math.divide_no_nan(d, local.step_size)
            for common, d in zip(local.server["s"], correction.moved(local))
        ]
        memories = {"s": [own + c for own, c in zip(local.client["s"], change)]}
        return memories, {"s": [local.relative_size * c for c in change]}
