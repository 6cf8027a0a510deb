"""Figures of accuracy by round: the curves of a run, or of several methods."""

from __future__ import annotations

import dataclasses
import functools
import io
import pathlib
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from tff_reg import files
from tff_reg.lazy import matplotlib, mpl_agg, mpl_figure, mpl_ticker

_INK, _GRID = "#222222", "#d9d9d9"
ROUNDS = "Communication round"
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
# The note below the axes: characters per line, and the largest number of lines.
_NOTE_WIDTH, _NOTE_LINES = 150, 8


@dataclasses.dataclass(frozen=True)
class Curve:
    """The accuracy curve of one model or method.

    Attributes:
      name: Name in the figure.
      rounds: Round numbers, or other horizontal values, ascending; at least one.
      mean: Accuracy (0 to 1) for each of `rounds`.
      deviation: Half the width of the band (0 to 1) for each; empty for no band.
    """

    name: str
    rounds: Sequence[float]
    mean: Sequence[float]
    deviation: Sequence[float] = ()


def write_curves(
    path: files.PathLike,
    curves: Sequence[Curve],
    *,
    pdf: bool = False,
    **options: Any,
) -> None:
    """Draws curves and writes the figure; `options` are arguments of `draw_curves`.

    The file is a PNG of 1440 x 900 pixels; `pdf` also writes a PDF beside it.
    """
    save(draw_curves(curves, **options).axes[0], path, pdf=pdf)


def draw_curves(
    curves: Sequence[Curve],
    *,
    title: str,
    subtitle: str = "",
    across: str = ROUNDS,
    note: str = "",
) -> mpl_figure.Figure:
    """Draws curves, at least one, with bands.

    The legend at the right has each curve's last value, the highest first.
    """
    axes = new_axes()
    bounds = _draw(axes, curves)
    style(
        axes,
        rounds=[number for curve in curves for number in curve.rounds],
        values=bounds,
        title=title,
        subtitle=subtitle,
        across=across,
    )
    _make_room(axes, bounds)
    lines = textwrap.wrap(
        note,
        _NOTE_WIDTH,
        break_on_hyphens=False,
        max_lines=_NOTE_LINES,
        placeholder=" ...",
    )
    bottom = 0.115 + 0.024 * len(lines)
    axes.figure.subplots_adjust(left=0.085, right=0.75, top=0.865, bottom=bottom)
    axes.figure.text(
        0.012, 0.012, "\n".join(lines), fontsize=8.5, color="#555555", va="bottom"
    )
    handles, labels = axes.get_legend_handles_labels()
    order = sorted(range(len(curves)), key=lambda i: -curves[i].mean[-1])
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


def write_panels(
    path: files.PathLike,
    panels: Mapping[str, Sequence[Curve]],
    *,
    title: str,
    subtitle: str = "",
    across: str = ROUNDS,
    has_points: bool = False,
) -> None:
    """Draws curves in one panel per name, two side by side, and writes a PNG.

    `across` is the label of the horizontal axes; `has_points` marks every value.
    """
    if len(panels) == 1 and not has_points:
        ((name, drawn),) = panels.items()
        subtitle = ", ".join(part for part in (name, subtitle) if part)
        write_curves(path, drawn, title=title, subtitle=subtitle, across=across)
        return
    columns = min(2, len(panels))
    rows = -(-len(panels) // columns)
    figure = new_figure(width=9.6 if columns == 1 else 15.0, height=6.0 * rows)
    for number, (name, drawn) in enumerate(panels.items(), start=1):
        axes = figure.add_subplot(rows, columns, number)
        bounds = _draw(axes, drawn, has_points)
        style(
            axes,
            rounds=[place for curve in drawn for place in curve.rounds],
            values=bounds,
            title=name or title,
            subtitle=subtitle,
            across=across,
        )
        _make_room(axes, bounds)
        axes.legend(fontsize=10, frameon=False, loc="lower right")
    if columns == 1:
        figure.tight_layout()
    else:
        height = 6.0 * rows
        figure.tight_layout(rect=(0, 0, 1, 1 - 0.6 / height))
        figure.suptitle(title, fontsize=20, x=0.01, y=1 - 0.15 / height, ha="left")
    save(figure.axes[0], path)


def _draw(axes: Any, curves: Sequence[Curve], has_points: bool = False) -> list[float]:
    """Draws curves with bands; returns the bounds of the bands, in percent."""
    bounds: list[float] = []
    for index, curve in enumerate(curves):
        mean = [100 * value for value in curve.mean]
        bands = [100 * d for d in curve.deviation] or [0.0] * len(mean)
        lower = [m - d for m, d in zip(mean, bands)]
        upper = [m + d for m, d in zip(mean, bands)]
        bounds += [*lower, *upper]
        color = color_of(index)
        axes.fill_between(
            curve.rounds, lower, upper, color=color, alpha=0.13, linewidth=0
        )
        axes.plot(
            curve.rounds,
            mean,
            color=color,
            linestyle=_DASHES[index // len(_COLORS) % len(_DASHES)],
            linewidth=2.0,
            marker="o" if has_points else None,
            label=f"{curve.name} {mean[-1]:.1f} %",
            zorder=3,
        )
        axes.plot(curve.rounds[-1], mean[-1], "o", color=color, markersize=6, zorder=4)
    return bounds


def _make_room(axes: Any, bounds: Sequence[float]) -> None:
    """Ends the vertical axis a little above the curves."""
    bottom, _ = axes.get_ylim()
    top = max(bounds)
    axes.set_ylim(bottom, min(103.0, top + max(0.04 * (top - bottom), 1.0)))


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


def style(
    axes: Any,
    *,
    rounds: Sequence[float],
    values: Sequence[float],
    title: str,
    subtitle: str,
    across: str = ROUNDS,
) -> None:
    """Sets the limits, labels, grid and titles of axes.

    Limits follow from `rounds` and `values` (percent); `across` is the rounds' label.
    """
    first, final = min(rounds), max(rounds)
    margin = max((final - first) * 0.02, 0.5 if across == ROUNDS else 0.02 * final)
    # A single round stands at the right, near the curves' names.
    after = 0.05 * margin if first == final else margin
    axes.set_xlim(first - margin, final + after)
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


def save(axes: Any, path: files.PathLike, *, pdf: bool = False) -> None:
    """Writes the figure of the axes as a PNG, and with `pdf` also as a PDF.

    Equal figures give equal bytes.
    """
    figure = axes.figure
    files.write_bytes(path, as_png(figure))
    if pdf:
        # TrueType fonts, which journals accept and whose text can be searched.
        with matplotlib.rc_context({"pdf.fonttype": 42}):
            buffer = io.BytesIO()
            figure.savefig(buffer, format="pdf", metadata={"CreationDate": None})
        files.write_bytes(pathlib.Path(path).with_suffix(".pdf"), buffer.getvalue())
