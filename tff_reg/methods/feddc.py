r"""FedDC: a proximal term around the drift-corrected model, and a control variate.

Liang Gao, Huazhu Fu, Li Li, Yingwen Chen, Ming Xu, Cheng-Zhong Xu. "FedDC: Federated
Learning with Non-IID Data via Local Drift Decoupling and Correction." CVPR 2022.
https://arxiv.org/abs/2203.11751

$$
\nabla \ell(w) + \alpha (w - \bar w + h_i) - s_i + s, \qquad
h_i' = h_i + w_i - \bar w
$$

The client uses the gradient of the loss plus alpha_i (w - (wg - h_i)) - s_i + s / wt_i,
clipped as a whole. After training, h_i += w_i - wg, s_i' = s_i - s / wt_i + (wg - w_i)
/ (K lr0) and s += 1/N sum of wt_i (s_i' - s_i) over the cohort; the new model is the
unweighted mean of the cohort's models plus the mean of h over all clients. K is the
number of steps of an average-sized client, and lr0 the learning rate before any decay.
`--averages_all_clients` also evaluates the mean of all clients' last models. With a
client optimiser other than SGD without momentum, (wg - w_i) / (K lr0) is replaced as in
SCAFFOLD.
"""

from __future__ import annotations

import dataclasses

from tff_reg import settings
from tff_reg.lazy import tf
from tff_reg.methods import cards, drift, memories, method, papers


@dataclasses.dataclass(frozen=True)
class FedDC(method.Method):
    """Drift decoupling and correction."""

    name = "feddc"
    title = (
        "Drift variables that are added to a client's weights, with control variates"
    )
    paper = "Gao et al., CVPR 2022"
    card = cards.Card(
        cards.DRIFT,
        "Learns each client's drift from the global weights, subtracts it in a "
        "proximal term, and adds SCAFFOLD's control variates.",
        "Skewed classes, and clients that take part repeatedly.",
        cards.NUMPY,
    )
    paper_settings = papers.MAN
    required_settings = {"averages_all_clients": True}
    exclusive = (method.DRIFT,)
    needs = (method.UNIFORM_WEIGHTING,)
    server_step = (
        "plain mean of the clients plus feddc's memory, the mean of h over all clients"
    )
    client_memory = {"h": memories.zeros, "s": memories.zeros}
    server_memory = {"h": memories.zeros, "s": memories.sent(memories.zeros)}
    uploads = ("s",)

    strength: float = settings.setting(
        0.01,
        symbol="alpha",
        help="alpha, factor of the proximal term; 0.01 in the authors' runs.",
        minimum=0,
    )

    def correct(self, local: method.Local, gradient: method.Tensors) -> method.Tensors:
        alpha = drift.alpha_of(self.strength, local)
        added = [
            alpha * (w - c + h) - own + common
            for w, c, h, own, common in zip(
                local.weights,
                local.start,
                local.memory["h"],
                local.memory["s"],
                _scaled_common(local),
            )
        ]
        return drift.plus(gradient, added)

    def finish(self, local: method.Local) -> method.Finished:
        change = [
            tf.math.divide_no_nan(taken, local.step_size) - common
            for common, taken in zip(_scaled_common(local), local.taken)
        ]
        return method.Finished(
            memory={
                "h": drift.plus(local.memory["h"], local.delta),
                "s": drift.plus(local.memory["s"], change),
            },
            upload={"s": [local.relative_size * c for c in change]},
        )

    def update_memory(self, server: method.Server) -> method.Memory:
        return {
            "h": drift.grown(server.memory["h"], server.delta_sum, server),
            "s": drift.grown(server.memory["s"], server.uploads["s"], server),
        }

    def next_model(self, server: method.Server) -> method.Tensors:
        return drift.plus(server.weights, server.memory["h"])


def _scaled_common(local: method.Local) -> method.Tensors:
    """Returns the server's control variate for this client, s / wt_i."""
    return [
        tf.math.divide_no_nan(common, local.relative_size)
        for common in local.server_memory["s"]
    ]
