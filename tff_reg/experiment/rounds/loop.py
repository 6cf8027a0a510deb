"""The rounds of an experiment: train, evaluate, record, checkpoint, resume.

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
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Optional

from tff_reg import curves, lazy, tables
from tff_reg.data import digests
from tff_reg.experiment.config import identity
from tff_reg.experiment.rounds import (
    callbacks as callbacks_lib,
    directory as directory_lib,
    metrics,
    process_state,
    progress as progress_lib,
    round_work,
    summary as summary_lib,
)
from tff_reg.experiment.rounds.callbacks import Callback, Row

if TYPE_CHECKING:
    from tff_reg.lazy import mpl_figure, pandas

trained_model = lazy.module("tff_reg.experiment.rounds.trained_model")

# Parts of a checkpoint, beside those of the process and of callbacks.
_METRICS = "metrics.csv"
# Why a callback ended the run after the checkpoint's round.
_STOPPED = "stopped_early.json"


@dataclasses.dataclass(frozen=True)
class RunResult:
    """The result of a finished run."""

    # The process's state after the last round.
    state: Any
    # `process.get_model_weights(state)`.
    weights: Any
    # `process.get_all_clients_weights(state)`; None if the process has no such mean.
    all_clients_weights: Any
    # One row per round: numbers by column, None for an empty cell.
    rows: list[Row]
    # The contents of `summary.json`.
    summary: dict[str, Any]
    # Builds the `model`.
    build_model: Callable[[], Any] = dataclasses.field(repr=False)
    # The curves that `plot` draws, and the texts above them.
    drawn: Sequence[curves.Curve] = ()
    title: str = ""
    subtitle: str = ""

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
        return curves.draw_curves(self.drawn, title=self.title, subtitle=self.subtitle)

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


def _as_json(values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns values as they are read back from a JSON file."""
    return json.loads(json.dumps(dict(values)))


class Rounds:
    """The state of a run between two rounds, and its next steps."""

    def __init__(self, training: Any):
        """Reads the config in `output_dir`; writes nothing.

        Raises:
          DirectoryError: If `output_dir` holds something that is no run.
        """
        self._training = training
        own_metrics = getattr(training.evaluate, "metrics", {})
        own = {
            **training.numbers(),
            "seed": training.seed,
            "client_sampling": training.client_sampling,
            "keep_best": training.keep_best,
            # Recorded even if None: a run that began without is not resumed with one.
            "sample_fn": round_work.name_of(training.sample_fn),
            "client_dataset_fn": round_work.name_of(training.client_dataset_fn),
            "metrics": sorted(own_metrics),
        }
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
        self._callbacks: list[Callback] = [
            callbacks_lib.TensorBoard(),
            callbacks_lib.Plot(training.title, training.subtitle),
            callbacks_lib.Checkpoints(training.rounds_per_checkpoint),
        ]
        if training.keep_best:
            self._callbacks.insert(0, callbacks_lib.BestWeights())
        self._callbacks += training.callbacks
        self._state: Any = None
        self._work: Any = None
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
        # The reason and `total_rounds` of a run that a callback ended.
        self._stopped_early: Optional[dict[str, Any]] = None
        self._not_finite_reported = False
        self._result: Optional[RunResult] = None

    @property
    def result(self) -> RunResult:
        """The result, once all rounds are done.

        Raises:
          RuntimeError: If they are not.
        """
        if self._result is None:
            raise RuntimeError("The run is not finished.")
        return self._result

    @property
    def _is_done(self) -> bool:
        return not self._run.rounds_left or self._stopped_early is not None

    def rows(self) -> Generator[Row, None, None]:
        """Takes the directory, does the rounds and writes the results.

        If closed between two rounds, it commits the rounds done and releases the
        directory.

        Yields:
          The row of each round, including rounds of earlier processes.
        """
        directory, run, training = self._directory, self._run, self._training
        try:
            self._state = process_state.ProcessState(
                training.process, directory and directory.client_states
            )
            self._work = round_work.RoundWork(
                self._state,
                training.client_data,
                clients_per_round=training.clients_per_round,
                client_sampling=training.client_sampling,
                sample_fn=training.sample_fn,
                seed=training.seed,
                client_dataset_fn=training.client_dataset_fn,
                evaluate=training.evaluate,
            )
            if directory is not None:
                self._begin(directory)
                self._restore(directory)
                if not self._is_done:
                    directory.add_code(identity.code(self._settings))
            for callback in self._callbacks:
                callback.on_start(run)
            yield from run.rows
            self._progress.start(run.rounds_done)
            while not self._is_done:
                self._run_round()
                try:
                    yield run.table.row(run.rounds_done - 1)
                except GeneratorExit:
                    self._save()
                    raise
            self._result = self._finish()
        finally:
            self._progress.close()
            if directory is not None:
                directory.close()

    def _begin(self, directory: directory_lib.RunDirectory) -> None:
        """Checks that the run there, if any, is this one, and takes the directory."""
        parts: dict[str, str] = {}
        for each in (self._training.client_data, self._training.evaluate):
            parts.update(getattr(each, "digests", {}))
        if parts:
            self._settings[digests.DATA] = digests.together(parts)
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
                    self._stopped_early = stopped
            run.say(f"Resuming after round {run.rounds_done} of {run.total_rounds}.")
            if changed := identity.other_code(directory.config or {}):
                run.say(changed)
            if not self._is_done:
                # Drops the evaluation of a round that was evaluated only as the last.
                run.table.keep_evaluations(run.rounds_per_evaluation)
        for name in directory.damaged_weights():
            run.say(f"{name} is damaged: it is written again.")
        # Work of the last process beyond its checkpoint is deleted and done again.
        self._state.delete_unnamed(directory.checkpoints.all())
        directory.delete_results()
        directory.write_metrics(run.table)

    def _run_round(self) -> None:
        """Trains, evaluates, records and saves."""
        run = self._run
        row = self._work.train(run.rounds_done + 1)
        run.rounds_done += 1
        run.is_commit_asked = False
        if run.is_due(run.rounds_per_evaluation):
            row.update(self._work.evaluate(run.rounds_done))
        run.table.append(row)
        reasons = [callback.on_round(run, dict(row)) for callback in self._callbacks]
        if reason := next(filter(None, reasons), None):
            total = run.total_rounds
            self._stopped_early = {"reason": reason, "total_rounds": total}
            if not run.is_due(run.rounds_per_evaluation):
                found = self._work.evaluate(run.rounds_done)
                row.update(found)
                run.table.replace_last(row)
                for callback in self._callbacks:
                    if isinstance(callback, callbacks_lib.OF_EVALUATIONS):
                        callback.on_round(
                            run, {metrics.ROUND: run.rounds_done, **found}
                        )
        if self._directory is not None:
            self._directory.write_metrics(run.table)
            if run.is_commit_asked or self._stopped_early:
                self._save()
        self._report(row)

    def _save(self) -> None:
        """Commits a checkpoint, if there is none of this round."""
        run = self._run
        if self._directory is None or self._rounds_saved == run.rounds_done:
            return
        contents = {_METRICS: run.table.text().encode("utf-8")}
        if self._stopped_early:
            contents[_STOPPED] = json.dumps(self._stopped_early).encode()
        parts = self._state.parts()
        for callback in self._callbacks:
            for name, content in callback.keep().items():
                if name in parts or name in contents:
                    kind = type(callback).__name__
                    raise ValueError(
                        f"{kind}.keep returns {name}, which a checkpoint has already;"
                        " choose another name."
                    )
                contents[name] = content
        for name, content in contents.items():
            parts[name] = functools.partial(pathlib.Path.write_bytes, data=content)
        self._directory.checkpoints.save(run.rounds_done, parts)
        self._rounds_saved = run.rounds_done
        self._state.delete_unnamed(self._directory.checkpoints.all())

    def _report(self, row: Mapping[str, Any]) -> None:
        round_num = self._run.rounds_done
        self._progress.after_round(round_num, row)
        rejected = metrics.rejected_clients(row)
        if rejected:
            of_all = f"{rejected} of {self._work.cohort_size} clients"
            self._progress.say(
                f"Round {round_num}: the updates of {of_all} were not finite and were"
                " left out."
            )
        for name in self._work.methods_not_finite:
            self._progress.say(
                f"Round {round_num}: {name} made numbers that are not finite. Clients"
                " with such a term, memory or upload were left out; such a memory or"
                " model of the server was not taken over."
            )
        if self._stopped_early:
            why = self._stopped_early["reason"]
            self._progress.say(f"The run ends after round {round_num}: {why}.")
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
        run = self._run
        weights = self._state.weights()
        all_clients_weights = self._state.all_clients_weights()
        summary = summary_lib.summarize(run.table, self._settings)
        if self._stopped_early:
            summary[summary_lib.STOPPED_EARLY] = self._stopped_early
        if self._directory is not None:
            run.write_weights(directory_lib.WEIGHTS, weights)
            if all_clients_weights is not None:
                name = directory_lib.ALL_CLIENTS_WEIGHTS
                run.write_weights(name, all_clients_weights)
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
            callbacks_lib.accuracy_curves(run.table, self._settings),
            self._training.title,
            self._training.subtitle,
        )
