r"""FedWMSAM: personalised client momentum that also predicts SAM's perturbation.

Tianle Li, Yongzhi Huang, Linshan Jiang, Chang Liu, Qipeng Xie, Wenfeng Du, Lu Wang,
Kaishun Wu. "FedWMSAM: Fast and Flat Federated Learning via Weighted
Momentum and Sharpness-Aware Minimization." NeurIPS 2025.
https://github.com/Huang-Yongzhi/NeurlPS_FedWMSAM

$$
\alpha \nabla \ell\left(w + \rho \frac{t - w}{\| t - w \|}\right) + (1 - \alpha) D_i,
\qquad D_i = m + \frac{\alpha}{1 - \alpha} (c - c_i)
$$

The target t begins at the received model and grows by D_i in every step, without a
learning rate. The gradient is clipped. c_i and c are SCAFFOLD's control variates, with
u_i = w_i - a_i: c_i' = c_i - c - u_i / (K l), and c grows by the cohort's sum of
c_i' - c_i over the number of all clients. m is FedCM's direction times `decay`. alpha
becomes 0.99 alpha + 0.01 times the cohort's mean of 1 + cos(u_i, m), held within 0.1
and 0.9 (the cosine with m = 0 counts as -1). No value is FedAvg.

`direction` 'paper' is this, the README's algorithm. The authors' code turns the
perturbation round and divides by the sum of the tensors' norms plus 1e-7 ('shaped'),
and moves the k-th tensor by the k-th number of t - w ('published'), as FedLESAM's does.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from tff_reg import settings
from tff_reg.lazy import tf
from tff_reg.methods import (
    cards,
    drift,
    fedcm,
    fedlesam,
    fedsam,
    memories,
    method,
    papers,
)

_NORM_EPSILON = 1e-7


@dataclasses.dataclass(frozen=True)
class FedWMSAM(fedcm.FedCM):
    """Weighted momentum with sharpness-aware gradients."""

    name = "fedwmsam"
    title = "Personalised client momentum that also predicts SAM's perturbation"
    paper = "Li et al., NeurIPS 2025"
    card = cards.Card(
        cards.DRIFT,
        "FedCM's momentum with control variates; the perturbation points to where the "
        "momentum leads, so that a step needs one gradient.",
        "Skewed classes, and clients that take part repeatedly.",
    )
    paper_settings = papers.FL_SIMULATOR
    exclusive = (method.DRIFT,)
    client_memory = {"c": memories.zeros}
    uploads = ("direction", "c", "alignment")

    share: float = settings.setting(
        0.1,
        symbol="alpha",
        help="alpha, the weight of the client's own gradient in the first round.",
        above=0,
        below=1,
    )
    radius: float = settings.setting(
        0.1,
        symbol="rho",
        help="rho, the radius of the perturbation: 0.1; 0.01 is the README's best.",
        minimum=0,
    )
    decay: float = settings.setting(
        0.998,
        help="factor of the momentum, the code's decay of the learning rate.",
        above=0,
        maximum=1,
    )
    direction: str = settings.setting(
        "paper",
        help="Direction of the perturbation: 'paper', or 'shaped' or 'published' as in"
        " the code.",
        choices=("paper", "shaped", "published"),
    )

    @property
    def server_memory(self) -> method.Declarations:  # pyright: ignore
        return {
            "direction": memories.sent(memories.zeros),
            "c": memories.sent(memories.zeros),
            "alpha": memories.sent(self._first_share),
        }

    def _first_share(self, weights: Sequence[Any]) -> tf.Tensor:
        return tf.constant(self.share, weights[0].dtype)

    def begin(self, local: method.Local) -> method.Tensors:
        return list(local.start)

    def gradient(
        self, local: method.Local, gradient_at: method.GradientAt
    ) -> method.Tensors:
        if not self.radius:
            return gradient_at()
        way = [t - w for t, w in zip(local.state, local.weights)]
        if self.direction == "paper":
            return gradient_at(fedsam.ascend(way, self.radius, _NORM_EPSILON))
        if self.direction == "published":
            way = fedlesam.first_numbers(way)
        factor = -self.radius / (tf.add_n([tf.norm(d) for d in way]) + _NORM_EPSILON)
        return gradient_at(
            [factor * d * tf.ones_like(w) for d, w in zip(way, local.weights)]
        )

    def _momentum(self, local: method.Local) -> method.Tensors:
        """Returns D_i."""
        sent = local.server_memory
        ratio = sent["alpha"] / (1 - sent["alpha"])
        triples = zip(sent["direction"], sent["c"], local.memory["c"])
        return [m + ratio * (common - own) for m, common, own in triples]

    def correct(self, local: method.Local, gradient: method.Tensors) -> method.Tensors:
        alpha = local.server_memory["alpha"]
        pairs = zip(gradient, self._momentum(local))
        return [alpha * g + (1 - alpha) * d for g, d in pairs]

    def keep(self, local: method.Local, gradient: method.Tensors) -> method.Tensors:
        return drift.plus(local.state, self._momentum(local))

    def finish(self, local: method.Local) -> method.Finished:
        upload = dict(super().finish(local).upload)
        length = upload["direction"]["step_size"]
        change = [
            tf.math.divide_no_nan(taken, length) - common
            for taken, common in zip(local.taken, local.server_memory["c"])
        ]
        momentum = local.server_memory["direction"]
        inner = tf.add_n([tf.reduce_sum(d * m) for d, m in zip(local.delta, momentum)])
        lengths = fedsam.global_norm(local.delta) * fedsam.global_norm(momentum)
        aligned = 1 + tf.math.divide_no_nan(inner, lengths)
        aligned = tf.where(lengths > 0, aligned, tf.zeros_like(aligned))
        return method.Finished(
            {"c": drift.plus(local.memory["c"], change)},
            {**upload, "c": change, "alignment": aligned},
        )

    def update_memory(self, server: method.Server) -> Any:
        direction = super().update_memory(server)["direction"]
        aligned = server.mean_of([server.uploads["alignment"]])[0]
        old = server.memory["alpha"]
        alpha = 0.99 * old + 0.01 * tf.clip_by_value(aligned, 0.1, 0.9)
        new = {
            "direction": [self.decay * d for d in direction],
            "c": drift.grown(server.memory["c"], server.uploads["c"], server),
            "alpha": alpha,
        }
        return method.Change(new, {"alpha": alpha})
