r"""FedMLB: losses of hybrid paths of local and global blocks.

Jinkyu Kim, Geeho Kim, Bohyung Han. "Multi-Level Branched Regularization for Federated
Learning." ICML 2022. https://arxiv.org/abs/2207.06936

$$
\ell(w) + \frac{\lambda_1}{M - 1} \sum_{m=1}^{M-1} \mathrm{CE}(q_m, y) +
\frac{\lambda_2}{M - 1} \sum_{m=1}^{M-1} \mathrm{KL}(q_m \,\|\, q)
$$

With blocks 1 to M, hybrid path m runs the local blocks 1 to m, then the frozen global
blocks m + 1 to M (Eqs. 3-4). The term is lambda1 times the paths' mean cross-entropy
(Eq. 5) plus lambda2 times the mean divergence KL(path || local) of their predictions at
a temperature (Eqs. 6-8).

As in the authors' code, nothing is detached: gradients flow through the paths into the
local features in both parts, and the divergence is not multiplied by the squared
temperature. (Their lambda1, lambda2, lambda3 are 1 and this paper's lambda1, lambda2.)

If only some paths are chosen, the losses are still divided by the number of all paths;
the group's later code divides by the number chosen (`divisor='chosen'`). The average is
weighted by examples, as in the authors' code; the paper's is plain, over balanced
splits. Unlike ours, their code also rotates, crops and flips Tiny-ImageNet test images.

FedLC, FedRS and FedETF also change the logits in the paths' cross-entropy, so that
classes that a client lacks get no gradient through the paths.

Table 4's variant, global-to-local, reverses the paths: the global blocks 1 to m, then
the local blocks.
"""

from __future__ import annotations

import dataclasses

from tff_reg import settings
from tff_reg.lazy import tf
from tff_reg.methods import cards, distillation, method, papers


@dataclasses.dataclass(frozen=True)
class FedMLB(method.Method):
    """The two losses of the hybrid paths."""

    name = "fedmlb"
    title = "Losses of hybrid paths: local blocks followed by the global model's blocks"
    paper = "Kim et al., ICML 2022"
    card = cards.Card(
        cards.DISTILLATION,
        "Sends the features of every local block through the rest of the frozen global "
        "model, and trains the local blocks on the loss of these hybrid paths as well.",
        "Many rounds of a network with several blocks, where a step may cost twice as "
        "much.",
    )
    paper_settings = papers.FEDMLB

    strength: float = settings.setting(
        1.0,
        help="Factor of both losses together; 1 in the paper. 0 is FedAvg.",
        minimum=0,
    )
    cross_entropy: float = settings.setting(
        1.0,
        symbol="lambda1",
        help="lambda1 of Eq. 8, factor of the paths' cross-entropy.",
        minimum=0,
    )
    distillation: float = settings.setting(
        1.0,
        symbol="lambda2",
        help="lambda2 of Eq. 8, factor of the paths' divergence.",
        minimum=0,
    )
    temperature: float = settings.setting(
        1.0,
        symbol="tau",
        help="tau, the temperature of both softmaxes, above 0.",
        above=0,
    )
    paths: tuple[int, ...] = settings.setting(
        (),
        help=(
            "Hybrid paths that take part, from 1 (only the first block is local) to M "
            "- 1; empty for all."
        ),
        minimum=1,
    )
    divisor: str = settings.setting(
        "all",
        help=(
            "Divisor of the losses of chosen paths: 'all' is M - 1, as in the "
            "authors' code; 'chosen' is the number of chosen paths, as in the group's "
            "later code (FedACG, 2024)."
        ),
        choices=("all", "chosen"),
    )
    direction: str = settings.setting(
        "local_to_global",
        help="Order of the blocks: 'local_to_global', or 'global_to_local' (Table 4).",
        choices=("local_to_global", "global_to_local"),
    )

    def __post_init__(self):
        super().__post_init__()

    def check_network(self, network: method.BlockModel) -> None:
        num_paths = len(network.blocks) - 1
        if not num_paths:
            raise ValueError(
                "fedmlb runs one model's blocks on another's features, and this model"
                " shows one block only."
            )
        if max(self.paths, default=0) > num_paths:
            raise settings.SettingError(
                "fedmlb_paths",
                self.paths,
                f"the model's {num_paths + 1} blocks make only {num_paths} paths.",
            )

    def term(self, step: method.Step) -> method.Term:
        num_paths = len(step.network.blocks) - 1
        if self.direction == "local_to_global":
            features, rest = step.outputs.block_outputs, method.GLOBAL
        else:
            features = step.outputs_of(method.GLOBAL).block_outputs
            rest = method.LOCAL
        cross_entropies: method.Tensors = []
        divergences: method.Tensors = []
        paths = sorted(self.paths) or range(1, num_paths + 1)
        entering = [(path, features[path - 1]) for path in paths]
        for logits in step.classify_from(rest, entering):
            cross_entropies.append(step.compute_loss(logits))
            divergences.append(
                distillation.divergence(logits, step.outputs.logits, self.temperature)
            )
        divisor = len(paths) if self.divisor == "chosen" else num_paths
        cross_entropy = tf.add_n(cross_entropies) / divisor
        divergence = tf.add_n(divergences) / divisor
        value = self.cross_entropy * cross_entropy + self.distillation * divergence
        return method.Term(
            raw=value,
            weighted=self.strength * value,
            measurements={"cross_entropy": cross_entropy, "divergence": divergence},
        )
