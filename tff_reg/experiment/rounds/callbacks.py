"""Callbacks: work of a run between its rounds, which may also end it.

    class Printing(experiment.Callback):
        def on_round(self, run, row):
            print(run.rounds_done, row["training/loss"])

    experiment.run(config, callbacks=[Printing()])

Best weights and TensorBoard's events are callbacks, too.
"""

from __future__ import annotations

import contextlib
import errno
import importlib.util
import json
import math
import pathlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Optional

from tff_reg import curves, files, scores
from tff_reg.experiment.rounds import (
    directory as directory_lib,
    metrics,
    progress,
    summary,
)
from tff_reg.lazy import ipython_display, np, tf

Row = dict[str, Optional[float]]
WeightNames = tuple[Sequence[str], Sequence[str]]

# The best weights from before a round that was evaluated only because it was the last;
# empty if there were none.
_BEST_BEFORE = "best_weights_before.npz"


class Run:
    """A run between two rounds, as callbacks see it.

    Attributes:
      total_rounds: The rounds of the whole run.
      rounds_per_evaluation: Number of rounds between two evaluations.
      settings: The run's settings, JSON values by name, as `config.json` has them.
      directory: The run's directory; None if the run writes nothing.
      say: Prints a line without disturbing the progress bar.
      weight_names: Names of the trainable and of the other variables; None for
        `trainable/0` and so on.
      frozen: Weights by name that are constants; they are written with the others.
      rounds_done: The rounds done so far.
      table: The metrics of these rounds.
      checkpoint: The checkpoint that this process started from; None at the beginning
        of a run.
      stopped_early: The reason of a run that a callback ended, `by` which, and its
        `total_rounds`.
    """

    total_rounds: int
    rounds_per_evaluation: int
    settings: Mapping[str, Any]
    directory: Optional[directory_lib.RunDirectory]
    say: Callable[[str], None]
    weight_names: Optional[WeightNames]
    table: metrics.MetricsTable
    frozen: Mapping[str, Any]
    rounds_done = 0
    checkpoint: Any = None
    stopped_early: Optional[dict[str, Any]] = None

    def get_weights(self) -> Any:
        """Returns the server's `ModelWeights` after these rounds, arrays.

        Raises:
          ValueError: If clients share no model, as with `local`.
        """
        raise NotImplementedError

    @property
    def is_done(self) -> bool:
        """Whether all rounds are done, or a callback has ended the run."""
        return not self.rounds_left or self.stopped_early is not None

    @property
    def rounds_left(self) -> int:
        """The rounds that are left to do."""
        return self.total_rounds - self.rounds_done

    @property
    def rows(self) -> list[Row]:
        """The metrics of all rounds done, one row per round; None for an empty cell."""
        return self.table.rows()

    def column(self, name: str) -> list[float]:
        """Returns one metric of all rounds done; NaN where a round has none."""
        return self.table.column(name)

    def is_due(self, period: int) -> bool:
        """Returns whether the last round done is the run's last or due by `period`.

        With a period of 0 only the run's last round is due.
        """
        is_last = self.rounds_left == 0
        return is_last or (period > 0 and self.rounds_done % period == 0)

    def kept(self, name: str) -> Optional[bytes]:
        """Returns a file that a callback's `keep` put into the resumed checkpoint.

        Args:
          name: A key of `Callback.keep`.

        Returns:
          The bytes; None at the beginning of a run, if nothing was kept, or when later
          checkpoints have replaced the resumed one.
        """
        if self.checkpoint is None or name not in self.checkpoint.parts:
            return None
        path = self.checkpoint.part(name)
        return path.read_bytes() if path.exists() else None

    def write_weights(self, name: str, weights: Any = None) -> None:
        """Writes weights to an `.npz` file of the run's directory.

        Args:
          name: The file's name.
          weights: `ModelWeights`; None for the server's after the last round.
        """
        assert self.directory is not None
        weights = self.get_weights() if weights is None else weights
        arrays = named_arrays(weights, self.weight_names)
        frozen = {each: np.asarray(value) for each, value in self.frozen.items()}
        self.directory.write_weights({**arrays, **frozen}, name)


class Callback:
    """Base class of callbacks; override the methods that you need.

    A resumed run calls `on_start` again, in a new process: a callback takes its state
    from `run.rows`, or returns it from `keep` and reads it with `Run.kept`. An
    exception in a callback ends the run, which can be resumed.
    """

    def on_start(self, run: Run) -> None:
        """Called before the first round of this process; `run` has earlier ones."""

    def on_round(self, run: Run, row: Row) -> Optional[str]:
        """Called after every round of this process.

        Args:
          run: The run; its `rows` end with this round's.
          row: The round's metrics, such as `row["evaluation/accuracy"]`; None for what
            was not measured in this round.

        Returns:
          Why the run ends after this round, for `stopped_early` in `summary.json`; None
          to go on. A run that ends early is finished.
        """

    def on_end(self, run: Run) -> None:
        """Called once all rounds are done, before `summary.json` is written."""

    def keep(self) -> Mapping[str, bytes]:
        """Returns files for the checkpoint, bytes by name, which `Run.kept` reads."""
        return {}


class BestWeights(Callback):
    """Keeps the server's model after the round with the best test score.

    Of several rounds with the same score, the first one counts.
    """

    def __init__(self):
        """Begins without weights."""
        self._path: Any = None
        self._before: Optional[bytes] = None

    def on_start(self, run: Run) -> None:
        if run.directory is None:
            return
        self._path = run.directory.path / directory_lib.BEST_WEIGHTS
        best, before = run.kept(directory_lib.BEST_WEIGHTS), run.kept(_BEST_BEFORE)
        if not run.is_done and before is not None:
            # The checkpoint's round was evaluated only because it was then the last.
            best = before or None
        if best is None:
            files.delete(self._path)
        else:
            files.write_bytes(self._path, best)

    def on_round(self, run: Run, row: Row) -> None:
        score = scores.of(run.settings)
        value = row.get(score.server)
        if self._path is None or value is None or math.isnan(value):
            return
        *before, _ = run.column(score.server)
        if not any(score.reaches(other, value) for other in before):
            if run.rounds_done % run.rounds_per_evaluation:
                exists = self._path.exists()
                self._before = self._path.read_bytes() if exists else b""
            run.write_weights(directory_lib.BEST_WEIGHTS)

    def keep(self) -> Mapping[str, bytes]:
        found = {}
        if self._path is not None and self._path.exists():
            found[directory_lib.BEST_WEIGHTS] = self._path.read_bytes()
        if self._before is not None:
            found[_BEST_BEFORE] = self._before
        return found


class TensorBoard(Callback):
    """Writes TensorBoard's event files.

    An event file cannot be cut back to a checkpoint, so a resumed run writes its
    earlier rows again to a new file: no round appears twice.
    """

    def __init__(self):
        """Writes nothing yet."""
        self._writer: Any = None
        self._where = ""

    def on_start(self, run: Run) -> None:
        if run.directory is None:
            return
        directory_lib.delete_events(run.directory.path)
        self._where = str(run.directory.path)
        with self._system_errors():
            self._writer = tf.summary.create_file_writer(self._where)
            with self._writer.as_default(step=0):
                text = json.dumps(dict(run.settings), indent=2)
                tf.summary.text("config", f"```\n{text}\n```")
            for row in run.rows:
                self._write(row)
            self._writer.flush()

    def on_round(self, run: Run, row: Row) -> None:
        if self._writer is not None:
            with self._system_errors():
                self._write(row)
                # Makes the row visible at once.
                self._writer.flush()

    def on_end(self, run: Run) -> None:
        if self._writer is not None:
            with self._system_errors():
                with self._writer.as_default(step=run.rounds_done):
                    for path in sorted(pathlib.Path(self._where).glob("*.png")):
                        image = tf.io.decode_png(path.read_bytes(), 3)
                        tf.summary.image(path.stem, image[tf.newaxis])
                self._writer.close()

    @contextlib.contextmanager
    def _system_errors(self) -> Iterator[None]:
        """Turns TensorFlow's errors into an OSError."""
        try:
            yield
        except tf.errors.OpError as error:
            why = f"TensorBoard's events cannot be written ({type(error).__name__})"
            raise OSError(errno.EIO, why, self._where) from error

    def _write(self, row: Row) -> None:
        with self._writer.as_default(step=int(row[metrics.ROUND] or 0)):
            for name, value in row.items():
                if name != metrics.ROUND and value is not None:
                    tf.summary.scalar(name, value)


class EarlyStopping(Callback):
    """Ends a run whose score no longer improves, or that has reached its targets.

        experiment.train(..., callbacks=[experiment.EarlyStopping(patience=5)])

    `bin/run --patience=5` and `--stop_at_target` do so, too. Only rounds that were
    evaluated count.
    """

    def __init__(self, patience: Optional[int] = None, *, at_target: bool = False):
        """Sets when a run ends.

        Args:
          patience: The number of rounds without a better score after which it ends.
          at_target: Whether it ends once the best of the run's `targets` is reached.
        """
        self._patience, self._at_target = patience, at_target

    def on_round(self, run: Run, row: Row) -> Optional[str]:
        if row.get(scores.of(run.settings).server) is None:
            return None
        asked = {"patience": self._patience, "stop_at_target": self._at_target}
        return summary.why_end(run.table, {**run.settings, **asked})


# Those to which an evaluation out of turn is told, too.
OF_EVALUATIONS = (BestWeights, TensorBoard)


def score_curves(
    table: metrics.MetricsTable, settings: Mapping[str, Any]
) -> list[curves.Curve]:
    """Returns the curves of the scores that a run measured."""
    tested, score = metrics.tested(settings), scores.of(settings)
    rounds = [int(number) for number in table.column(metrics.ROUND)]
    drawn = []
    for name, column in (
        (tested, score.server),
        ("training, clients' mean", score.training),
        (f"{tested}, mean of all clients", score.all_clients),
    ):
        points = [
            (number, value)
            for number, value in zip(rounds, table.column(column))
            if not math.isnan(value)
        ]
        if points:
            drawn.append(curves.Curve(name, *zip(*points)))
    return drawn


def drift(table: metrics.MetricsTable) -> list[curves.Points]:
    """Returns the pictures of the clients' drift by round; none if not measured."""
    columns = [name.split("/") for name in table.row(0)]
    groups = dict.fromkeys(c[1] for c in columns if c[0] == metrics.DRIFT)
    rounds = table.column(metrics.ROUND)
    found = []
    for name, label in (
        ("norm", "Norm of the clients' updates"),
        ("cosine", "Cosine of an update to their mean"),
        ("divergence", "Divergence of the updates"),
    ):
        values = {g: table.column(f"{metrics.DRIFT}/{g}/{name}") for g in groups}
        found.append(
            (curves.ROUNDS, label, {g: (rounds, v) for g, v in values.items()})
        )
    return found if groups else []


def named_arrays(weights: Any, names: Optional[WeightNames]) -> dict[str, Any]:
    """Returns the arrays of `ModelWeights` by the names of their variables."""
    trainable, others = list(weights.trainable), list(weights.non_trainable)
    if names is None:
        names = (
            [f"trainable/{index}" for index in range(len(trainable))],
            [f"non_trainable/{index}" for index in range(len(others))],
        )
    pairs = [*zip(names[0], trainable), *zip(names[1], others)]
    return {name: np.asarray(value) for name, value in pairs}


# A figure takes about 0.2 s, which should not delay many rounds.
_SECONDS_BETWEEN = 1.0
_WIDTH = 640  # In pixels, as the notebook shows it.


def can_be_live() -> bool:
    """Returns whether a Jupyter kernel runs this code and matplotlib is installed."""
    has_matplotlib = importlib.util.find_spec("matplotlib") is not None
    return progress.in_notebook() and has_matplotlib


class LiveCurve(Callback):
    """Shows the scores by round in a notebook, in one figure that is redrawn.

        experiment.train(..., callbacks=[experiment.LiveCurve()])

    `tff_reg.run` adds it in notebooks by default. Elsewhere it shows nothing.
    """

    def __init__(self) -> None:
        self._handle: Any = None
        self._drawn_at = 0.0

    def on_start(self, run: Run) -> None:
        self._drawn_at, self._handle = 0.0, None

    def on_round(self, run: Run, row: Row) -> None:
        is_first = self._handle is None
        is_time = time.monotonic() - self._drawn_at >= _SECONDS_BETWEEN
        is_measured = row.get(scores.of(run.settings).server) is not None
        if is_measured and (is_first or is_time):
            self._show(run)

    def on_end(self, run: Run) -> None:
        self._show(run)

    def _show(self, run: Run) -> None:
        drawn = score_curves(run.table, run.settings)
        if not drawn or not can_be_live():
            return
        self._drawn_at = time.monotonic()
        figure = curves.draw_curves(drawn, score=scores.of(run.settings))
        picture = ipython_display.Image(curves.as_png(figure), width=_WIDTH)
        if self._handle is None:
            self._handle = ipython_display.display(picture, display_id=True)
        else:
            self._handle.update(picture)
