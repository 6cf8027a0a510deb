r"""SCAFFOLD: control variates against client drift.

Sai Praneeth Karimireddy, Satyen Kale, Mehryar Mohri, Sashank J. Reddi, Sebastian U.
Stich, Ananda Theertha Suresh. "SCAFFOLD: Stochastic Controlled Averaging for Federated
Learning." ICML 2020. https://arxiv.org/abs/1910.06378. Option II of Algorithm 1.

$$
\nabla \ell(w) - s_i + s, \qquad
s_i' = s_i - s + \frac{\bar w - w_i}{K \eta_0}, \qquad
s' = s + \frac{1}{N} \sum_i (s_i' - s_i)
$$

The gradient is that of the loss minus s_i plus s / wt_i, clipped. Afterwards
s_i' = s_i - s + (cloud - w_i) / (K lr0) and s += 1/N sum of wt_i (s_i' - s_i) over the
cohort. The relative sizes wt_i are the MAN authors' (the paper has none), who divide by
them in training and not in the update; with equally large clients they are 1. K and lr0
are those of a client of mean size, undecayed. In their runs every client takes exactly
K steps (`--same_local_steps`).

The last term stands for the mean of the client's gradients, which it is for SGD without
momentum. With any other client optimiser it is the sum of the gradients that the
optimiser followed, times the learning rate, over K lr0.
"""

from __future__ import annotations

import dataclasses

from tff_reg.lazy import tf
from tff_reg.methods import drift, method, papers


@dataclasses.dataclass(frozen=True)
class Scaffold(method.Method):
    """Control variates; there is nothing to set."""

    name = "scaffold"
    title = "Control variates"
    paper = "Karimireddy et al., ICML 2020"
    paper_settings = papers.MAN
    brings = {"client_weighting": "uniform", "same_local_steps": True}
    claims = (method.DRIFT,)
    needs_network = False
    sent = ("s",)
    uploads = ("s",)
    needs_gradients = True

    def initial_client_memory(self, weights: method.Tensors) -> method.Memory:
        return {"s": drift.zeros(weights)}

    def initial_server_memory(self, weights: method.Tensors) -> method.Memory:
        return {"s": drift.zeros(weights)}

    def correct(self, local: method.Local, gradient: method.Tensors) -> method.Tensors:
        added = [
            tf.math.divide_no_nan(common, local.relative_size) - own
            for own, common in zip(local.client["s"], local.server["s"])
        ]
        return drift.plus(gradient, added)

    def finish(self, local: method.Local) -> tuple[method.Memory, method.Memory]:
        change = [
            tf.math.divide_no_nan(taken, local.step_size) - common
            for common, taken in zip(local.server["s"], local.taken)
        ]
        memory = {"s": drift.plus(local.client["s"], change)}
        return memory, {"s": [local.relative_size * c for c in change]}

    def update_server(
        self, server: method.Server
    ) -> tuple[method.Memory, method.Tensors]:
        return {
            "s": drift.grown(server.memory["s"], server.uploads["s"], server)
        }, list(server.weights)
