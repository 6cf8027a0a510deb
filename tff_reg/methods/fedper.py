r"""FedPer: each client keeps its own last layers.

Manoj Ghuhan Arivazhagan, Vinay Aggarwal, Aaditya Kumar Singh, Sunav Choudhary.
"Federated Learning with Personalization Layers." 2019.
https://arxiv.org/abs/1912.00818

$$
W_B \leftarrow \sum_i \frac{n_i}{n} W_{B,i}, \qquad
(W_{B,i}, W_{P,i}) = \text{SGD}(W_B, W_{P,i})
$$

Clients train all weights together, and the base layers $W_B$ alone are averaged; the
last K_P layers $W_{P,i}$ stay at client i, which begins a round with those of its last
one. A block counts as a layer: here K_P blocks from the network's end, the classifier
among them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from tff_reg import settings
from tff_reg.methods import cards, contract, method, papers


@dataclasses.dataclass(frozen=True)
class FedPer(method.Method):
    """Federated averaging with personalisation layers."""

    name = "fedper"
    title = "Each client keeps its own last layers"
    paper = "Arivazhagan et al., 2019"
    card = cards.Card(
        cards.PERSONAL,
        "The last layers stay at their client; the layers before them are averaged.",
        "Clients with classes, or meanings of classes, of their own.",
        cards.BY_HAND,
    )
    paper_settings = papers.MAN
    exclusive = (method.CLASSIFIER,)

    layers: int = settings.setting(
        1,
        symbol="K_P",
        help="Blocks from the network's end that stay at each client; 1 is the"
        " classifier.",
        minimum=1,
    )

    def personal(self, network: method.BlockModel) -> Sequence[Any]:
        count = len(network.blocks)
        if self.layers >= count:
            why = f"layers={self.layers} leaves nothing of {count} blocks to be shared."
            raise contract.NeedError(why)
        if self.layers == 1:
            return network.head_variables
        last = {
            id(v) for block in network.blocks[-self.layers :] for v in block.variables
        }
        known = [*network.trainable_variables, *network.non_trainable_variables]
        return [v for v in known if id(v) in last]
