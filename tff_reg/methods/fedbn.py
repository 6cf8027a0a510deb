r"""FedBN: each client keeps its own norms.

Xiaoxiao Li, Meirui Jiang, Xiaofei Zhang, Michael Kamp, Qi Dou. "FedBN: Federated
Learning on Non-IID Features via Local Batch Normalization." ICLR 2021.
https://arxiv.org/abs/2102.07623

$$
w^{\text{norm}}_i \text{ stays at client } i, \qquad
w^{\text{rest}} \leftarrow \sum_i \frac{n_i}{n} w^{\text{rest}}_i
$$

Scale, shift and running statistics of all BatchNorm layers stay at their client, all
other weights are averaged, with equal weights in the paper. Scale and shift of other
norms, such as GroupNorm, stay as well.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from tff_reg.methods import cards, contract, method, papers
from tff_reg.models import roles


@dataclasses.dataclass(frozen=True)
class FedBN(method.Method):
    """Federated averaging of all weights but those of norms."""

    name = "fedbn"
    title = "Each client keeps its own normalisation layers"
    paper = "Li et al., ICLR 2021"
    card = cards.Card(
        cards.PERSONAL,
        "Normalisation layers stay at their client; all other weights are averaged.",
        "Clients whose inputs look different: other cameras, hospitals, styles.",
        cards.BY_HAND,
    )
    paper_settings = papers.MAN

    def personal(self, network: method.BlockModel) -> Sequence[Any]:
        known = [*network.trainable_variables, *network.non_trainable_variables]
        if not (found := [v for v in known if roles.is_of_norm(v)]):
            raise contract.NeedError("it needs a network with norms.")
        return found
