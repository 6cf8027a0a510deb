"""The results of tuning: every setting that was tried, as a table and as a figure.

`grid.csv` has one row per method and setting. `sensitivity.png` and `sensitivity.pdf`
show held-out accuracy over the settings, with one panel per method: a line for one
setting, a heat map for two. With more settings each has its own panel, a line for the
best of the other settings.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tff_reg import curves, tables
from tff_reg.lazy import np
from tff_reg.methods import catalogue
from tff_reg.settings import as_text

MEAN, DEVIATION, BEST = "held_out_accuracy_mean", "held_out_accuracy_std", "is_best"

_INCHES = (5.6, 4.2)  # Size of a panel.
_COLUMNS = 3
_GREY = "#555555"

Row = dict[str, Any]


def contents(rows: Sequence[Row], names: Sequence[str]) -> dict[str, Any]:
    """Returns the files' contents by name; without numbers to draw, no figure."""
    if not rows:
        return {}
    figure = draw(rows, names)
    drawn = curves.pictures(figure, "sensitivity") if figure else {}
    return {"grid.csv": tables.to_csv(rows), **drawn}


def draw(rows: Sequence[Row], names: Sequence[str]) -> Any:
    """Draws the panels, leaving out settings with fewer runs than others.

    The arguments are as for `contents`.
    """
    # A mean over fewer seeds cannot be compared with the others.
    most = max((row["runs"] for row in rows), default=0)
    drawn = [row for row in rows if row[MEAN] is not None and row["runs"] == most]
    panels = _panels(drawn, names)
    if not panels:
        return None
    columns = min(_COLUMNS, len(panels))
    height = -(-len(panels) // columns)
    figure = curves.new_figure(_INCHES[0] * columns, _INCHES[1] * height)
    shares = [100 * row[MEAN] for _, _, own in panels for row in own]
    for number, (title, varied, own) in enumerate(panels, start=1):
        axes = figure.add_subplot(height, columns, number)
        if len(varied) == 2:
            _heat_map(axes, varied, own, (min(shares), max(shares)))
        else:
            _line(axes, varied[0], own)
        axes.set_title(title, fontsize=14, loc="left")
    figure.tight_layout(pad=1.2)
    return figure


def _panels(
    rows: Sequence[Row], names: Sequence[str]
) -> list[tuple[str, list[str], list[Row]]]:
    """Returns the title, varied settings and rows of each panel."""
    panels = []
    for process in dict.fromkeys(row["process"] for row in rows):
        own = [row for row in rows if row["process"] == process]
        name = catalogue.published_name(process)
        varied = [each for each in names if len({row[each] for row in own}) > 1]
        if len(varied) <= 2:
            panels += [(name, varied, own)] if varied else []
            continue
        for setting in varied:
            best = [
                max(
                    (row for row in own if row[setting] == value),
                    key=lambda row: (not row.get("not_finite"), row[MEAN]),
                )
                for value in dict.fromkeys(row[setting] for row in own)
            ]
            panels.append((f"{name}, best of the other settings", [setting], best))
    return panels


def _ticks(name: str, rows: Sequence[Row]) -> list[Any]:
    """Returns the values of a setting, ascending if they are numbers."""
    values = list(dict.fromkeys(row[name] for row in rows))
    return values if any(isinstance(each, str) for each in values) else sorted(values)


def _line(axes: Any, name: str, rows: Sequence[Row]) -> None:
    ticks = _ticks(name, rows)
    found = sorted(rows, key=lambda row: ticks.index(row[name]))
    places = [ticks.index(row[name]) for row in found]
    means = [100 * row[MEAN] for row in found]
    bands = [100 * (row[DEVIATION] or 0.0) for row in found]
    color = curves.color_of(0)
    axes.errorbar(places, means, bands, color=color, marker="o", capsize=3, linewidth=2)
    for place, mean, row in zip(places, means, found):
        if row[BEST]:
            options = {"markerfacecolor": "none", "markersize": 13}
            axes.plot(place, mean, "o", color=curves.color_of(1), **options)
    axes.set_xticks(range(len(ticks)), [as_text(each) for each in ticks])
    axes.set_xlim(-0.4, len(ticks) - 0.6)
    axes.set_xlabel(name, fontsize=11)
    axes.set_ylabel("Held-out accuracy (%)", fontsize=11)
    axes.grid(True, color="#d9d9d9", linewidth=0.8)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def _heat_map(
    axes: Any, names: Sequence[str], rows: Sequence[Row], limits: tuple[float, float]
) -> None:
    across, up = (_ticks(name, rows) for name in names)
    cells = np.full((len(up), len(across)), np.nan)
    for row in rows:
        place = up.index(row[names[1]]), across.index(row[names[0]])
        cells[place] = 100 * row[MEAN]
        color = "white" if cells[place] > (limits[0] + limits[1]) / 2 else "black"
        deviation = row[DEVIATION]
        spread = "" if deviation is None else f"\n± {100 * deviation:.1f}"
        axes.text(
            place[1],
            place[0],
            f"{cells[place]:.1f}{spread}",
            ha="center",
            va="center",
            color=color,
            fontsize=10,
            fontweight="bold" if row[BEST] else "normal",
        )
    image = axes.imshow(cells, origin="lower", aspect="auto", cmap="Blues", clim=limits)
    axes.set_xticks(range(len(across)), [as_text(each) for each in across])
    axes.set_yticks(range(len(up)), [as_text(each) for each in up])
    axes.set_xlabel(names[0], fontsize=11)
    axes.set_ylabel(names[1], fontsize=11)
    bar = axes.figure.colorbar(image, ax=axes)
    bar.set_label("Held-out accuracy (%)", fontsize=10, color=_GREY)
