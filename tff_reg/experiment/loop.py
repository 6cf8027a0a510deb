"""The rounds of an experiment: train, evaluate, record, checkpoint, resume.

Everything that is drawn here is a function of the seed and the round, so the server
state, the round and the metrics are all that a checkpoint needs, and a run that was
killed and started again writes the same bytes as one that was not.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
import json
import math
import pathlib
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Optional, Union

from tff_reg import data, runtime
from tff_reg.experiment import (
    as_keras,
    client_states,
    curves,
    directory as directory_lib,
    metrics,
    process_digest,
    progress as progress_lib,
    provenance,
    state_file,
    summary as summary_lib,
    tensorboard,
)
from tff_reg.lazy import np

if TYPE_CHECKING:
    from tff_reg.training.composition import Process

Row = dict[str, Optional[float]]

# The parts of a checkpoint, beside `directory.BEST_WEIGHTS`.
STATE, CLIENT_STATES = "server_state.npz", "client_states.json"
_METRICS = "metrics.csv"
# The best weights before those of a last round that is evaluated out of turn; empty
# where there were none.
_BEST_BEFORE = "best_weights_before.npz"


class TrainingError(RuntimeError):
    """Raised when a round fails; says which, and what the process said."""


@dataclasses.dataclass(frozen=True)
class RunResult:
    """What a finished run leaves, for who runs it from Python."""

    # The process's state after the last round.
    state: Any
    # `process.get_model_weights(state)`.
    weights: Any
    # `process.get_all_clients_weights(state)`; None where there is no such mean.
    all_clients_weights: Any
    # A row a round, numbers by column, None where a cell is empty.
    rows: list[Row]
    # What `summary.json` holds.
    summary: dict[str, Any]
    # Makes what `model` gives.
    build_model: Callable[[], Any] = dataclasses.field(repr=False)

    @functools.cached_property
    def model(self) -> Any:
        """The Keras model with the weights, ready to `predict` examples as stored.

        The user's own model where the process is of `models.from_keras`, else the
        network in Keras layers (`tff_reg.experiment.as_keras`), which gives logits. The
        `preprocess_fn` of the run's evaluation is inside.

        Raises:
          ExportError: If the process trains another kind of model, or the preprocessing
            is no scale and shift.
          ValueError: If a method replaced the last layer of a `from_keras` model.
        """
        return self.build_model()


@dataclasses.dataclass(frozen=True)
class Training:
    """The rounds of a learning process, or what is left of them.

    With an `output_dir`, what was stopped (by Ctrl-C, a notebook's interrupt, an
    exception, `kill -9`) goes on when run again, to the same bytes.

    Attributes:
      process: Any `tff.learning.templates.LearningProcess`, or a
        `tff_reg.training.StatefulLearningProcess`, whose clients' states are kept in
        `output_dir`, or in memory without one. Where its server keeps the mean of all
        clients' last models, that is evaluated and written beside the server model.
      client_data: Has `client_ids` and `whole_client_dataset(client_id, key)`, like
        `tff_reg.data.ArrayClientData`.
      total_rounds: Rounds that the run has when it is finished.
      clients_per_round: Clients sampled a round, without replacement.
      client_sampling: 'fixed' for so many; 'independent' lets each client take part
        with probability clients_per_round / (number of clients), at least one of them.
      seed: Seed of the sampling and of the clients' keys.
      evaluate: From `tff.learning.models.ModelWeights` to `loss` and `accuracy`, for
        instance a `CentralEvaluation`; None to train without evaluation.
      rounds_per_evaluation: Evaluate every so many rounds, and after the last.
      rounds_per_checkpoint: Commit a checkpoint every so many rounds, after the last,
        and when `on_round` ends the run.
      keep_best: Write the server's model after the round with the best test accuracy,
        the first of the best, to `best_weights.npz`.
      client_dataset_fn: From a client's id and its key for the round (int64 [2]) to
        its `tf.data.Dataset`; None for `client_data.whole_client_dataset`.
      output_dir: Directory to resume from and to write to; None writes nothing.
      overwrite: Delete the run in `output_dir` first.
      settings: What to record in `config.json` beside the attributes above, and to
        compare with it when a run is resumed: JSON values by name.
      title: Title of `accuracy.png`.
      subtitle: The line below the title.
      weight_names: Names of the trainable and the other variables, for
        `final_weights.npz` and its like; None for `trainable/0` and so on.
      progress: Told of every round; None for a bar on a terminal or in a notebook,
        and lines elsewhere. `progress.Silence()` says nothing.
    """

    process: Process
    client_data: Any
    total_rounds: int
    clients_per_round: int
    seed: int = 0
    evaluate: Optional[Callable[[Any], Mapping[str, float]]] = None
    rounds_per_evaluation: int = 1
    rounds_per_checkpoint: int = 1
    client_dataset_fn: Optional[Callable[[str, Any], Any]] = None
    output_dir: Union[str, pathlib.Path, None] = None
    overwrite: bool = False
    client_sampling: str = "fixed"
    keep_best: bool = False
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    title: str = ""
    subtitle: str = ""
    weight_names: Optional[tuple[Sequence[str], Sequence[str]]] = None
    progress: Optional[progress_lib.Progress] = None

    def __post_init__(self):
        """Checks the arguments; touches nothing.

        Raises:
          TypeError: If one is of another kind.
          ValueError: If a number is out of range.
        """
        kinds = {
            "process": ("next", "tff_reg.training.build('fedavg', model_fn)"),
            "client_data": ("client_ids", "a tff_reg.data.ArrayClientData"),
        }
        for name, (attribute, example) in kinds.items():
            given = getattr(self, name)
            if not hasattr(given, attribute):
                kind = type(given).__name__
                raise TypeError(f"{name} is a {kind}, but must be like {example}.")
        data_fn = "whole_client_dataset"
        if self.client_dataset_fn is None and not hasattr(self.client_data, data_fn):
            raise TypeError(
                f"client_data is a {type(self.client_data).__name__} without {data_fn}:"
                " give a tff_reg.data.ArrayClientData, or a client_dataset_fn, such as"
                " lambda client_id, key:"
                " client_data.create_tf_dataset_for_client(client_id)."
            )
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
        num_clients = len(self.client_data.client_ids)
        if self.clients_per_round > num_clients:
            raise ValueError(
                f"clients_per_round is {self.clients_per_round}, but there are only"
                f" {num_clients} clients."
            )

    def numbers(self) -> dict[str, int]:
        """How many rounds and clients, by name; at least one of each."""
        return {
            "total_rounds": self.total_rounds,
            "clients_per_round": self.clients_per_round,
            "rounds_per_evaluation": self.rounds_per_evaluation,
            "rounds_per_checkpoint": self.rounds_per_checkpoint,
        }

    def run(self, on_round: Optional[Callable[[Row], Any]] = None) -> RunResult:
        """Does the rounds.

        Args:
          on_round: Called with the row of every round, in order, as they are in
            `RunResult.rows`: at once with those that an earlier run has done already,
            so that a plot is whole, then after each round. What it raises ends the
            run.

        Returns:
          The result.

        Raises:
          DirectoryError: If `output_dir` holds something else, or a run with other
            settings.
          StateMismatchError: If the state there is not one of this process.
          TrainingError: If a round fails, from the error of the process.
        """
        rounds = Rounds(self)
        with runtime.outside_programs(), contextlib.closing(rounds.rows()) as rows:
            for row in rows:
                if on_round is not None:
                    on_round(row)
        return rounds.result


def train(
    process: Process,
    client_data: Any,
    *,
    on_round: Optional[Callable[[Row], Any]] = None,
    **arguments: Any,
) -> RunResult:
    """Runs the rounds of a learning process, or what is left of them.

    Args:
      process: As of `Training`.
      client_data: As of `Training`.
      on_round: As of `Training.run`.
      **arguments: The other attributes of `Training`.

    Returns:
      The result.

    Raises:
      TypeError: If there is no such argument, or one is missing.
      DirectoryError, StateMismatchError, TrainingError, ValueError: As of `Training`.
    """
    return Training(process, client_data, **arguments).run(on_round)


def _signature() -> inspect.Signature:
    """That of `train`, with what `**arguments` may be, for who asks `help`."""
    first, second, *others = inspect.signature(Training).parameters.values()
    on_round = inspect.signature(train).parameters["on_round"]
    named = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in others]
    return inspect.Signature([first, second, *named, on_round])


train.__signature__ = _signature()


def _as_json(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values as they come back from a JSON file."""
    return json.loads(json.dumps(dict(values)))


class Rounds:
    """A run: what it is between two rounds, and what may happen next."""

    def __init__(self, training: Training):
        """Touches nothing yet.

        Args:
          training: What is to be done.

        Raises:
          DirectoryError: If `output_dir` holds something that is no run.
        """
        self._training = training
        self._process = training.process
        self._client_ids = list(training.client_data.client_ids)
        own = {
            **training.numbers(),
            "seed": training.seed,
            "client_sampling": training.client_sampling,
            "keep_best": training.keep_best,
        }
        self._settings = _as_json({**training.settings, **own})
        self._directory: Optional[directory_lib.RunDirectory] = None
        if training.output_dir is not None:
            self._directory = directory_lib.RunDirectory(training.output_dir)
            for each in (training.client_data, training.evaluate):
                self._settings.update(getattr(each, "digests", {}))
        self._config: dict[str, Any] = {}
        self._progress = training.progress or progress_lib.for_this_output(
            training.total_rounds
        )
        self._events: Optional[tensorboard.TensorBoardEvents] = None
        self._state: Any = None
        self._client_states: Optional[client_states.ClientStates] = None
        self._table = metrics.MetricsTable()
        self._rounds_done = 0
        self._rounds_saved = 0
        self._cohort_size = 0
        self._not_finite_reported = False
        self._best_before: Optional[bytes] = None
        # Not every process has it, and where it has, it may be None.
        self._get_all_clients_weights: Optional[Callable[[Any], Any]] = getattr(
            training.process, "get_all_clients_weights", None
        )
        self._result: Optional[RunResult] = None

    @property
    def result(self) -> RunResult:
        """What the run leaves, when all rounds are done.

        Raises:
          RuntimeError: If they are not.
        """
        if self._result is None:
            raise RuntimeError("The run is not finished.")
        return self._result

    @property
    def _rounds_left(self) -> int:
        return self._training.total_rounds - self._rounds_done

    def rows(self) -> Generator[Row, None, None]:
        """Takes the directory, does the rounds and writes the results.

        Closed between two rounds, it commits what is done and lets go of the
        directory.

        Yields:
          The row of each round, also of those that were done before.
        """
        try:
            self._state = self._process.initialize()
            if self._directory is not None:
                self._begin(self._directory)
            self._restore()
            if self._directory is not None and self._rounds_left:
                self._directory.go_on(self._config, self._rounds_done)
            yield from self._table.rows()
            self._progress.start(self._rounds_done)
            while self._rounds_left:
                self._run_round(self._rounds_done + 1)
                try:
                    yield self._table.row(self._rounds_done - 1)
                except GeneratorExit:
                    self._save()
                    raise
            self._result = self._finish()
        finally:
            self._progress.close()
            if self._directory is not None:
                self._directory.close()

    def _begin(self, directory: directory_lib.RunDirectory) -> None:
        if process_digest.NAME not in self._settings:
            digest = process_digest.of(self._process, self._state)
            if digest is not None:
                self._settings[process_digest.NAME] = digest
        if not self._training.overwrite:
            directory.check_settings(self._settings)
            directory.check_rounds(self._settings)
        sources = provenance.sources(self._settings.get("process"))
        self._config = _as_json(
            {**self._settings, **provenance.describe(), "sources": sources}
        )
        directory.begin(self._config, overwrite=self._training.overwrite)

    def _restore(self) -> None:
        """Starts from the newest whole checkpoint, or from the beginning."""
        if hasattr(self._process, "initial_client_state"):
            self._client_states = client_states.ClientStates(
                self._process.initial_client_state(self._state),
                self._directory and self._directory.client_states,
            )
        if self._directory is None:
            return
        checkpoint = self._directory.checkpoints.latest(
            self._progress.say, self._verify_client_states
        )
        if checkpoint is not None:
            if self._client_states is not None:
                self._client_states.restore(checkpoint.part(CLIENT_STATES))
            self._state = state_file.read_state(
                checkpoint.part(STATE), like=self._state
            )
            self._table = metrics.MetricsTable.parse(
                checkpoint.part(_METRICS).read_text("utf-8")
            )
            self._rounds_done = self._rounds_saved = checkpoint.round_num
            self._progress.say(
                f"Resuming after round {self._rounds_done} of"
                f" {self._settings['total_rounds']}."
            )
            changed = provenance.change(self._directory.config or {})
            if changed:
                self._progress.say(changed)
        for name in self._directory.damaged_weights():
            self._progress.say(f"{name} is damaged: it is written again.")
        best = checkpoint and checkpoint.part(directory_lib.BEST_WEIGHTS)
        if checkpoint is not None and self._rounds_left:
            # Its last round was evaluated for being the last, which it is no more.
            self._table.keep_evaluations(self._training.rounds_per_evaluation)
            before = checkpoint.part(_BEST_BEFORE)
            if before.exists():
                best = before if before.stat().st_size else None
        self._directory.restore_best_weights(best)
        # What the last process wrote beyond its checkpoint is done again.
        self._delete_unnamed_client_states()
        self._directory.delete_results()
        self._directory.write_metrics(self._table)
        self._events = tensorboard.TensorBoardEvents(
            self._directory.path, self._table.rows()
        )

    def _verify_client_states(self, checkpoint: Any) -> None:
        if self._client_states is not None:
            self._client_states.verify(checkpoint.part(CLIENT_STATES))

    def _delete_unnamed_client_states(self) -> None:
        if self._client_states is not None and self._directory is not None:
            self._client_states.delete_unnamed(
                checkpoint.part(CLIENT_STATES)
                for checkpoint in self._directory.checkpoints.all()
            )

    def _run_round(self, round_num: int) -> None:
        """Trains, evaluates, records and saves."""
        row = self._train_round(round_num)
        evaluate = self._training.evaluate
        if evaluate is not None and self._is_due(
            round_num, self._training.rounds_per_evaluation
        ):
            try:
                row.update(self._evaluate_state(evaluate))
            except Exception as error:
                raise TrainingError(
                    f"The evaluation after round {round_num} failed:"
                    f" {type(error).__name__}: {error}"
                ) from error
            self._keep_if_best(row)
        self._table.append(row)
        self._rounds_done = round_num
        if self._directory is not None:
            self._directory.write_metrics(self._table)
            if self._is_due(round_num, self._training.rounds_per_checkpoint):
                self._save()
        if self._events is not None:
            self._events.add(row)
        self._report(round_num, row)

    def _keep_if_best(self, row: Mapping[str, Any]) -> None:
        """Writes the weights of a round that is better than all before it."""
        accuracy = row.get(metrics.EVALUATION_ACCURACY)
        if not self._training.keep_best or self._directory is None or accuracy is None:
            return
        if math.isnan(accuracy):
            return
        # Those that a checkpoint brings back are in the table: after a resume the same
        # rounds are the best so far.
        before = [
            other
            for other in self._table.column(metrics.EVALUATION_ACCURACY)
            if not math.isnan(other)
        ]
        if all(accuracy > other for other in before):
            path = self._directory.path / directory_lib.BEST_WEIGHTS
            if row[metrics.ROUND] % self._training.rounds_per_evaluation:
                self._best_before = path.read_bytes() if path.exists() else b""
            self._directory.write_weights(
                _named_arrays(
                    self._process.get_model_weights(self._state),
                    self._training.weight_names,
                ),
                directory_lib.BEST_WEIGHTS,
            )

    def _is_due(self, round_num: int, period: int) -> bool:
        return round_num % period == 0 or round_num == self._training.total_rounds

    def _train_round(self, round_num: int) -> dict[str, Any]:
        """Trains one round; returns its row of metrics."""
        training = self._training
        dataset_fn = (
            training.client_dataset_fn or training.client_data.whole_client_dataset
        )
        began = time.monotonic()
        drawn = {"seed": training.seed, "round_num": round_num}
        if training.client_sampling == "independent":
            share = training.clients_per_round / len(self._client_ids)
            cohort = data.sample_clients_bernoulli(self._client_ids, share, **drawn)
        else:
            cohort = data.sample_clients(
                self._client_ids, training.clients_per_round, **drawn
            )
        self._cohort_size = len(cohort)
        datasets = [
            dataset_fn(client_id, data.client_key(training.seed, round_num, client_id))
            for client_id in cohort
        ]
        arguments = [self._state, datasets]
        try:
            if self._client_states is not None:
                arguments.append(self._client_states.load(cohort))
            output = self._process.next(*arguments)
        except Exception as error:
            raise TrainingError(
                f"Round {round_num} failed: {type(error).__name__}: {error}"
            ) from error
        self._state = output.state
        if self._client_states is not None:
            self._client_states.store(cohort, output.client_states, round_num)
        row = metrics.round_metrics(output.metrics)
        if row.get(metrics.NUM_EXAMPLES) == 0:
            # All clients were rejected: there is no mean, though the sums say 0.
            for name in (metrics.TRAINING_LOSS, metrics.TRAINING_ACCURACY):
                row[name] = math.nan
        # Columns are those of the first row, in whatever round they are filled.
        to_fill = (metrics.ALL_CLIENTS_LOSS, metrics.ALL_CLIENTS_ACCURACY)
        if self._training.evaluate is None or self._get_all_clients_weights is None:
            to_fill = ()
        return {
            metrics.ROUND: round_num,
            metrics.TRAINING_LOSS: row.pop(metrics.TRAINING_LOSS, None),
            metrics.TRAINING_ACCURACY: row.pop(metrics.TRAINING_ACCURACY, None),
            metrics.SECONDS: round(time.monotonic() - began, 3),
            **dict.fromkeys(to_fill),
            **row,
        }

    def _evaluate_state(
        self, evaluate: Callable[[Any], Mapping[str, float]]
    ) -> dict[str, float]:
        results = evaluate(self._process.get_model_weights(self._state))
        row = {f"evaluation/{name}": value for name, value in results.items()}
        if self._get_all_clients_weights is not None:
            results = evaluate(self._get_all_clients_weights(self._state))
            for name, value in results.items():
                row[f"evaluation_all_clients/{name}"] = value
        return row

    def _save(self) -> None:
        """Commits a checkpoint, if there is none of this round."""
        if self._directory is None or self._rounds_saved == self._rounds_done:
            return
        parts = {
            STATE: lambda path: state_file.write_state(path, self._state),
            _METRICS: lambda path: path.write_text(self._table.text(), "utf-8"),
        }
        if self._client_states is not None:
            parts[CLIENT_STATES] = self._client_states.write_index
        best = self._directory.path / directory_lib.BEST_WEIGHTS
        if best.exists():
            parts[best.name] = lambda path: path.write_bytes(best.read_bytes())
        before = self._best_before
        if before is not None:
            parts[_BEST_BEFORE] = lambda path: path.write_bytes(before)
        self._directory.checkpoints.save(self._rounds_done, parts)
        self._rounds_saved = self._rounds_done
        self._delete_unnamed_client_states()

    def _report(self, round_num: int, row: Mapping[str, Any]) -> None:
        self._progress.after_round(round_num, row)
        rejected = metrics.rejected_clients(row)
        if rejected:
            of_all = f"{rejected} of {self._cohort_size} clients"
            self._progress.say(
                f"Round {round_num}: the updates of {of_all} were not finite and were"
                " left out."
            )
        loss = row[metrics.TRAINING_LOSS]
        if loss is None or math.isfinite(loss) or self._not_finite_reported:
            return
        self._not_finite_reported = True
        self._progress.say(
            f"Round {round_num}: the training loss is {float(loss)}. A smaller client"
            " learning rate, or clipping of gradients, may help."
        )

    def _finish(self) -> RunResult:
        """Writes the results; `summary.json` last."""
        weights = self._process.get_model_weights(self._state)
        all_clients_weights = None
        if self._get_all_clients_weights is not None:
            all_clients_weights = self._get_all_clients_weights(self._state)
        summary = summary_lib.summarize(self._table, self._settings)
        if self._events is not None:
            self._events.close()
        if self._directory is not None:
            self._directory.write_weights(
                _named_arrays(weights, self._training.weight_names)
            )
            if all_clients_weights is not None:
                self._directory.write_weights(
                    _named_arrays(all_clients_weights, self._training.weight_names),
                    directory_lib.ALL_CLIENTS_WEIGHTS,
                )
            self._draw(self._directory.path / "accuracy.png")
            self._directory.write_summary(summary)
        build_model = functools.partial(
            as_keras.of_process,
            self._process,
            weights,
            getattr(self._training.evaluate, "preprocess_fn", None),
            getattr(self._training.evaluate, "examples_dtype", "float32"),
        )
        rows = self._table.rows()
        return RunResult(
            self._state, weights, all_clients_weights, rows, summary, build_model
        )

    def _draw(self, path: pathlib.Path) -> None:
        """Draws the accuracies that were measured."""
        tested = metrics.tested(self._settings)
        rounds = [int(number) for number in self._table.column(metrics.ROUND)]
        drawn = []
        for name, column in (
            (tested, metrics.EVALUATION_ACCURACY),
            ("training, clients' mean", metrics.TRAINING_ACCURACY),
            (f"{tested}, mean of all clients", metrics.ALL_CLIENTS_ACCURACY),
        ):
            points = [
                (number, share)
                for number, share in zip(rounds, self._table.column(column))
                if not math.isnan(share)
            ]
            if points:
                drawn.append(curves.Curve(name, *zip(*points)))
        if drawn:
            title, subtitle = self._training.title, self._training.subtitle
            curves.write_curves(path, drawn, title=title, subtitle=subtitle)


def _named_arrays(
    weights: Any, names: Optional[tuple[Sequence[str], Sequence[str]]]
) -> dict[str, Any]:
    trainable, others = list(weights.trainable), list(weights.non_trainable)
    if names is None:
        names = (
            [f"trainable/{index}" for index in range(len(trainable))],
            [f"non_trainable/{index}" for index in range(len(others))],
        )
    pairs = [*zip(names[0], trainable), *zip(names[1], others)]
    return {name: np.asarray(value) for name, value in pairs}
