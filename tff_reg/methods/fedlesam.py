r"""FedLESAM: sharpness-aware gradients perturbed along the last global update.

Ziqing Fan, Shengchao Hu, Jiangchao Yao, Gang Niu, Ya Zhang, Masashi Sugiyama, Yanfeng
Wang. "Locally Estimated Global Perturbations are Better than Local Perturbations for
Federated Sharpness-aware Minimization." ICML 2024. https://arxiv.org/abs/2405.18890

$$
\nabla \ell\left(w + \rho
\frac{w_\mathrm{old} - \bar w}{\| w_\mathrm{old} - \bar w \|}\right)
$$

All gradients of a client's round are taken at w + e, in one pass, with e = rho
(w_old - wg) / (||w_old - wg|| + 1e-7). w_old, a client memory, is the model that the
client received in its previous round. A client's first round has no perturbation.

The authors' code has no client memory: it uses the previous global update d in place of
wg - w_old, and the sum of the norms of d's tensors as the norm. `direction='server'`
does the same, with d the clients' mean delta, weighted and scaled as in the average.
The authors' d is taken after the server optimiser: 0.8 of ours for a server rate of
0.8, another vector for an adaptive server. As published, the code flattens d and adds
its k-th number to every entry of the k-th weight (`direction='published'`).

The authors' combinations are `feddyn+fedlesam` and `scaffold+fedlesam`, the latter with
control variates times `lamb`, 0.1 by default.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from tff_reg import settings
from tff_reg.lazy import tf
from tff_reg.methods import cards, fedsam, memories, method, papers

_NORM_EPSILON = 1e-7


@dataclasses.dataclass(frozen=True)
class FedLESAM(method.Method):
    """Locally estimated global perturbations."""

    name = "fedlesam"
    title = (
        "Sharpness-aware gradients with a perturbation along the previous global update"
    )
    paper = "Fan et al., ICML 2024"
    card = cards.Card(
        cards.GRADIENTS,
        "FedSAM whose perturbation is the direction of the last global update, so that "
        "a step needs one gradient.",
        "FedSAM's use at FedAvg's cost.",
    )
    paper_settings = papers.MAN
    required_settings = {"client_weighting": "uniform"}

    radius: float = settings.setting(
        0.1,
        symbol="rho",
        help="rho, the radius of the perturbation. 0 is FedAvg.",
        minimum=0,
    )
    direction: str = settings.setting(
        "paper",
        help=(
            "Direction of the perturbation: 'paper' points to the model that the "
            "client received before; 'server' opposite to the server's last update; "
            "'published' is the flattened form of it in the authors' code."
        ),
        choices=("paper", "server", "published"),
    )

    @property
    def _is_local(self) -> bool:
        return self.direction == "paper"

    @property
    def client_memory(self) -> method.Declarations:  # pyright: ignore
        if not self._is_local:
            return {}
        return {"received": memories.zeros, "visits": memories.count}

    @property
    def server_memory(self) -> method.Declarations:  # pyright: ignore
        return {} if self._is_local else {"update": memories.sent(memories.zeros)}

    def begin(self, local: method.Local) -> tuple[Any, ...]:
        if not self.radius:
            return ()
        if self._is_local:
            old = local.memory["received"]
            back = [o - c for o, c in zip(old, local.global_weights)]
            factor = self.radius / (fedsam.global_norm(back) + _NORM_EPSILON)
            is_first = local.memory["visits"] == 0
            factor = tf.where(is_first, tf.zeros_like(factor), factor)
            return tuple(factor * b for b in back)
        update = local.server_memory["update"]
        if self.direction == "published":
            update = first_numbers(update)
        norm = tf.add_n([tf.norm(u) for u in update]) + _NORM_EPSILON
        factor = -self.radius / norm
        return tuple(
            factor * u * tf.ones_like(c) for u, c in zip(update, local.global_weights)
        )

    def gradient(
        self, local: method.Local, gradient_at: method.GradientAt
    ) -> method.Tensors:
        return gradient_at(local.state if self.radius else None)

    def finish(self, local: method.Local) -> method.Finished:
        if not self._is_local:
            return method.Finished()
        received, visits = list(local.global_weights), local.memory["visits"] + 1
        return method.Finished({"received": received, "visits": visits})

    def update_memory(self, server: method.Server) -> method.Memory:
        return {} if self._is_local else {"update": server.mean_delta}


def first_numbers(tensors: Sequence[Any]) -> method.Tensors:
    """Returns the first len(tensors) numbers, flattened in PyTorch's order."""
    flat: list[Any] = []
    for tensor in tensors:
        rank = len(tensor.shape)
        # PyTorch's axes of a kernel: outputs, inputs, positions.
        axes = [*reversed(range(max(rank - 2, 0), rank)), *range(rank - 2)]
        flat.append(tf.reshape(tf.transpose(tensor, axes), [-1]))
    return tf.unstack(tf.concat(flat, 0)[: len(tensors)], num=len(tensors))
