r"""FedDC: a proximal term around the drift-corrected model, and a control variate.

Liang Gao, Huazhu Fu, Li Li, Yingwen Chen, Ming Xu, Cheng-Zhong Xu. "FedDC: Federated
Learning with Non-IID Data via Local Drift Decoupling and Correction." CVPR 2022.
https://arxiv.org/abs/2203.11751

$$
\nabla \ell(w) + \alpha (w - \bar w + h_i) - s_i + s, \qquad
h_i' = h_i + w_i - \bar w
$$

The gradient is that of the loss plus alpha_i (w - (cloud - h_i)) - s_i + s / wt_i,
clipped as a whole. Afterwards h_i += w_i - cloud, s_i' = s_i - s / wt_i + (cloud - w_i)
/ (K lr0) and s += 1/N sum of wt_i (s_i' - s_i) over the cohort; the new model is the
unweighted mean of the cohort's models plus the mean of h over all clients. K and lr0
are those of a client of mean size, undecayed. The mean of all clients' last models is
reported with `--averages_all_clients`. With a client optimiser other than SGD without
momentum (cloud - w_i) / (K lr0) is replaced as in SCAFFOLD.
"""

from __future__ import annotations

import dataclasses

from tff_reg import settings
from tff_reg.lazy import tf
from tff_reg.methods import drift, method, papers


@dataclasses.dataclass(frozen=True)
class FedDC(method.Method):
    """Drift decoupling and correction."""

    name = "feddc"
    title = "Drift decoupling and correction"
    paper = "Gao et al., CVPR 2022"
    paper_settings = papers.MAN
    brings = {"client_weighting": "uniform", "averages_all_clients": True}
    claims = (method.DRIFT, method.SERVER)
    needs_network = False
    needs_uniform_weighting = True
    server_step = (
        "plain mean of the clients plus feddc's memory, the mean of h over all clients"
    )
    sent = ("s",)
    uploads = ("s",)
    needs_gradients = True

    strength: float = settings.setting(
        0.01,
        symbol="alpha",
        help="alpha; 0.01 in the authors' runs.",
        minimum=0,
    )

    def initial_client_memory(self, weights: method.Tensors) -> method.Memory:
        return {"h": drift.zeros(weights), "s": drift.zeros(weights)}

    def initial_server_memory(self, weights: method.Tensors) -> method.Memory:
        return {"h": drift.zeros(weights), "s": drift.zeros(weights)}

    def correct(self, local: method.Local, gradient: method.Tensors) -> method.Tensors:
        alpha = drift.alpha_of(self.strength, local)
        added = [
            alpha * (w - c + h) - own + common
            for w, c, h, own, common in zip(
                local.weights,
                local.cloud,
                local.client["h"],
                local.client["s"],
                _scaled_common(local),
            )
        ]
        return drift.plus(gradient, added)

    def finish(self, local: method.Local) -> tuple[method.Memory, method.Memory]:
        change = [
            tf.math.divide_no_nan(taken, local.step_size) - common
            for common, taken in zip(_scaled_common(local), local.taken)
        ]
        memory = {
            "h": drift.plus(local.client["h"], local.moved),
            "s": drift.plus(local.client["s"], change),
        }
        return memory, {"s": [local.relative_size * c for c in change]}

    def update_server(
        self, server: method.Server
    ) -> tuple[method.Memory, method.Tensors]:
        mean = drift.grown(server.memory["h"], server.moved, server)
        common = drift.grown(server.memory["s"], server.uploads["s"], server)
        return {"h": mean, "s": common}, drift.plus(server.weights, mean)


def _scaled_common(local: method.Local) -> method.Tensors:
    """The common part, s / wt_i."""
    return [
        tf.math.divide_no_nan(common, local.relative_size)
        for common in local.server["s"]
    ]
