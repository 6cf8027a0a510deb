"""The picture of a run: accuracy against rounds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from tff_reg.experiment import files
from tff_reg.lazy import mpl_agg, mpl_figure, mpl_ticker

_TEST, _TRAINING, _ALL_CLIENTS = "#0b5fa5", "#e08a1e", "#2e8b57"
_INK, _GRID = "#222222", "#d9d9d9"
ROUNDS = "Communication round"


def write_accuracy_plot(
    path: files.PathLike,
    *,
    rounds: Sequence[int],
    training_accuracy: Sequence[float],
    evaluation_accuracy: Sequence[float],
    all_clients_accuracy: Sequence[float] = (),
    title: str,
    subtitle: str = "",
    tested: str = "test",
) -> None:
    """Draws training and test accuracy and writes a PNG of 1440 x 900 pixels.

    Args:
      path: The file.
      rounds: Round numbers.
      training_accuracy: A share (0 to 1) a round, mean over the round's clients.
      evaluation_accuracy: The same on the test set; NaN where it was not measured.
      all_clients_accuracy: The same of the mean of all clients' last models; NaN or
        nothing where there is none.
      title: What was run.
      subtitle: How.
      tested: What the examples are called that `evaluation_accuracy` is on.
    """
    measured = _points(rounds, evaluation_accuracy)
    trained = _points(rounds, training_accuracy)
    of_all_clients = _points(rounds, all_clients_accuracy)
    axes = new_axes()
    markers = "o" if len(measured) <= 40 else None
    if trained:
        axes.plot(
            *zip(*trained),
            color=_TRAINING,
            linewidth=1.6,
            alpha=0.9,
            label="training, mean over the round's clients",
        )
    if of_all_clients:
        axes.plot(
            *zip(*of_all_clients),
            color=_ALL_CLIENTS,
            linewidth=1.8,
            linestyle="--",
            marker=markers,
            markersize=4,
            label=f"{tested} set, mean of all clients' last models",
            zorder=2.5,
        )
    if measured:
        axes.plot(
            *zip(*measured),
            color=_TEST,
            linewidth=2.4,
            marker=markers,
            markersize=5,
            label=f"{tested} set, global model",
            zorder=3,
        )
        last_round, last = measured[-1]
        axes.plot([last_round], [last], "o", color=_TEST, markersize=9, zorder=4)
        axes.annotate(
            f"{last:.1f} %",
            (last_round, last),
            xytext=(10, 0),
            textcoords="offset points",
            va="center",
            fontsize=15,
            fontweight="bold",
            color=_TEST,
            annotation_clip=False,
        )
        best_round, best = max(measured, key=lambda point: point[1])
        if best >= last + 0.5:
            axes.annotate(
                f"best {best:.1f} %",
                (best_round, best),
                xytext=(0, -20),
                textcoords="offset points",
                ha="center",
                fontsize=11,
                color=_TEST,
            )
    style(
        axes,
        rounds=rounds,
        values=[value for _, value in measured + trained + of_all_clients],
        title=title,
        subtitle=subtitle,
    )
    if measured or trained:
        # Where curves that rise leave room, unless they have not risen yet.
        drawn = measured + trained + of_all_clients
        last_half = [value for number, value in drawn if 2 * number >= rounds[-1]]
        place = "upper left" if min(last_half, default=100) < 25 else "lower right"
        axes.legend(fontsize=12, frameon=False, loc=place)
    axes.figure.subplots_adjust(left=0.085, right=0.905, top=0.865, bottom=0.115)
    save(axes, path)


def _points(rounds: Sequence[int], shares: Sequence[float]) -> list[tuple[int, float]]:
    """What was measured, in percent, by round."""
    return [
        (round_num, 100 * share)
        for round_num, share in zip(rounds, shares)
        if not math.isnan(share)
    ]


def new_axes() -> Any:
    """Axes on a figure of 1440 x 900 pixels."""
    return new_figure().add_subplot()


def new_figure(width: float = 9.6, height: float = 6.0) -> mpl_figure.Figure:
    """A figure of 150 pixels an inch.

    By the object-oriented interface: no pyplot, so no window system, no global state.

    Args:
      width: In inches.
      height: In inches.

    Returns:
      The figure, without axes.
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
    """Gives axes their limits, labels, grid and titles.

    Args:
      axes: From `new_axes`.
      rounds: The rounds that are shown, or what else is across.
      values: The accuracies that are shown, in percent.
      title: What was run.
      subtitle: How.
      across: What the horizontal axis shows.
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
