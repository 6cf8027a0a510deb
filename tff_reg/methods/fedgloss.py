r"""FedGloSS: sharpness-aware steps of the server and of the clients.

Debora Caldarola, Pietro Cagnasso, Barbara Caputo, Marco Ciccone. "Beyond Local
Sharpness: Communication-Efficient Global Sharpness-aware Minimization for Federated
Learning." CVPR 2025. https://arxiv.org/abs/2412.03752

$$
a = \bar w + \rho \frac{D}{\| D \|}, \qquad
\nabla \ell\left(w + \rho_l \frac{g}{\| g \|}\right) - q_i + \frac{w - a}{\beta},
\qquad \bar w' = \bar w - D' - \beta Q'
$$

Clients receive a; D is the mean of a - w_i in the last round, weighted as the average,
and a = wg in the first. The correction is not clipped. Afterwards q_i falls by
(w_i - a) / beta, and Q by the cohort's sum of it over the number of all clients. The
server optimiser takes the step -D'. Evaluated is wg.

The authors' code (`rule` 'published') divides Q's sum by the cohort's size as well,
and renews a and q_i in every local epoch. In its warm-up (`warmup_rounds` T above 1)
rho_l rises linearly from `first_radius` over T rounds; the server's rho is
`first_radius` in the first round, and then the full rho_l + (rho - first_radius) / T.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from tff_reg import settings
from tff_reg.lazy import tf
from tff_reg.methods import cards, drift, fedsam, memories, method, papers


@dataclasses.dataclass(frozen=True)
class FedGloSS(fedsam.FedSAM):
    """Sharpness-aware steps at the server and at the clients."""

    name = "fedgloss"
    title = "Sharpness-aware steps of the server and of the clients"
    paper = "Caldarola et al., CVPR 2025"
    card = cards.Card(
        cards.DRIFT,
        "Sends a model that is moved along the last global update, takes SAM's "
        "gradients there, and draws clients together by their duals.",
        "Skewed classes and sharp minima; a step costs two gradients.",
    )
    paper_settings = papers.FEDGLOSS
    exclusive = (method.DRIFT,)
    client_memory = {"q": memories.zeros}
    server_memory = {
        "update": memories.zeros,
        "q": memories.zeros,
        "rounds": memories.count,
    }
    uploads = ("moved",)
    adds_to_model = True

    server_radius: float = settings.setting(
        0.15,
        symbol="rho",
        help="rho, the radius at the server: 0.15; 0.01 for CIFAR-100.",
        minimum=0,
    )
    radius: float = settings.setting(
        0.15,
        symbol="rho_l",
        help="rho_l, the radius at the clients: 0.15; 0.2 for CIFAR-100.",
        minimum=0,
    )
    beta: float = settings.setting(
        10.0,
        symbol="beta",
        help="beta, the inverse strength of the correction: 10; 100 for CIFAR-100.",
        above=0,
    )
    rule: str = settings.setting(
        "paper",
        help="'paper', or 'published' as in the authors' code.",
        choices=("paper", "published"),
    )
    warmup_rounds: int = settings.setting(
        1, symbol="T", help="T, rounds over which rho_l rises.", minimum=1
    )
    first_radius: float = settings.setting(
        1e-3, symbol="rho_0", help="rho_0, both radii in the first round.", minimum=0
    )

    def _radius(self, round_num: Any, dtype: Any) -> Any:
        """Returns rho_l in a round that counts from 1."""
        if self.warmup_rounds < 2:
            return tf.constant(self.radius, dtype)
        passed = tf.cast(round_num - 1, dtype) / self.warmup_rounds
        passed = tf.minimum(passed, tf.ones([], dtype))
        return self.first_radius + (self.radius - self.first_radius) * passed

    def broadcast(
        self, weights: method.Tensors, memory: method.Memory
    ) -> method.Tensors:
        dtype = weights[0].dtype
        radius = tf.constant(self.server_radius, dtype)
        if self.warmup_rounds >= 2:
            added = (self.server_radius - self.first_radius) / self.warmup_rounds
            later = tf.constant(self.radius + added, dtype)
            first = tf.constant(self.first_radius, dtype)
            radius = tf.where(memory["rounds"] == 0, first, later)
        length = fedsam.global_norm(memory["update"])
        factor = tf.math.divide_no_nan(radius, length)
        return drift.plus(weights, [factor * d for d in memory["update"]])

    def begin(self, local: method.Local) -> dict[str, method.Tensors]:
        return {"a": list(local.start), "q": list(local.memory["q"])}

    def perturbation(
        self, local: method.Local, gradient: method.Tensors
    ) -> method.Tensors:
        radius = self._radius(local.round_num, gradient[0].dtype)
        return fedsam.ascend(gradient, radius, self._norm_epsilon)

    def correct_clipped(
        self, local: method.Local, gradient: method.Tensors
    ) -> method.Tensors:
        state = self._in_epoch(local)
        triples = zip(local.weights, state["a"], state["q"])
        return drift.plus(gradient, [(w - a) / self.beta - q for w, a, q in triples])

    def keep(
        self, local: method.Local, gradient: method.Tensors
    ) -> dict[str, method.Tensors]:
        return self._in_epoch(local)

    def _in_epoch(self, local: method.Local) -> dict[str, method.Tensors]:
        """Returns a and q_i, which the authors' code renews in every epoch."""
        if self.rule == "paper":
            return local.state
        new = {"a": local.weights, "q": self._next_dual(local)}
        return {
            name: [
                tf.where(local.begins_epoch, n, o)
                for n, o in zip(new[name], local.state[name])
            ]
            for name in new
        }

    def _next_dual(self, local: method.Local) -> method.Tensors:
        triples = zip(local.weights, local.state["a"], local.state["q"])
        return [q - (w - a) / self.beta for w, a, q in triples]

    def finish(self, local: method.Local) -> method.Finished:
        return method.Finished({"q": self._next_dual(local)}, {"moved": local.delta})

    def update_memory(self, server: method.Server) -> method.Memory:
        share = 1 / (self.beta * server.num_clients)
        moved = server.uploads["moved"]
        if self.rule == "published":
            moved = server.mean_of(moved)
        return {
            "update": [-m for m in server.mean_delta],
            "q": [q - share * m for q, m in zip(server.memory["q"], moved)],
            "rounds": server.memory["rounds"] + 1,
        }

    def next_model(self, server: method.Server) -> method.Tensors:
        return drift.plus(server.weights, [-self.beta * q for q in server.memory["q"]])
