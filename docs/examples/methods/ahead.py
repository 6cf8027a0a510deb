"""Ahead: a step from w takes the gradient a little further down, at w - rho g."""

import dataclasses

from tff_reg import methods, settings


@dataclasses.dataclass(frozen=True)
class Ahead(methods.Method):
    """The extragradient step."""

    name = "ahead"
    radius: float = settings.setting(0.01, symbol="rho", help="rho.", minimum=0)

    def gradient(self, local, gradient_at):
        """The gradient at w - rho g; two passes of the batch."""
        gradient = gradient_at()
        if not self.radius:
            return gradient
        return gradient_at([-self.radius * g for g in gradient])
