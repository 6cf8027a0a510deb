"""The picture of the clients' drift by round."""

from __future__ import annotations

from typing import Any

from tff_reg import curves
from tff_reg.experiment.rounds import metrics

_LABELS = {
    "norm": "Mean norm of the clients' updates",
    "cosine": "Mean cosine of an update to their mean",
    "divergence": "Distance of the updates to their mean, over its norm",
}


def write(path: Any, table: metrics.MetricsTable) -> None:
    """Draws what a table has of the drift, if anything, with a line per block."""
    columns = [name.split("/") for name in table.row(0)]
    groups = dict.fromkeys(c[1] for c in columns if c[0] == metrics.DRIFT)
    if not groups:
        return
    figure = curves.new_figure(width=22.0)
    for number, (name, label) in enumerate(_LABELS.items(), start=1):
        axes = figure.add_subplot(1, 3, number)
        for index, group in enumerate(groups):
            values = table.column(f"{metrics.DRIFT}/{group}/{name}")
            color = curves.color_of(index)
            rounds = table.column(metrics.ROUND)
            axes.plot(rounds, values, ".-", color=color, label=group)
        axes.legend(
            fontsize=9, frameon=False, loc="lower left", bbox_to_anchor=(0, 1), ncols=6
        )
        curves.style(axes, curves.ROUNDS, label)
    figure.tight_layout()
    curves.save(figure.axes[0], path)
