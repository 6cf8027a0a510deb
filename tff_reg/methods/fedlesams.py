r"""FedLESAM-S: FedLESAM with a part of SCAFFOLD's control variates.

Ziqing Fan et al., ICML 2024, as `fedlesam`.

$$
\nabla \ell(w + e) + \lambda (s / \tilde w_i - s_i)
$$

The authors' code multiplies SCAFFOLD's correction by lambda; e is FedLESAM's
perturbation. lambda 1 is `scaffold+fedlesam`.
"""

from __future__ import annotations

import dataclasses

from tff_reg import settings
from tff_reg.methods import cards, fedlesam, method, papers, scaffold


@dataclasses.dataclass(frozen=True)
class FedLESAMS(fedlesam.FedLESAM, scaffold.SCAFFOLD):
    """FedLESAM with scaled control variates."""

    name = "fedlesams"
    title = "FedLESAM's perturbation with a part of SCAFFOLD's control variates"
    paper = "Fan et al., ICML 2024"
    card = cards.Card(
        cards.DRIFT,
        "FedLESAM with a tenth of SCAFFOLD's correction.",
        "Skewed classes, and clients that take part repeatedly, at SCAFFOLD's cost.",
        cards.BY_HAND,
    )
    paper_settings = papers.MAN
    required_settings = scaffold.SCAFFOLD.required_settings
    exclusive = (method.DRIFT,)

    radius: float = settings.setting(
        0.1,
        symbol="rho",
        help="rho, the radius of the perturbation. 0 leaves it out.",
        minimum=0,
    )
    strength: float = settings.setting(
        0.1,
        symbol="lambda",
        help="lambda, factor of the control variates. 0 is FedLESAM.",
        minimum=0,
    )

    @property
    def client_memory(self) -> method.Declarations:  # pyright: ignore
        return {**super().client_memory, **scaffold.SCAFFOLD.client_memory}

    @property
    def server_memory(self) -> method.Declarations:  # pyright: ignore
        return {**super().server_memory, **scaffold.SCAFFOLD.server_memory}

    def correct(self, local: method.Local, gradient: method.Tensors) -> method.Tensors:
        whole = scaffold.SCAFFOLD.correct(self, local, gradient)
        pairs = zip(gradient, whole)
        return [g + self.strength * (w - g) for g, w in pairs]

    def finish(self, local: method.Local) -> method.Finished:
        own = scaffold.SCAFFOLD.finish(self, local)
        other = fedlesam.FedLESAM.finish(self, local)
        return method.Finished({**own.memory, **other.memory}, own.upload)

    def update_memory(self, server: method.Server) -> method.Memory:
        return {
            **fedlesam.FedLESAM.update_memory(self, server),
            **scaffold.SCAFFOLD.update_memory(self, server),
        }
