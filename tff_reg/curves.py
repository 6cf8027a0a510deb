"""Figures of scores by round: the curves of a run, or of several methods."""

from __future__ import annotations

import dataclasses
import functools
import io
from collections.abc import Mapping, Sequence
from typing import Any

from tff_reg import files, scores
from tff_reg.lazy import matplotlib, mpl_agg, mpl_figure, mpl_ticker

INK, _GRID = "#222222", "#d9d9d9"
ROUNDS, ACCURACY = "Communication round", "Accuracy (%)"
_ACCURACY = scores.Score()
# Okabe and Ito's colours, distinguishable with every kind of colour vision, without the
# yellow, which is faint on white. (https://jfly.uni-koeln.de/color/)
_COLORS = (
    "#0072b2",
    "#d55e00",
    "#009e73",
    "#cc79a7",
    "#000000",
    "#e69f00",
    "#56b4e9",
)
# Once all colours are used, they repeat with the next line style.
_DASHES = ("solid", (0, (5, 1.6)), (0, (1.2, 1.4)), (0, (6, 1.6, 1.2, 1.6)))


# The labels of a panel's axes, and series of points (x, y) by name.
Points = tuple[str, str, Mapping[str, tuple[Sequence[float], Sequence[float]]]]


@dataclasses.dataclass(frozen=True)
class Curve:
    """The curve of one model's or method's score.

    Attributes:
      name: Name in the figure.
      rounds: Round numbers, or other horizontal values, ascending; at least one.
      mean: The score for each of `rounds`; an accuracy is 0 to 1.
      deviation: Half the width of the band for each; empty for no band.
    """

    name: str
    rounds: Sequence[float]
    mean: Sequence[float]
    deviation: Sequence[float] = ()


def write_curves(path: files.PathLike, curves: Sequence[Curve], **options: Any) -> None:
    """Draws curves and writes a PNG; `options` are arguments of `draw_curves`."""
    files.write_bytes(path, as_png(draw_curves(curves, **options)))


def draw_curves(
    curves: Sequence[Curve],
    *,
    title: str = "",
    across: str = ROUNDS,
    up: str = "",
    score: scores.Score = _ACCURACY,
) -> mpl_figure.Figure:
    """Draws curves, at least one, with bands; `across` and `up` are the axes' labels.

    The legend at the right has each curve's last value, the best `score` first.
    """
    axes = new_axes()
    _draw(axes, curves, title, across, up, score)
    axes.figure.subplots_adjust(
        left=0.085, right=0.75, top=0.91 if title else 0.97, bottom=0.1
    )
    handles, labels = axes.get_legend_handles_labels()
    order = sorted(range(len(curves)), key=lambda i: -score.rank(curves[i].mean[-1]))
    legend = axes.legend(
        [handles[index] for index in order],
        [labels[index] for index in order],
        loc="center left",
        bbox_to_anchor=(1.0, 0.5),
        fontsize=min(11.0, 330 / len(curves)),
        frameon=False,
        labelcolor="linecolor",
    )
    width = legend.get_window_extent().width / axes.figure.bbox.width
    axes.figure.subplots_adjust(right=max(0.4, 0.99 - width))
    return axes.figure


def draw_panels(
    panels: Mapping[str, Sequence[Curve]],
    *,
    across: str = ROUNDS,
    up: str = "",
    score: scores.Score = _ACCURACY,
    has_points: bool = False,
    inches: Sequence[float] = (),
) -> mpl_figure.Figure:
    """Draws curves in one panel per name, two side by side.

    `across` and `up` are the axes' labels; `has_points` marks every value of the
    `score`; `inches` are the width and height of the figure.
    """
    columns = min(2, len(panels))
    rows = -(-len(panels) // columns)
    size = (9.6 if columns == 1 else 15.0, 6.0 * rows)
    figure = new_figure(*(inches or size))
    for number, (name, drawn) in enumerate(panels.items(), start=1):
        axes = figure.add_subplot(rows, columns, number)
        _draw(axes, drawn, name, across, up, score, has_points)
        most = 40 * figure.get_figheight() / rows / len(drawn)
        axes.legend(fontsize=min(10, most), frameon=False, loc="lower right")
    figure.tight_layout()
    return figure


def _draw(
    axes: Any,
    curves: Sequence[Curve],
    title: str,
    across: str,
    up: str,
    score: scores.Score,
    has_points: bool = False,
) -> None:
    bounds: list[float] = []
    for index, curve in enumerate(curves):
        mean = [score.scale * value for value in curve.mean]
        bands = [score.scale * d for d in curve.deviation] or [0.0] * len(mean)
        lower = [m - d for m, d in zip(mean, bands)]
        upper = [m + d for m, d in zip(mean, bands)]
        bounds += [*lower, *upper]
        color = color_of(index)
        axes.fill_between(
            curve.rounds, lower, upper, color=color, alpha=0.12, linewidth=0
        )
        if any(bands):  # Edges keep bands that overlap apart.
            for edge in (lower, upper):
                axes.plot(curve.rounds, edge, color=color, linewidth=0.6, alpha=0.6)
        axes.plot(
            curve.rounds,
            mean,
            color=color,
            linestyle=_DASHES[index // len(_COLORS) % len(_DASHES)],
            linewidth=2.0,
            marker="o" if has_points else None,
            label=f"{curve.name} {score.text(curve.mean[-1], '.1f')}",
            zorder=3,
        )
        axes.plot(curve.rounds[-1], mean[-1], "o", color=color, markersize=6, zorder=4)
    first, final = (f(place for c in curves for place in c.rounds) for f in (min, max))
    margin = 0.02 * (final - first) or 0.5
    axes.set_xlim(first - margin, final + margin)
    if score.is_share:
        margin = max(0.04 * (max(bounds) - min(bounds)), 2.0)
        axes.set_ylim(max(0.0, min(bounds) - margin), min(100.5, max(bounds) + margin))
    tick(axes.xaxis, is_whole=across == ROUNDS, min_n_ticks=1)
    style(axes, across, up or f"{score.name.capitalize()}{score.unit}", title)


def write_points(
    path: files.PathLike, panels: Sequence[Points], look: str = "o"
) -> None:
    """Draws points, one panel beside the other, and writes a PNG.

    `look` is matplotlib's: `o` for points, `.-` for lines.
    """
    figure = new_figure(width=7.5 * len(panels))
    for number, (across, up, series) in enumerate(panels, start=1):
        axes = figure.add_subplot(1, len(panels), number)
        for index, (name, (x, y)) in enumerate(series.items()):
            axes.plot(x, y, look, color=color_of(index), alpha=0.7, label=name)
        style(axes, across, up)
        axes.legend(
            fontsize=9, frameon=False, loc="lower left", bbox_to_anchor=(0, 1), ncols=6
        )
    figure.tight_layout()
    files.write_bytes(path, as_png(figure))


def color_of(index: int) -> str:
    """Returns the colour of a curve by its index."""
    return _COLORS[index % len(_COLORS)]


def new_axes() -> Any:
    """Returns axes on a new figure of 1440 x 900 pixels."""
    return new_figure().add_subplot()


def new_figure(width: float = 9.6, height: float = 6.0) -> mpl_figure.Figure:
    """Returns a figure without axes; its size is in inches, at 150 pixels per inch.

    Uses the object-oriented interface, not pyplot: no window system, no global state.
    """
    figure = mpl_figure.Figure(figsize=(width, height), dpi=150, facecolor="white")
    mpl_agg.FigureCanvasAgg(figure)
    # Notebooks display pyplot's figures; of any other object they call this function.
    vars(figure)["_repr_png_"] = functools.partial(as_png, figure)
    return figure


def as_png(figure: mpl_figure.Figure) -> bytes:
    """Returns a figure as a PNG; equal figures give equal bytes."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", metadata={"Software": None})
    return buffer.getvalue()


def tick(axis: Any, most: int = 10, is_whole: bool = True, **options: Any) -> None:
    """Sets the ticks of an axis: at most so many, at whole numbers."""
    steps = [1, 2, 5, 10]
    locator = mpl_ticker.MaxNLocator(most, integer=is_whole, steps=steps, **options)
    axis.set_major_locator(locator)


def style(axes: Any, across: str, up: str, title: str = "", grid: Any = "both") -> None:
    """Sets the labels, grid (of `x`, `y` or both) and title of axes."""
    axes.set_xlabel(across, fontsize=13, color=INK)
    axes.set_ylabel(up, fontsize=13, color=INK)
    axes.tick_params(labelsize=12, colors=INK)
    axes.grid(True, axis=grid, color=_GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    axes.set_title(title, fontsize=17, loc="left", pad=10, color=INK)


def pictures(figure: mpl_figure.Figure, name: str) -> dict[str, bytes]:
    """Returns the bytes of `name`.png and .pdf; equal figures give equal bytes."""
    # TrueType fonts, which journals accept and whose text can be searched.
    with matplotlib.rc_context({"pdf.fonttype": 42}):
        buffer = io.BytesIO()
        figure.savefig(buffer, format="pdf", metadata={"CreationDate": None})
    return {f"{name}.png": as_png(figure), f"{name}.pdf": buffer.getvalue()}
