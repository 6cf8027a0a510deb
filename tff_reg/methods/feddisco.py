r"""FedDisco: clients weigh by their sizes and by the skew of their classes.

Rui Ye, Mingkai Xu, Jianyu Wang, Chenxin Xu, Siheng Chen, Yanfeng Wang. "FedDisco:
Federated Learning with Discrepancy-Aware Collaboration." ICML 2023.
https://arxiv.org/abs/2305.19229

$$
p_i \sim \max\left(0, \frac{n_i}{\sum_j n_j} - a \, d_i + b\right)
$$

d_i is how far the client's label shares are from the uniform distribution: their
Kullback-Leibler divergence from it, divided by the cohort's sum (`difference` 'kl'), or
their cosine, l1 or l2 distance. Where all weights are 0, clients weigh alike, which
`weights/all_zero` counts; the authors' code fails there. The server sums n_i and d_i
before the updates are averaged.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Optional

from tff_reg import settings
from tff_reg.lazy import tf
from tff_reg.methods import cards, method, papers


@dataclasses.dataclass(frozen=True)
class FedDisco(method.Method):
    """Discrepancy-aware weights."""

    name = "feddisco"
    title = "Clients weigh by their sizes and by the skew of their classes"
    paper = "Ye et al., ICML 2023"
    card = cards.Card(
        cards.SERVER,
        "Gives clients whose classes are skewed less weight in the mean.",
        "Clients of which some have nearly balanced classes.",
    )
    paper_settings = papers.MAN

    strength: float = settings.setting(
        0.5, symbol="a", help="a, the weight of the skew.", minimum=0
    )
    offset: float = settings.setting(
        0.1,
        symbol="b",
        help="b, added to all weights. 0 is FedAvg if a is 0.",
        minimum=0,
    )
    difference: str = settings.setting(
        "kl",
        help="How skew is measured: 'kl', relative to the cohort, or a distance.",
        choices=("kl", "cosine", "l1", "l2"),
    )

    def finish(self, local: method.Local) -> method.Finished:
        counts = tf.cast(local.class_counts, local.start[0].dtype)
        share = {
            "examples": tf.reduce_sum(counts),
            "skew": skew(counts, self.difference),
        }
        return method.Finished(share=share)

    def weigh(self, own: method.Memory, total: method.Memory) -> Any:
        size = tf.math.divide_no_nan(own["examples"], total["examples"])
        of_skew = own["skew"]
        if self.difference == "kl":
            of_skew = tf.math.divide_no_nan(of_skew, total["skew"])
        weight = size - self.strength * of_skew + self.offset
        return tf.maximum(weight, tf.zeros_like(weight))


def skew(counts: Any, difference: str, target: Optional[Any] = None) -> Any:
    """Returns how far label shares are from a target distribution.

    Args:
      counts: float [classes], numbers of examples.
      difference: 'kl', 'cosine', 'l1' or 'l2'.
      target: float [classes], shares; by default all classes alike.

    Returns:
      A scalar.
    """
    shares = tf.math.divide_no_nan(counts, tf.reduce_sum(counts))
    if target is None:
        target = tf.ones_like(shares) / tf.cast(tf.size(shares), shares.dtype)
    if difference == "kl":
        ratios = tf.math.divide_no_nan(shares, target)
        return tf.reduce_sum(tf.math.xlogy(shares, ratios))
    if difference == "cosine":
        lengths = tf.norm(shares) * tf.norm(target)
        return 1 - tf.math.divide_no_nan(tf.reduce_sum(shares * target), lengths)
    return tf.norm(shares - target, ord=1 if difference == "l1" else 2)
