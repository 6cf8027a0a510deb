r"""SCAFFOLD: control variates against client drift.

Sai Praneeth Karimireddy, Satyen Kale, Mehryar Mohri, Sashank J. Reddi, Sebastian U.
Stich, Ananda Theertha Suresh. "SCAFFOLD: Stochastic Controlled Averaging for Federated
Learning." ICML 2020. https://arxiv.org/abs/1910.06378. Option II of Algorithm 1.

$$
\nabla \ell(w) - s_i + s, \qquad
s_i' = s_i - s + \frac{\bar w - w_i}{K \eta_0}, \qquad
s' = s + \frac{1}{N} \sum_i (s_i' - s_i)
$$

The client uses the gradient of the loss minus s_i plus s / wt_i, clipped. Afterwards
s_i' = s_i - s + (wg - w_i) / (K lr0) and s += 1/N sum of wt_i (s_i' - s_i) over the
cohort. The relative sizes wt_i are not in the paper, but in the MAN authors' code,
which divides by them in training and not in the update of s_i; equally large clients
have wt_i = 1. K is an average-sized client's number of steps, lr0 the undecayed rate.
In their runs every client takes exactly K steps (`--same_local_steps`).

(wg - w_i) / (K lr0) is the client's mean gradient for SGD without momentum. With any
other client optimiser it is replaced by the learning rate times the sum of the
gradients that the optimiser used, divided by K lr0.
"""

from __future__ import annotations

import dataclasses

from tff_reg.lazy import tf
from tff_reg.methods import cards, drift, memories, method, papers


@dataclasses.dataclass(frozen=True)
class SCAFFOLD(method.Method):
    """Control variates, without hyperparameters."""

    name = "scaffold"
    title = "Control variates that correct each local gradient for client drift"
    paper = "Karimireddy et al., ICML 2020"
    card = cards.Card(
        cards.DRIFT,
        "Corrects every local gradient by the difference between the server's and the "
        "client's control variate, an estimate of the client's drift.",
        "Skewed classes, and clients that take part repeatedly.",
        cards.NUMPY,
    )
    paper_settings = papers.MAN
    required_settings = {"client_weighting": "uniform", "same_local_steps": True}
    exclusive = (method.DRIFT,)
    client_memory = {"s": memories.zeros}
    server_memory = {"s": memories.sent(memories.zeros)}
    uploads = ("s",)

    def correct(self, local: method.Local, gradient: method.Tensors) -> method.Tensors:
        added = [
            tf.math.divide_no_nan(common, local.relative_size) - own
            for own, common in zip(local.memory["s"], local.server_memory["s"])
        ]
        return drift.plus(gradient, added)

    def finish(self, local: method.Local) -> method.Finished:
        change = [
            tf.math.divide_no_nan(taken, local.step_size) - common
            for common, taken in zip(local.server_memory["s"], local.taken)
        ]
        return method.Finished(
            memory={"s": drift.plus(local.memory["s"], change)},
            upload={"s": [local.relative_size * c for c in change]},
        )

    def update_memory(self, server: method.Server) -> method.Memory:
        return {"s": drift.grown(server.memory["s"], server.uploads["s"], server)}
