"""The result of a method's tuning, as tables show it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Optional

from tff_reg.settings import as_text

CAPTION = (
    "Held out: accuracy of the best setting on training examples that were left out for"
    " tuning; in brackets that of the worst setting, diverged ones included, and how"
    " many were tried. The final"
    " runs train on all examples."
)


@dataclasses.dataclass(frozen=True)
class Tuned:
    """The result of a method's tuning.

    Attributes:
      settings: Its best settings by name; empty if the grid has none of its settings.
      mean: Their accuracy (0 to 1) on the held-out examples, mean over seeds; None if
        nothing was tuned.
      deviation: Its sample deviation; None for one seed.
      lowest: The lowest mean of all settings; None if one of them has no finite mean.
      tried: The number of settings that were tried.
      tied: The number of further settings with the same mean.
    """

    settings: Mapping[str, Any]
    mean: Optional[float] = None
    deviation: Optional[float] = None
    lowest: Optional[float] = None
    tried: int = 0
    tied: int = 0

    @property
    def text(self) -> str:
        """The settings as `name=value, ...`."""
        texts = [f"{name}={as_text(value)}" for name, value in self.settings.items()]
        return ", ".join(texts) or "-"

    @property
    def held_out(self) -> str:
        """Held-out accuracy of the best setting and of the worst, in percent."""
        if self.mean is None:
            return "-"
        worst = "not finite" if self.lowest is None else f"{100 * self.lowest:.2f}"
        spread = "" if self.deviation is None else f" ± {100 * self.deviation:.2f}"
        tried = f"{self.tried} setting{'s' * (self.tried != 1)}"
        if self.tied:
            tried += f", {self.tied + 1} of them tied for the best"
        return f"{100 * self.mean:.2f}{spread} ({worst}; {tried})"

    def row(self) -> dict[str, Any]:
        """Returns the result's columns of `table.csv`."""
        return {
            "setting": self.text,
            "held_out_accuracy_mean": self.mean,
            "held_out_accuracy_std": self.deviation,
            "held_out_accuracy_lowest": self.lowest,
            "settings_tried": self.tried,
            "settings_tied": self.tied,
        }
