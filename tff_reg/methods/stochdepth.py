r"""Stochastic depth: residual branches left out at random.

Gao Huang, Yu Sun, Zhuang Liu, Daniel Sedra, Kilian Q. Weinberger. "Deep Networks with
Stochastic Depth." ECCV 2016. https://arxiv.org/abs/1603.09382

$$
h_l = h_{l-1} + b_l f_l(h_{l-1}), \qquad b_l \sim \mathrm{Bernoulli}(p_l), \qquad
p_l = 1 - \frac{l}{L} (1 - p_L)
$$

The probability of keeping branch l of the L residual branches falls linearly with l,
and each branch is drawn once per batch. A skipped branch is not run, so its BatchNorm
statistics do not change; beside a method that reads activations, such as MAN or FedRCL,
it is run and multiplied by 0. In evaluation every branch is multiplied by its
probability.

The paper's probabilities are 1 - l/L (1 - p_L), l = 1 to L (Eq. 4). The FedAlign
authors' code begins at exactly 1: 1 - (l - 1)/(L - 1) (1 - p_L), which is the default
here. The code's p_L is 0.5; here it is the paper's 0.9. Weight decay also applies to
the weights of skipped branches, as in the PyTorch version of their code.
"""

from __future__ import annotations

import dataclasses

from tff_reg import settings
from tff_reg.data import keys
from tff_reg.lazy import tf
from tff_reg.methods import cards, method, papers
from tff_reg.models import forward as forward_lib


@dataclasses.dataclass(frozen=True)
class StochDepth(method.Method):
    """Residual branches that are left out."""

    name = "stochdepth"
    title = "Skips residual branches at random in local training"
    paper = "Huang et al., ECCV 2016"
    card = cards.Card(
        cards.LOSS,
        "Skips residual branches at random in local training; deep branches more "
        "often.",
        "Deep residual networks.",
    )
    paper_settings = papers.FEDALIGN

    survival_probability: float = settings.setting(
        0.9,
        symbol="p_L",
        help=(
            "p_L, the probability that the last branch is kept, in (0, 1]. 1 is FedAvg."
        ),
        above=0,
        maximum=1,
    )
    schedule: str = settings.setting(
        "code",
        help=(
            "Probabilities of the other branches: 'code' always keeps the first "
            "branch, as the FedAlign authors' code does; 'paper' is Eq. 4."
        ),
        choices=("code", "paper"),
    )

    def probabilities(self, num_branches: int) -> tuple[float, ...]:
        """Returns the probability of keeping each branch, in order."""
        drop = 1.0 - self.survival_probability
        numbers = range(num_branches)
        if self.schedule == "paper":
            return tuple(1.0 - (i + 1) / num_branches * drop for i in numbers)
        return tuple(1.0 - i * drop / max(num_branches - 1, 1) for i in numbers)

    def check_network(self, network: method.BlockModel) -> None:
        if not network.num_branches:
            raise ValueError(
                "stochdepth: this model has no residual branches to leave out; take a "
                "residual network of tff_reg.models, such as 'resnet20'."
            )

    def adapt_network(self, network: method.BlockModel) -> None:
        self.check_network(network)
        network.evaluation_branch_scales = self.probabilities(network.num_branches)

    def change_pass(
        self,
        forward: forward_lib.ForwardPass,
        network: method.BlockModel,
        key: tf.Tensor,
    ) -> method.Change:
        if self.survival_probability == 1:
            return method.Change(forward, {"kept_branches": 1.0})
        kept_with = tf.constant(self.probabilities(network.num_branches), tf.float64)
        draws = keys.uniform(kept_with.shape, key)
        # Draws are below 1, so a branch with probability 1 is always kept.
        kept = tf.cast(draws < kept_with, network.dtype)
        changed = dataclasses.replace(forward, branch_scales=kept)
        return method.Change(changed, {"kept_branches": tf.reduce_mean(kept)})
