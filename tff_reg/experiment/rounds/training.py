"""A training: a process, its clients' data and its rounds; `train` runs it.

All random draws are a function of the seed and the round, so a checkpoint needs only
the server state, the round and the metrics, and a run that was killed and started again
writes the same bytes as an uninterrupted one.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import pathlib
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Optional, ParamSpec, TypeVar, Union

from tff_reg import curves, data, lazy, runtime, tables
from tff_reg.data import digests, sampling
from tff_reg.experiment.config import identity
from tff_reg.experiment.rounds import (
    callbacks as callbacks_lib,
    directory as directory_lib,
    metrics,
    process_state,
    progress as progress_lib,
    summary as summary_lib,
)
from tff_reg.experiment.rounds.callbacks import Callback, Row

if TYPE_CHECKING:
    from tff_reg.lazy import mpl_figure, pandas
    from tff_reg.training.composition import Process

trained_model = lazy.module("tff_reg.experiment.rounds.trained_model")

A = TypeVar("A")
P = ParamSpec("P")
R = TypeVar("R")
EvaluationFn = Callable[[Any], Mapping[str, float]]
ClientDatasetFn = Callable[[str, Any], Any]
SampleFn = Callable[[int, list[str]], Sequence[str]]

# Parts of a checkpoint, beside those of the process and of callbacks.
_METRICS = "metrics.csv"
# Why a callback ended the run after the checkpoint's round.
_STOPPED = "stopped_early.json"


class TrainingError(RuntimeError):
    """Raised when a round fails; says which, with the error of the process."""


def name_of(function: Any) -> Optional[str]:
    """Returns the name of a function given from Python, for `config.json`."""
    return function and getattr(function, "__name__", type(function).__name__)


@dataclasses.dataclass(frozen=True)
class RunResult:
    """The result of a finished run."""

    # The process's state after the last round.
    state: Any = dataclasses.field(repr=False)
    # `process.get_model_weights(state)`.
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

    @property
    def metrics(self) -> pandas.DataFrame:
        """The `rows` as a pandas DataFrame: one row per round, NaN for an empty cell.

            result.metrics["evaluation/accuracy"].max()

        Raises:
          ImportError: If pandas is not installed.
        """
        return tables.to_pandas(self.rows, "result.rows")

    def plot(self) -> mpl_figure.Figure:
        """Draws the accuracies by round.

            result.plot().savefig("accuracy.pdf")

        Returns:
          A matplotlib figure, which a notebook shows; its only axes are `axes[0]`.

        Raises:
          ValueError: If the run measured no accuracy.
        """
        if not self.drawn:
            raise ValueError("The run measured no accuracy that could be drawn.")
        return curves.draw_curves(self.drawn)

    @functools.cached_property
    def model(self) -> Any:
        """The model with the weights: `predict` takes examples as they are stored.

        The user's own Keras model if the process was built with `models.from_keras` and
        the run's evaluation has no `preprocess_fn`. Else it has `predict(x)`, which
        preprocesses and returns the outputs (of our networks logits), and `save(path)`,
        which writes a SavedModel for TensorFlow alone.

        Raises:
          ValueError: If a method replaced the last layer of a `from_keras` model.
        """
        return self.build_model()


@dataclasses.dataclass(frozen=True)
class Training:
    """The rounds of a learning process, or the rest of them.

    With an `output_dir`, a training that was stopped (by Ctrl-C, a notebook's
    interrupt, an exception, `kill -9`) resumes when run again, with the same bytes.

    Attributes:
      process: Any `tff.learning.templates.LearningProcess`, or a
        `tff_reg.training.StatefulLearningProcess`, whose clients' states are kept in
        `output_dir`, or in memory without one. If its server keeps the mean of all
        clients' last models, that mean is evaluated and written, too.
      client_data: Has `client_ids` and `whole_client_dataset(client_id, key)`, like
        `tff_reg.data.ArrayClientData`.
      total_rounds: Number of rounds of the finished run.
      clients_per_round: Clients sampled per round, without replacement.
      client_sampling: 'fixed' draws exactly `clients_per_round` clients;
        'independent' includes each client with probability clients_per_round / (number
        of clients), and at least one client.
      sample_fn: Samples the clients in place of `client_sampling`: called with the
        round (from 1) and all clients' ids, it returns the ids of the cohort. Its
        result may depend on its arguments only, since a resumed run does not call it
        for the rounds done. `config.json` has its name and a digest of its code: a run
        is not resumed with another function. The same holds for `evaluate` and
        `client_dataset_fn`.
      seed: Seed of the sampling and of the clients' keys.
      evaluate: Function from `tff.learning.models.ModelWeights` to `loss` and
        `accuracy`, such as a `CentralEvaluation`; None to train without evaluation.
      rounds_per_evaluation: Number of rounds between two evaluations; the last round
        is always evaluated.
      rounds_per_checkpoint: Number of rounds between two checkpoints; there is also one
        after the last round, and when `on_round` raises.
      keep_best: Write the server's model after the round with the best test accuracy
        to `best_weights.npz`; the first of several equal ones.
      client_dataset_fn: Function of a client's id and its key for the round (int64 [2])
        that returns its `tf.data.Dataset`; None for `client_data.whole_client_dataset`.
      output_dir: Directory to resume from and to write to, or its `RunDirectory`; None
        writes nothing.
      overwrite: Delete the run in `output_dir` first.
      settings: Further JSON values by name, which are recorded in `config.json` and
        compared with it when a run is resumed.
      weight_names: Names of the trainable and the other variables, for
        `final_weights.npz` and its like; None for `trainable/0` and so on.
      progress: Shows every round; None for a bar on a terminal or in a notebook, and
        lines elsewhere. `progress.Silence()` shows nothing.
      callbacks: Called at the start, after every round and at the end, in this order
        and after the run's own; see `experiment.Callback`.
      on_round: Called with the row of every round, in order, as in `RunResult.rows`,
        including the rounds of earlier processes. An exception that it raises stops the
        run; call again to resume.
    """

    process: Process
    client_data: Any
    total_rounds: int
    clients_per_round: int
    seed: int = 0
    evaluate: Optional[EvaluationFn] = None
    rounds_per_evaluation: int = 1
    rounds_per_checkpoint: int = 1
    client_dataset_fn: Optional[ClientDatasetFn] = None
    output_dir: Union[str, pathlib.Path, directory_lib.RunDirectory, None] = None
    overwrite: bool = False
    client_sampling: str = "fixed"
    sample_fn: Optional[SampleFn] = None
    keep_best: bool = False
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    weight_names: Optional[callbacks_lib.WeightNames] = None
    progress: Optional[progress_lib.Progress] = None
    callbacks: Sequence[Callback] = ()
    on_round: Optional[Callable[[Row], Any]] = None

    def __post_init__(self):
        """Checks the arguments; touches nothing."""
        for name, number in self.numbers().items():
            if isinstance(number, bool) or not isinstance(number, int) or number < 1:
                raise ValueError(
                    f"{name} is {number!r}; it must be a whole number of at least 1."
                )
        if self.client_sampling not in ("fixed", "independent"):
            raise ValueError(
                f"client_sampling is {self.client_sampling!r}; it must be fixed or"
                " independent."
            )

    def numbers(self) -> dict[str, int]:
        """Returns the numbers of rounds and clients by name."""
        return {
            "total_rounds": self.total_rounds,
            "clients_per_round": self.clients_per_round,
            "rounds_per_evaluation": self.rounds_per_evaluation,
            "rounds_per_checkpoint": self.rounds_per_checkpoint,
        }

    def run(self) -> RunResult:
        """Does the rounds.

        Returns:
          The result.

        Raises:
          DirectoryError: If `output_dir` holds something else, or a run with other
            settings.
          StateMismatchError: If the state there does not fit this process.
          TrainingError: If a round fails, from the error of the process.
        """
        rounds = Rounds(self)
        with runtime.outside_programs(), rounds:
            for row in rounds.begin():
                rounds.show(row)
            while not rounds.are_done:
                row = rounds.do_one()
                rounds.show(row)
            return rounds.finish()


class Rounds:
    """The rounds of a training; in a `with` statement, which releases the directory."""

    def __init__(self, training: Training):
        """Reads the config in `output_dir`; writes nothing."""
        self._training = training
        own = {
            **training.numbers(),
            "seed": training.seed,
            "client_sampling": training.client_sampling,
            "keep_best": training.keep_best,
            # Recorded even if None: a run that began without is not resumed with one.
            "sample_fn": name_of(training.sample_fn),
            "client_dataset_fn": name_of(training.client_dataset_fn),
            "metrics": list(getattr(training.evaluate, "metrics", ())),
        }
        for name, argument in digests.FUNCTIONS.items():
            function = getattr(training, argument)
            function = getattr(function, "functions", function)
            own[name] = function and digests.of_function(function)
        self._settings = _as_json({**training.settings, **own})
        directory = training.output_dir
        if directory is not None and not isinstance(
            directory, directory_lib.RunDirectory
        ):
            directory = directory_lib.RunDirectory(directory)
        self._directory = directory
        self._progress = training.progress or progress_lib.for_this_output(
            training.total_rounds
        )
        self._progress.tested = metrics.tested(self._settings)
        self._callbacks: list[Callback] = [
            *([callbacks_lib.BestWeights()] if training.keep_best else []),
            callbacks_lib.TensorBoard(),
            *training.callbacks,
        ]
        self._client_ids = list(training.client_data.client_ids)
        self._state: Any = None
        self._run = callbacks_lib.Run(
            total_rounds=training.total_rounds,
            rounds_per_evaluation=training.rounds_per_evaluation,
            settings=self._settings,
            directory=directory,
            say=self._progress.say,
            weight_names=training.weight_names,
            get_weights=lambda: self._state.weights(),
            table=metrics.MetricsTable(),
        )
        self._rounds_saved = 0
        self._not_finite_reported = False

    def __enter__(self) -> Rounds:
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.close()
        if self._directory is not None:
            self._directory.close()

    @property
    def are_done(self) -> bool:
        """Whether no round is left, or a callback has ended the run."""
        return self._run.is_done

    def begin(self) -> list[Row]:
        """Takes the directory; returns the rows of the rounds of earlier processes."""
        directory, run = self._directory, self._run
        self._state = process_state.ProcessState(
            self._training.process, directory and directory.client_states
        )
        if directory is not None:
            self._take(directory)
            self._restore(directory)
            if not self.are_done:
                directory.add_code(identity.code(self._settings))
        for callback in self._callbacks:
            callback.on_start(run)
        self._progress.start(run.rounds_done)
        return run.rows

    def _take(self, directory: directory_lib.RunDirectory) -> None:
        """Checks that the run there, if any, is this one, and takes the directory."""
        parts: dict[str, str] = {}
        for each in (self._training.client_data, self._training.evaluate):
            parts.update(getattr(each, "digests", {}))
        self._settings.update(digests.recorded(parts))
        if not self._training.overwrite:
            directory.check(self._settings)
        config = {**self._settings, **identity.machine()}
        directory.begin(_as_json(config), overwrite=self._training.overwrite)

    def _restore(self, directory: directory_lib.RunDirectory) -> None:
        """Starts from the newest whole checkpoint, or from the beginning."""
        run = self._run
        run.checkpoint = directory.checkpoints.latest(run.say, self._state.verify)
        if run.checkpoint is not None:
            self._state.restore(run.checkpoint)
            text = run.checkpoint.part(_METRICS).read_text("utf-8")
            run.table = metrics.MetricsTable.parse(text)
            run.rounds_done = self._rounds_saved = run.checkpoint.round_num
            stopped = run.kept(_STOPPED)
            if stopped is not None:
                stopped = json.loads(stopped)
                # A request for more rounds continues the run.
                if run.total_rounds <= stopped["total_rounds"]:
                    run.stopped_early = stopped
            run.say(f"Resuming after round {run.rounds_done} of {run.total_rounds}.")
            if changed := identity.other_code(directory.config or {}):
                run.say(changed)
            if not self.are_done:
                # Drops the evaluation of a round that was evaluated only as the last.
                run.table.keep_evaluations(run.rounds_per_evaluation)
        # Work of the last process beyond its checkpoint is deleted and done again.
        self._state.delete_unnamed(directory.checkpoints.all())
        directory.delete_results(and_analyses=not self.are_done)
        directory.write_metrics(run.table)

    def do_one(self) -> Row:
        """Trains, evaluates, records and saves a round; returns its row."""
        run = self._run
        began = time.monotonic()
        cohort = self._cohort(run.rounds_done + 1)
        found = self._train(cohort, run.rounds_done + 1)
        row = self._row(found, time.monotonic() - began)
        run.rounds_done += 1
        if run.is_due(run.rounds_per_evaluation):
            row.update(self._evaluate())
        run.table.append(row)
        reasons = [each.on_round(run, run.table.row(-1)) for each in self._callbacks]
        if reason := next(filter(None, reasons), None):
            self._stop(reason, row)
        if self._directory is not None:
            self._directory.write_metrics(run.table)
            if run.is_due(self._training.rounds_per_checkpoint) or run.stopped_early:
                self._save()
        self._progress.after_round(run.rounds_done, row)
        self._report(row, len(cohort))
        return run.table.row(run.rounds_done - 1)

    def _cohort(self, round_num: int) -> list[str]:
        training, ids = self._training, self._client_ids
        if training.sample_fn is not None:
            return sampling.sample_by(training.sample_fn, ids, round_num=round_num)
        drawn = {"seed": training.seed, "round_num": round_num}
        if training.client_sampling == "independent":
            share = training.clients_per_round / len(ids)
            return data.sample_clients_bernoulli(ids, share, **drawn)
        return data.sample_clients(ids, training.clients_per_round, **drawn)

    def _train(self, cohort: list[str], round_num: int) -> dict[str, Any]:
        """Trains a round; returns the metrics of the process by their columns."""
        training = self._training
        dataset_fn = (
            training.client_dataset_fn or training.client_data.whole_client_dataset
        )
        datasets = [
            dataset_fn(name, data.client_key(training.seed, round_num, name))
            for name in cohort
        ]
        try:
            found = self._state.train(cohort, datasets, round_num)
        except Exception as error:
            raise TrainingError(
                f"Round {round_num} failed: {type(error).__name__}: {error}"
            ) from error
        return metrics.round_metrics(found)

    def _row(self, found: dict[str, Any], seconds: float) -> dict[str, Any]:
        """Returns the row of a round, with the columns that later rounds fill."""
        evaluate = self._training.evaluate
        if found.get(metrics.NUM_EXAMPLES) == 0:
            # There is no mean, though the sums say 0: NaN if clients were rejected, an
            # empty cell if nobody trained.
            nothing = math.nan if metrics.rejected_clients(found) else None
            of_methods = [
                name
                for name in found
                if name.startswith("training/") and name.count("/") == 2
                if not name.endswith(metrics.NOT_FINITE)
            ]
            names = (metrics.TRAINING_LOSS, metrics.TRAINING_ACCURACY, *of_methods)
            found.update(dict.fromkeys(names, nothing))
        # The first row fixes the columns, also those that only later rounds fill.
        names = ["loss", "accuracy", *getattr(evaluate, "metrics", ())]
        to_fill = [f"evaluation/{name}" for name in names[2:]]
        if evaluate is not None and self._state.has_all_clients_weights:
            to_fill += [f"evaluation_all_clients/{name}" for name in names]
        return {
            metrics.ROUND: self._run.rounds_done + 1,
            metrics.TRAINING_LOSS: found.pop(metrics.TRAINING_LOSS, None),
            metrics.TRAINING_ACCURACY: found.pop(metrics.TRAINING_ACCURACY, None),
            metrics.SECONDS: round(seconds, 3),
            **dict.fromkeys(to_fill),
            **found,
        }

    def _evaluate(self) -> dict[str, float]:
        """Evaluates the server's model, and the mean of all clients' if any."""
        evaluate = self._training.evaluate
        if evaluate is None:
            return {}
        try:
            results = evaluate(self._state.weights())
            row = {f"evaluation/{name}": value for name, value in results.items()}
            if self._state.has_all_clients_weights:
                results = evaluate(self._state.all_clients_weights())
                for name, value in results.items():
                    row[f"evaluation_all_clients/{name}"] = value
            return row
        except Exception as error:
            raise TrainingError(
                f"The evaluation after round {self._run.rounds_done} failed:"
                f" {type(error).__name__}: {error}"
            ) from error

    def _stop(self, reason: str, row: dict[str, Any]) -> None:
        """Ends the run after the last round, which is then evaluated in any case."""
        run = self._run
        run.stopped_early = {"reason": reason, "total_rounds": run.total_rounds}
        if run.is_due(run.rounds_per_evaluation):
            return
        found = self._evaluate()
        row.update(found)
        run.table.replace_last(row)
        for callback in self._callbacks:
            if isinstance(callback, callbacks_lib.OF_EVALUATIONS):
                callback.on_round(run, {metrics.ROUND: run.rounds_done, **found})

    def show(self, row: Row) -> None:
        """Gives a row to `on_round`; if that raises, the rounds done are saved."""
        if self._training.on_round is None:
            return
        try:
            self._training.on_round(row)
        except BaseException:
            self._save()
            raise

    def _save(self) -> None:
        """Commits a checkpoint, if there is none of this round."""
        run = self._run
        if self._directory is None or self._rounds_saved == run.rounds_done:
            return
        contents = {_METRICS: run.table.text().encode("utf-8")}
        if run.stopped_early:
            contents[_STOPPED] = json.dumps(run.stopped_early).encode()
        parts = self._state.parts()
        for callback in self._callbacks:
            kept = callback.keep()
            if taken := kept.keys() & {*parts, *contents}:
                raise ValueError(
                    f"{type(callback).__name__}.keep returns {min(taken)!r}, a name"
                    " that the checkpoint has already: take another one."
                )
            contents.update(kept)
        for name, content in contents.items():
            parts[name] = functools.partial(pathlib.Path.write_bytes, data=content)
        self._directory.checkpoints.save(run.rounds_done, parts)
        self._rounds_saved = run.rounds_done
        self._state.delete_unnamed(self._directory.checkpoints.all())

    def _report(self, row: Mapping[str, Any], cohort_size: int) -> None:
        run, say = self._run, self._progress.say
        round_num = run.rounds_done
        rejected = metrics.rejected_clients(row)
        if rejected:
            say(
                f"Round {round_num}: the updates of {rejected} of {cohort_size} clients"
                " were not finite and were left out."
            )
        for name in metrics.methods_not_finite(row):
            say(
                f"Round {round_num}: {name} made numbers that are not finite. Clients"
                " with such a term, memory or upload were left out; such a memory or"
                " model of the server was discarded."
            )
        if run.stopped_early:
            why = run.stopped_early["reason"]
            say(f"The run ends after round {round_num}: {why}.")
        loss = row[metrics.TRAINING_LOSS]
        if loss is None or math.isfinite(loss) or self._not_finite_reported:
            return
        self._not_finite_reported = True
        say(
            f"Round {round_num}: the training loss is {float(loss)}. A smaller client"
            " learning rate, or clipping of gradients, may help."
        )

    def finish(self) -> RunResult:
        """Writes the results; `summary.json` last."""
        run = self._run
        weights = self._state.weights()
        all_clients_weights = self._state.all_clients_weights()
        summary = summary_lib.summarize(run.table, self._settings)
        if run.stopped_early:
            summary[summary_lib.STOPPED_EARLY] = run.stopped_early
        if self._directory is not None:
            run.write_weights(directory_lib.WEIGHTS, weights)
            if all_clients_weights is not None:
                name = directory_lib.ALL_CLIENTS_WEIGHTS
                run.write_weights(name, all_clients_weights)
        drawn = callbacks_lib.accuracy_curves(run.table, self._settings)
        if self._directory is not None and drawn:
            picture = self._directory.path / directory_lib.PICTURE
            curves.write_curves(picture, drawn)
        for callback in self._callbacks:
            callback.on_end(run)
        if self._directory is not None:
            self._directory.write_summary(summary)
        evaluate = self._training.evaluate
        build_model = functools.partial(
            trained_model.of_process,
            self._training.process,
            weights,
            getattr(evaluate, "preprocess_fn", None),
            getattr(evaluate, "examples_spec", None),
        )
        state = self._state.server
        return RunResult(
            state,
            weights,
            all_clients_weights,
            run.rows,
            summary,
            build_model,
            drawn,
        )


def _as_json(values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns values as they are read back from a JSON file."""
    return json.loads(json.dumps(dict(values)))


def with_arguments_of(
    kind: Callable[P, A],
) -> Callable[[Callable[[A], R]], Callable[P, R]]:
    """Decorator that gives a function of a dataclass the dataclass's arguments."""

    def decorate(function: Callable[[A], R]) -> Callable[P, R]:
        def called(*args: P.args, **kwargs: P.kwargs) -> R:
            make: Any = kind
            gather = getattr(kind, "gathered", dict)
            return function(make(*args, **gather(kwargs)))

        functools.update_wrapper(called, function)
        # `help` shows the arguments of `kind`.
        vars(called)["__wrapped__"] = kind
        return called

    return decorate


@with_arguments_of(Training)
def train(training: Training) -> RunResult:
    """Runs the rounds of a learning process, or the rest of them.

        result = experiment.train(
            process, client_data, total_rounds=20, clients_per_round=4)

    The arguments are the attributes of `Training`.

    Returns:
      The result.

    Raises:
      TypeError: If there is no such argument, one is missing, or is of another kind.
      ValueError: If a number is out of range.
      DirectoryError: If `output_dir` holds something else, or a run with other
        settings.
      StateMismatchError: If the state there does not fit this process.
      TrainingError: If a round fails.
    """
    return training.run()
