"""The accuracy curve of a run in a notebook, redrawn during the run."""

from __future__ import annotations

import importlib.util
import time
from typing import Any

from tff_reg import curves
from tff_reg.experiment.rounds import callbacks, metrics, progress
from tff_reg.lazy import ipython_display

# A figure takes about 0.2 s, which should not delay many rounds.
_SECONDS_BETWEEN = 1.0
_WIDTH = 640  # In pixels, as the notebook shows it.


def is_possible() -> bool:
    """Returns whether a Jupyter kernel runs this code and matplotlib is installed."""
    has_matplotlib = importlib.util.find_spec("matplotlib") is not None
    return progress.in_notebook() and has_matplotlib


class LiveCurve(callbacks.Callback):
    """Shows the accuracies by round in a notebook, in one figure that is redrawn.

        experiment.train(..., callbacks=[experiment.LiveCurve()])

    `tff_reg.run` adds it in notebooks by default. Elsewhere it shows nothing.
    """

    def __init__(self) -> None:
        self._handle: Any = None
        self._drawn_at = 0.0

    def on_start(self, run: callbacks.Run) -> None:
        self._drawn_at, self._handle = 0.0, None

    def on_round(self, run: callbacks.Run, row: callbacks.Row) -> None:
        is_first = self._handle is None
        is_time = time.monotonic() - self._drawn_at >= _SECONDS_BETWEEN
        if row.get(metrics.EVALUATION_ACCURACY) is not None and (is_first or is_time):
            self._show(run)

    def on_end(self, run: callbacks.Run) -> None:
        self._show(run)

    def _show(self, run: callbacks.Run) -> None:
        drawn = callbacks.accuracy_curves(run.table, run.settings)
        if not drawn or not is_possible():
            return
        self._drawn_at = time.monotonic()
        figure = curves.draw_curves(drawn)
        picture = ipython_display.Image(curves.as_png(figure), width=_WIDTH)
        if self._handle is None:
            self._handle = ipython_display.display(picture, display_id=True)
        else:
            self._handle.update(picture)
