r"""FedSMOO: dynamic regularisation of the weights and of SAM's perturbation.

Yan Sun, Li Shen, Shixiang Chen, Liang Ding, Dacheng Tao. "Dynamic Regularized Sharpness
Aware Minimization in Federated Learning: Approaching Global Consistency and Smooth
Landscape." ICML 2023. https://arxiv.org/abs/2305.11584

$$
e = \rho \frac{\nabla \ell(w) - m_i - s}{\| \nabla \ell(w) - m_i - s \|}, \qquad
\nabla \ell(w + e) + \lambda (w - a_i + h_i)
$$

In every step the dual m_i grows by e - s. The gradient at w + e plus lambda (h_i - a_i)
is clipped; lambda w is added afterwards, as in FL-Simulator, where it is weight decay.
At the end h_i grows by w_i - a_i. The server sends s = rho M / (||M|| + 1e-7), with M
the cohort's mean of m_i; the new model is the cohort's mean model plus the mean of h
over all clients. rho = 0 is FL-Simulator's FedDyn: lambda is not divided by a client's
relative size. No value is FedAvg.
"""

from __future__ import annotations

import dataclasses

from tff_reg import settings
from tff_reg.methods import cards, drift, fedsam, memories, method, papers

_NORM_EPSILON = 1e-7


@dataclasses.dataclass(frozen=True)
class FedSMOO(method.Method):
    """Dynamic regularisation of weights and perturbations."""

    name = "fedsmoo"
    title = "Dynamic regularisation of the weights and of SAM's perturbation"
    paper = "Sun et al., ICML 2023"
    card = cards.Card(
        cards.DRIFT,
        "FedDyn's correction with SAM's gradient, whose perturbation is drawn to one "
        "that all clients share.",
        "Skewed classes and long local training; a step costs two gradients.",
    )
    paper_settings = papers.FL_SIMULATOR
    exclusive = (method.DRIFT,)
    needs = (method.UNIFORM_WEIGHTING,)
    client_memory = {"h": memories.zeros, "m": memories.zeros}
    server_memory = {"h": memories.zeros, "s": memories.sent(memories.zeros)}
    uploads = ("m",)
    server_step = (
        "plain mean of the clients plus fedsmoo's memory, the mean of h over all"
        " clients"
    )

    strength: float = settings.setting(
        0.1,
        symbol="lambda",
        help="lambda, factor of the proximal term. 0 still adds the mean of h.",
        minimum=0,
    )
    radius: float = settings.setting(
        0.1,
        symbol="rho",
        help="rho, the radius of the perturbation. 0 leaves it out.",
        minimum=0,
    )

    def begin(self, local: method.Local) -> method.Tensors:
        return list(local.memory["m"])

    def gradient(
        self, local: method.Local, gradient_at: method.GradientAt
    ) -> method.Change:
        gradient = gradient_at()
        if not self.radius:
            return method.Change(gradient)
        common = local.server_memory["s"]
        way = [g - m - s for g, m, s in zip(gradient, local.state, common)]
        moved = fedsam.ascend(way, self.radius, _NORM_EPSILON)
        return method.Change(gradient_at(moved), kept={"moved": moved})

    def keep(self, local: method.Local, gradient: method.Tensors) -> method.Tensors:
        if not self.radius:
            return local.state
        pairs = zip(local.kept["moved"], local.server_memory["s"])
        return drift.plus(local.state, [e - s for e, s in pairs])

    def correct(self, local: method.Local, gradient: method.Tensors) -> method.Tensors:
        pairs = zip(local.memory["h"], local.start)
        return drift.plus(gradient, [self.strength * (h - a) for h, a in pairs])

    def correct_clipped(
        self, local: method.Local, gradient: method.Tensors
    ) -> method.Tensors:
        return drift.plus(gradient, [self.strength * w for w in local.weights])

    def finish(self, local: method.Local) -> method.Finished:
        dual = list(local.state)
        grown = drift.plus(local.memory["h"], local.delta)
        return method.Finished({"h": grown, "m": dual}, {"m": dual})

    def update_memory(self, server: method.Server) -> method.Memory:
        mean = server.mean_of(server.uploads["m"])
        return {
            "h": drift.grown(server.memory["h"], server.delta_sum, server),
            "s": fedsam.ascend(mean, self.radius, _NORM_EPSILON),
        }

    def next_model(self, server: method.Server) -> method.Tensors:
        return drift.plus(server.weights, server.memory["h"])
