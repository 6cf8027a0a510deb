r"""FedInit: clients begin away from their last model.

Yan Sun, Li Shen, Dacheng Tao. "Understanding How Consistency Works in Federated
Learning via Stage-wise Relaxed Initialization." NeurIPS 2023.
https://arxiv.org/abs/2306.05706

$$
a_i = \bar w + \beta (\bar w - p_i)
$$

p_i is the model at which the client ended its last round, at first the initial model.
Other methods measure a client's movement from a_i. In the authors' code (`average`
'updates') the server adds the mean of w_i - a_i to its model; in the paper ('models')
it takes the mean of w_i. Both are unweighted there. FL-Simulator's FedDyn, FedSpeed and
FedSMOO average models, so that with them its option is 'models'.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from tff_reg import settings
from tff_reg.methods import cards, drift, memories, method, papers


@dataclasses.dataclass(frozen=True)
class FedInit(method.Method):
    """Relaxed initialisation."""

    name = "fedinit"
    title = "Clients begin away from the model at which they ended before"
    paper = "Sun et al., NeurIPS 2023"
    card = cards.Card(
        cards.LOSS,
        "A client begins not at the global model but a little beyond it, seen from the "
        "model at which its last round ended.",
        "Clients that take part repeatedly; at FedAvg's cost and traffic.",
    )
    paper_settings = papers.FL_SIMULATOR
    required_settings = {"client_weighting": "uniform"}
    client_memory = {method.PREVIOUS: memories.shared(memories.initial_weights)}
    adds_to_model = True

    strength: float = settings.setting(
        0.1,
        symbol="beta",
        help="beta, how far a client begins beyond the global model. 0 is FedAvg.",
        minimum=0,
        maximum=1,
    )
    average: str = settings.setting(
        "updates",
        help="What the server averages: 'updates' as in the code, 'models' as in the"
        " paper.",
        choices=("updates", "models"),
    )

    @property
    def uploads(self) -> tuple[str, ...]:  # pyright: ignore
        return ("begun",) if self.average == "models" else ()

    @property
    def server_step(self) -> str:  # pyright: ignore
        return "plain mean of the clients' models" if self.uploads else ""

    def start(self, local: method.Local) -> method.Tensors:
        pairs = zip(local.global_weights, local.memory[method.PREVIOUS])
        return [w + self.strength * (w - p) for w, p in pairs]

    def finish(self, local: method.Local) -> method.Finished:
        pairs = zip(local.start, local.global_weights)
        upload: dict[str, Any] = {}
        if self.uploads:
            weight = local.weight
            begun = [weight * (a - w) for a, w in pairs]
            upload["begun"] = {"weight": weight, "sum": begun}
        return method.Finished({method.PREVIOUS: list(local.weights)}, upload)

    def next_model(self, server: method.Server) -> method.Tensors:
        if not self.uploads:
            return list(server.weights)
        begun = server.uploads["begun"]
        means = [s / begun["weight"] for s in begun["sum"]]
        return drift.plus(server.weights, means)
