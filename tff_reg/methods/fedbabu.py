r"""FedBABU: rounds train the body; each client tunes the head at the end.

Jaehoon Oh, Sangmook Kim, Se-Young Yun. "FedBABU: Toward Enhanced Representation for
Federated Image Classification." ICLR 2022. https://arxiv.org/abs/2106.06042

$$
w_{\text{head}} = w^0_{\text{head}} \text{ in all rounds}
$$

The classifier keeps its initial weights while clients train, so that all of them learn
features for the same one; the weight decay of SGD does not move it, either (that of
another optimiser may). Copies that `--finetune_epochs` trains for each client's
accuracy train the head alone, or all weights. `freeze` also leaves the head out of what
is sent.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from tff_reg import settings
from tff_reg.lazy import tf
from tff_reg.methods import cards, contract, method, papers


@dataclasses.dataclass(frozen=True)
class FedBABU(method.Method):
    """Federated averaging with body aggregation and body update."""

    name = "fedbabu"
    if_adaptive = "holds its head, which adamw's decoupled weight decay moves"
    title = "Rounds train the body; each client tunes the classifier at the end"
    paper = "Oh et al., ICLR 2022"
    card = cards.Card(
        cards.CLASSES,
        "Keeps the classifier at its initial weights in all rounds; a client tunes it "
        "on its own data at the end.",
        "Each client's own accuracy, with `--finetune_epochs`.",
        cards.BY_HAND,
    )
    paper_settings = papers.MAN
    exclusive = (method.CLASSIFIER,)

    part: str = settings.setting(
        "body", help="What rounds train.", choices=("body", "head", "all")
    )
    finetuned: str = settings.setting(
        "head", help="What finetuned copies train.", choices=("head", "all")
    )

    @property
    def when_finetuned(self) -> Mapping[str, Any]:  # pyright: ignore
        return {"part": self.finetuned}

    def correct(self, local: method.Local, gradient: method.Tensors) -> method.Tensors:
        return held(local, gradient, self._trained(local))

    def correct_clipped(
        self, local: method.Local, gradient: method.Tensors
    ) -> method.Tensors:
        return held(local, gradient, self._trained(local), is_clipped=True)

    def _trained(self, local: method.Local) -> list[bool]:
        if self.part == "all":
            return [True] * len(local.weights)
        if {*local.in_head} != {True, False}:
            raise contract.NeedError(
                "it needs a network that shows its last layer, and of which this layer"
                " and others train (see freeze and train)."
            )
        return [is_head == (self.part == "head") for is_head in local.in_head]


def held(
    local: method.Local,
    gradient: method.Tensors,
    is_trained: Sequence[Any],
    is_clipped: bool = False,
) -> method.Tensors:
    """Returns a gradient that holds the weights that do not train.

    Args:
      local: The client.
      gradient: One tensor per weight.
      is_trained: For each weight, whether it trains, a bool or a scalar.
      is_clipped: Whether the gradient is clipped. Before, what is held is 0 and does
        not count in the norm; then it undoes weight decay, which comes next, exactly.

    Returns:
      One tensor per weight.
    """
    others = [tf.zeros_like(g) for g in gradient]
    if is_clipped:
        decay = local.hparams.get("weight_decay", 0.0)
        others = [-tf.cast(decay, w.dtype) * w for w in local.weights]
    return [tf.where(t, g, o) for t, g, o in zip(is_trained, gradient, others)]
