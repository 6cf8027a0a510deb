r"""FitNet: holds the features of the blocks near the global model's.

Adriana Romero, Nicolas Ballas, Samira Ebrahimi Kahou, Antoine Chassang, Carlo Gatta,
Yoshua Bengio. "FitNets: Hints for Thin Deep Nets." ICLR 2015.
https://arxiv.org/abs/1412.6550

$$
\ell(w) + \frac{1}{M - 1} \sum_{m=1}^{M-1}
\operatorname{mean}((h_m - \bar h_m)^2)
$$

As a baseline of the FedMLB paper: the term is the mean squared difference between the
local and the global model's features, averaged over the blocks before the classifier;
both models have the same shape, so no layer has to translate between them. That paper
prints no strength; ours is 1.
"""

from __future__ import annotations

import dataclasses

from tff_reg import settings
from tff_reg.lazy import tf
from tff_reg.methods import cards, method, papers


@dataclasses.dataclass(frozen=True)
class FitNet(method.Method):
    """The difference of features."""

    name = "fitnet"
    title = "L2 distance between local and global features"
    paper = "Romero et al., ICLR 2015"
    card = cards.Card(
        cards.FEATURES,
        "Penalises the squared distance between local and global features, block by "
        "block.",
        "A baseline of FedMLB.",
        cards.BY_HAND,
    )
    paper_settings = papers.FEDMLB

    strength: float = settings.setting(
        1.0,
        help="Factor of the mean squared difference between features. 0 is FedAvg.",
        minimum=0,
    )

    def term(self, step: method.Step) -> method.Term:
        received = step.outputs_of(method.GLOBAL).block_outputs[:-1]
        differences = [
            tf.reduce_mean(tf.math.squared_difference(feature, target))
            for feature, target in zip(step.outputs.block_outputs, received)
        ]
        value = tf.add_n(differences) / len(differences)
        return method.Term(raw=value, weighted=self.strength * value)
