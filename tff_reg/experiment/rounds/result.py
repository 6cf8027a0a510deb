"""The result of a finished run: rows, summary, model, plot."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from tff_reg import curves, scores, tables
from tff_reg.experiment.rounds.callbacks import Row

if TYPE_CHECKING:
    from tff_reg.lazy import mpl_figure, pandas


@dataclasses.dataclass(frozen=True)
class RunResult:
    """The result of a finished run."""

    # The process's state after the last round.
    state: Any = dataclasses.field(repr=False)
    # `process.get_model_weights(state)`; None of `local`, whose clients share no model.
    weights: Any = dataclasses.field(repr=False)
    # `process.get_all_clients_weights(state)`; None if the process has no such mean.
    all_clients_weights: Any = dataclasses.field(repr=False)
    # One row per round: numbers by column, None for an empty cell.
    rows: list[Row] = dataclasses.field(repr=False)
    # The contents of `summary.json`.
    summary: dict[str, Any]
    # Builds the `model`.
    build_model: Callable[[], Any] = dataclasses.field(repr=False)
    # The curves that `plot` draws.
    drawn: Sequence[curves.Curve] = dataclasses.field(default=(), repr=False)
    # The rows of `clients.csv`; empty without `client_evaluation`.
    clients: Sequence[dict[str, Any]] = dataclasses.field(default=(), repr=False)
    # What the model is judged by.
    score: scores.Score = dataclasses.field(default=scores.Score(), repr=False)

    @property
    def metrics(self) -> pandas.DataFrame:
        """The `rows` as a pandas DataFrame: one row per round, NaN for an empty cell.

        result.metrics["evaluation/accuracy"].max()
        """
        return tables.to_pandas(self.rows)

    def plot(self) -> mpl_figure.Figure:
        """Draws the scores by round.

            result.plot().savefig("accuracy.pdf")

        Returns:
          A matplotlib figure, which a notebook shows; its only axes are `axes[0]`.

        Raises:
          ValueError: If the run measured none.
        """
        if not self.drawn:
            raise ValueError("The run measured no score that could be drawn.")
        return curves.draw_curves(self.drawn, score=self.score)

    @functools.cached_property
    def model(self) -> Any:
        """The model with the weights: `predict` takes examples as they are stored.

        The user's own Keras model if the process was built with `models.from_keras` and
        the run's evaluation has no `preprocess_fn`. Else it has `predict(x)`, which
        preprocesses and returns the outputs (of our networks logits), and `save(path)`,
        which writes a SavedModel for TensorFlow alone.

        Raises:
          ValueError: If a method replaced the last layer of a `from_keras` model, or
            the run is of `local`, whose clients share no model.
        """
        return self.build_model()
