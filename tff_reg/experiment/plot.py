"""Axes, style and files of pictures of accuracies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tff_reg.experiment import files
from tff_reg.lazy import mpl_agg, mpl_figure, mpl_ticker

_INK, _GRID = "#222222", "#d9d9d9"
ROUNDS = "Communication round"


def new_axes() -> Any:
    """Axes on a figure of 1440 x 900 pixels."""
    return new_figure().add_subplot()


def new_figure(width: float = 9.6, height: float = 6.0) -> mpl_figure.Figure:
    """A figure without axes, of so many inches and 150 pixels an inch.

    By the object-oriented interface: no pyplot, so no window system, no global state.
    """
    figure = mpl_figure.Figure(figsize=(width, height), dpi=150, facecolor="white")
    mpl_agg.FigureCanvasAgg(figure)
    return figure


def style(
    axes: Any,
    *,
    rounds: Sequence[float],
    values: Sequence[float],
    title: str,
    subtitle: str,
    across: str = ROUNDS,
) -> None:
    """Gives axes from `new_axes` their limits, labels, grid and titles.

    Shown are the `values`, in percent, of the `rounds` or what else is `across`.
    """
    first, final = min(rounds), max(rounds)
    margin = max((final - first) * 0.02, 0.5 if across == ROUNDS else 0.02 * final)
    axes.set_xlim(first - margin, final + margin)
    bottom = min(values, default=0.0)
    # Start at 0 unless that would flatten the curve into the top of the picture.
    axes.set_ylim(0 if bottom < 50 else max(0.0, bottom - 5), 103)
    axes.set_xlabel(across, fontsize=13, color=_INK)
    axes.set_ylabel("Accuracy (%)", fontsize=13, color=_INK)
    axes.yaxis.set_major_formatter(mpl_ticker.PercentFormatter(decimals=0, symbol=""))
    axes.xaxis.set_major_locator(
        mpl_ticker.MaxNLocator(integer=across == ROUNDS, steps=[1, 2, 5, 10])
    )
    axes.tick_params(labelsize=12, colors=_INK)
    axes.grid(True, color=_GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    axes.set_title(title, fontsize=17, loc="left", pad=30, color=_INK)
    axes.text(
        0, 1.025, subtitle, transform=axes.transAxes, fontsize=11.5, color="#555555"
    )


def save(axes: Any, path: files.PathLike) -> None:
    """Writes the figure of the axes as a PNG whose bytes depend on it alone."""
    with files.atomic_path(path) as temporary:
        axes.figure.savefig(temporary, format="png", metadata={"Software": None})
