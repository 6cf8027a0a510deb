"""FedSpeed: FedDyn's correction with a gradient from higher up.

Yan Sun, Li Shen, Tiansheng Huang, Liang Ding, Dacheng Tao. "FedSpeed: Larger Local
Interval, Less Communication Round, and Higher Generalization Accuracy." ICLR 2023.
https://arxiv.org/abs/2302.10429

The gradient of the loss is taken at w + rho g / (||g|| + 1e-7), with g the gradient at
w; alpha_i (h_i - cloud) is added, the sum is clipped, and alpha_i w is added. Memories
and server are FedDyn's.

In the MAN authors' code g has the client's previous clipped gradient added to it, since
it is not cleared between the two passes (0 at a client's first step of a round). That
is the default here; `ascent='clean'` leaves it out.
"""

from __future__ import annotations

import dataclasses

from tff_reg.corrections import feddyn
from tff_reg.gradient_rules import gradient_rule
from tff_reg.lazy import tf
from tff_reg.regularizers import regularizer

ASCENTS = ("code", "clean")
_NORM_EPSILON = 1e-7


@dataclasses.dataclass(frozen=True)
class FedSpeed(feddyn.FedDyn):
    """FedSpeed.

    Attributes:
      strength: alpha, as in FedDyn.
      radius: rho. 0 is FedDyn.
      ascent: 'code' adds the previous step's gradient to the direction of the ascent,
        'clean' does not.
    """

    name = "fedspeed"
    has_own_gradient_rule = True

    strength: float = 0.1
    radius: float = 0.05
    ascent: str = "code"

    def __post_init__(self):
        super().__post_init__()
        regularizer.check_nonnegative(self.name, radius=self.radius)
        regularizer.check_choice(self.name, ASCENTS, ascent=self.ascent)

    @property
    def gradient_rule(self) -> gradient_rule.GradientRule:
        return _Ascent(self.radius, self.ascent == "code")


@dataclasses.dataclass(frozen=True)
class _Ascent(gradient_rule.GradientRule):
    name = "fedspeed"
    runs_twice = True

    radius: float
    adds_previous: bool

    def make_slots(self, variables) -> list:
        if not self.adds_previous:
            return []
        return [tf.Variable(tf.zeros_like(v), trainable=False) for v in variables]

    def __call__(self, compute_gradient, variables, slots) -> list:
        direction = compute_gradient()
        if not self.radius:
            return direction
        if self.adds_previous:
            direction = [g + previous for g, previous in zip(direction, slots)]
        norm = gradient_rule.global_norm(direction) + _NORM_EPSILON
        ascent = [self.radius / norm * d for d in direction]
        return gradient_rule.gradient_at(compute_gradient, variables, ascent)

    def after_clipping(self, gradient, slots) -> None:
        for slot, value in zip(slots, gradient):
            slot.assign(value)
