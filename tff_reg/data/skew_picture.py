"""A picture of the skewed images of a task's first clients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tff_reg.lazy import mpl_agg, mpl_figure, np

_CLIENTS, _EACH = 8, 4


def write(task: Any, skews: Sequence[Mapping[str, float]], path: Any) -> None:
    """Draws four images of each of the first eight clients, a client to a column.

    A title is the label that the client trains on, red if it is wrong.

    Args:
      task: A task of images that `tasks.build` has built.
      skews: Each client's skews by name, written above its column.
      path: The PNG file.
    """
    x, labels = task.client_data.arrays
    parts = task.partition[:_CLIENTS]
    figure = mpl_figure.Figure(figsize=(1.6 * len(parts), 8.0), dpi=100)
    mpl_agg.FigureCanvasAgg(figure)
    grid = figure.subplots(_EACH, len(parts), squeeze=False)
    for axes in grid.flat:
        axes.axis("off")
    for column, (own, skew) in enumerate(zip(parts, skews)):
        said = [f"{n.replace('_', ' ')} {value:.3g}" for n, value in skew.items()]
        where = ((column + 0.5) / len(parts), 0.99)
        text = "\n".join([f"client {column}", *said])
        figure.text(*where, text, ha="center", va="top", fontsize=9)
        chosen = own[
            np.linspace(0, max(0, own.size - 1), _EACH).astype(int)[: own.size]
        ]
        for axes, row in zip(grid[:, column], chosen):
            image = x[row].astype(np.float32)
            image = (image - image.min()) / (np.ptp(image) or 1)
            axes.imshow(image.repeat(3 // image.shape[-1] or 1, axis=-1))
            is_wrong = labels[row] != task.train_labels[row]
            name = task.class_names[labels[row]][:12]
            axes.set_title(name, fontsize=9, color="red" if is_wrong else "black")
    figure.subplots_adjust(
        0.01, 0.01, 0.99, 0.93 - 0.02 * max(map(len, skews)), 0.05, 0.2
    )
    with open(path, "wb") as file:
        figure.savefig(file, format="png", metadata={"Software": None})
