r"""FedDyn: a proximal term with a linear part that accumulates a client's drift.

Durmus Alp Emre Acar, Yue Zhao, Ramon Matas, Matthew Mattina, Paul Whatmough, Venkatesh
Saligrama. "Federated Learning Based on Dynamic Regularization." ICLR 2021.
https://arxiv.org/abs/2111.04263

$$
\nabla \ell(w) + \alpha (w - \bar w + h_i), \qquad
h_i' = h_i + w_i - \bar w, \qquad
\bar w' = \frac{1}{|S|} \sum_{i \in S} w_i + \frac{1}{N} \sum_{j=1}^{N} h_j'
$$

The client adds alpha_i (h_i - wg) to the gradient of the loss, clips the sum, and adds
alpha_i w: this half of the proximal term is not clipped, as in the authors' code, where
it is extra weight decay. The FedMLB authors' code clips the whole (`clipping='whole'`).
Afterwards h_i += w_i - wg, and the new model is the unweighted mean of the cohort's
models plus the mean of h over all clients.

alpha is 0.01 in the MAN authors' script and in the recipes. The paper evaluates the
mean of all clients' last models (`--averages_all_clients`) and samples clients
independently (`--client_sampling=independent`).
"""

from __future__ import annotations

import dataclasses

from tff_reg import settings
from tff_reg.methods import cards, drift, memories, method, papers


@dataclasses.dataclass(frozen=True)
class FedDyn(method.Method):
    """Dynamic regularisation."""

    name = "feddyn"
    title = "Proximal term with a linear part that accumulates each client's drift"
    paper = "Acar et al., ICLR 2021"
    card = cards.Card(
        cards.DRIFT,
        "Adds to the loss a proximal term with a linear part that accumulates the "
        "client's drift, so that local and global optima agree in the limit.",
        "Skewed classes, and clients that take part repeatedly.",
    )
    paper_settings = papers.MAN
    # FedDyn's, FedDC's and FedSpeed's papers report the mean of all clients.
    required_settings = {"averages_all_clients": True}
    exclusive = (method.DRIFT,)
    client_memory = {"h": memories.zeros}
    server_memory = {"h": memories.zeros}
    needs = (method.UNIFORM_WEIGHTING,)
    server_step = (
        "plain mean of the clients plus feddyn's memory, the mean of h over all clients"
    )

    strength: float = settings.setting(
        0.01,
        symbol="alpha",
        help=(
            "alpha, factor of the proximal term: 0.01 in the scripts of FedDyn and "
            "MAN, 0.1 in the FedMLB paper. 0 still adds the mean of h."
        ),
        minimum=0,
    )
    clipping: str = settings.setting(
        "half",
        help=(
            "What is clipped: 'half' adds alpha w after gradients are clipped, as in "
            "FedDyn's code; 'whole' before, as in FedMLB's."
        ),
        choices=("half", "whole"),
    )

    def correct(self, local: method.Local, gradient: method.Tensors) -> method.Tensors:
        alpha = drift.alpha_of(self.strength, local)
        pairs = zip(local.memory["h"], local.start)
        linear = drift.plus(gradient, [alpha * (h - c) for h, c in pairs])
        return self._with_decay(local, linear) if self.clipping == "whole" else linear

    def correct_clipped(
        self, local: method.Local, gradient: method.Tensors
    ) -> method.Tensors:
        if self.clipping == "whole":
            return gradient
        return self._with_decay(local, gradient)

    def _with_decay(
        self, local: method.Local, gradient: method.Tensors
    ) -> method.Tensors:
        alpha = drift.alpha_of(self.strength, local)
        return drift.plus(gradient, [alpha * w for w in local.weights])

    def finish(self, local: method.Local) -> method.Finished:
        return method.Finished({"h": drift.plus(local.memory["h"], local.delta)})

    def update_memory(self, server: method.Server) -> method.Memory:
        return {"h": drift.grown(server.memory["h"], server.delta_sum, server)}

    def next_model(self, server: method.Server) -> method.Tensors:
        return drift.plus(server.weights, server.memory["h"])
