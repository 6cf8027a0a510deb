"""FedMLB: local blocks are judged through the global model's later blocks.

Jinkyu Kim, Geeho Kim, Bohyung Han. "Multi-Level Branched Regularization for Federated
Learning." ICML 2022. https://arxiv.org/abs/2207.06936

With blocks 1 to M, hybrid path m runs the local blocks up to m and the global ones
after it, whose weights are constants (Eqs. 3-4). The term is lambda1 times the paths'
mean cross-entropy (Eq. 5) plus lambda2 times the mean divergence KL(path || local) of
their predictions at a temperature (Eqs. 6-8).

As in the authors' code, nothing is detached: gradients flow through the paths into the
local features in both parts, and the divergence is not multiplied by the squared
temperature. (Their lambda1, lambda2, lambda3 are 1 and this paper's lambda1, lambda2.)

Table 4's variant, global-to-local, turns the paths round: the global blocks up to m,
then the local ones.
"""

from __future__ import annotations

import dataclasses

from tff_reg.lazy import tf
from tff_reg.regularizers import distillation
from tff_reg.regularizers import regularizer

DIRECTIONS = ("local_to_global", "global_to_local")


@dataclasses.dataclass(frozen=True)
class FedMLB(regularizer.Regularizer):
    """The two losses of the hybrid paths.

    Attributes:
      strength: Factor of the whole term; 1 in the paper. 0 is FedAvg.
      cross_entropy: lambda1 of Eq. 8, the paths' cross-entropy.
      distillation: lambda2 of Eq. 8, the paths' divergence.
      temperature: tau, above 0.
      paths: Which paths take part, as numbers from 1 (only the first block is local) to
        M - 1 joined by commas; empty for all. The sums are divided by M - 1 all the
        same, as in the authors' code.
      direction: 'local_to_global', or 'global_to_local' (Table 4).
    """

    name = "fedmlb"
    measurement_names = ("cross_entropy", "divergence")
    reference_models = (regularizer.GLOBAL,)

    strength: float = 1.0
    cross_entropy: float = 1.0
    distillation: float = 1.0
    temperature: float = 1.0
    paths: str = ""
    direction: str = "local_to_global"

    def __post_init__(self):
        regularizer.check_nonnegative(
            self.name,
            strength=self.strength,
            cross_entropy=self.cross_entropy,
            distillation=self.distillation,
        )
        distillation.check_temperature(self.name, self.temperature)
        regularizer.check_choice(self.name, DIRECTIONS, direction=self.direction)
        self._chosen_paths(None)

    def _chosen_paths(self, num_paths):
        if not self.paths:
            return list(range(1, (num_paths or 0) + 1))
        try:
            chosen = [int(path) for path in self.paths.split(",")]
        except ValueError:
            chosen = [0]
        if min(chosen) < 1 or len(set(chosen)) != len(chosen):
            raise ValueError(
                "fedmlb: paths must be different numbers from 1 joined by commas, but "
                f"is {self.paths!r}."
            )
        if num_paths is not None and max(chosen) > num_paths:
            raise ValueError(
                f"fedmlb: paths is {self.paths!r}, but the model's {num_paths + 1} "
                f"blocks make only {num_paths} paths."
            )
        return chosen

    def check_network(self, network) -> None:
        self._chosen_paths(len(network.blocks) - 1)

    def __call__(self, step: regularizer.Step) -> regularizer.Term:
        num_paths = len(step.network.blocks) - 1
        if self.direction == "local_to_global":
            features, rest = step.outputs.block_outputs, regularizer.GLOBAL
        else:
            features = step.outputs_of(regularizer.GLOBAL).block_outputs
            rest = regularizer.LOCAL
        cross_entropies, divergences = [], []
        paths = sorted(self._chosen_paths(num_paths))
        entering = [(path, features[path - 1]) for path in paths]
        for logits in step.classify_from(rest, entering):
            cross_entropies.append(step.compute_loss(logits))
            divergences.append(
                distillation.divergence(logits, step.outputs.logits, self.temperature)
            )
        cross_entropy = tf.add_n(cross_entropies) / num_paths
        divergence = tf.add_n(divergences) / num_paths
        value = self.cross_entropy * cross_entropy + self.distillation * divergence
        return regularizer.Term(
            raw=value,
            weighted=self.strength * value,
            measurements={"cross_entropy": cross_entropy, "divergence": divergence},
        )
