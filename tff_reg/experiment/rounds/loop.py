"""The rounds of a training, one after the other: `Rounds`."""

from __future__ import annotations

import functools
import json
import math
import resource
import sys
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Optional

from tff_reg import curves, lazy, runtime
from tff_reg.data import digests
from tff_reg.experiment.config import identity
from tff_reg.experiment.rounds import (
    callbacks as callbacks_lib,
    directory as directory_lib,
    local,
    metrics,
    process_state,
    progress as progress_lib,
    summary as summary_lib,
)
from tff_reg.experiment.rounds.callbacks import Callback, Row
from tff_reg.experiment.rounds.result import RunResult
from tff_reg.experiment.rounds.training import Training, with_arguments_of
from tff_reg.training import traffic

if TYPE_CHECKING:
    from tff_reg.experiment.rounds.client_evaluation import ClientResults

trained_model = lazy.module("tff_reg.experiment.rounds.trained_model")

# Parts of a checkpoint, beside those of the process and of callbacks.
_METRICS = "metrics.csv"
# Why a callback ended the run after the checkpoint's round.
_STOPPED = "stopped_early.json"


class TrainingError(RuntimeError):
    """Raised when a round fails; says which, with the error of the process."""


def name_of(function: Any) -> Optional[str]:
    """Returns the name of a function given from Python, for `config.json`."""
    return function and getattr(function, "__name__", type(function).__name__)


class Rounds:
    """The rounds of a training; in a `with` statement, which releases the directory."""

    def __init__(self, training: Training):
        """Reads the config in `output_dir`; writes nothing."""
        self._training = training
        own = {
            "seed": training.seed,
            "client_sampling": training.client_sampling,
            "keep_best": training.keep_best,
            # Recorded even if None: a run that began without is not resumed with one.
            "sample_fn": name_of(training.sample_fn),
            "client_dataset_fn": name_of(training.client_dataset_fn),
            "metrics": list(getattr(training.evaluate, "metrics", ())),
        }
        if training.unequal_work:
            own["unequal_work"] = digests.described(training.unequal_work)
        built_from = getattr(training.process, "built_from", None) or {}
        settings = {**training.numbers(), **built_from, **training.settings, **own}
        self._settings = _as_json(settings)
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
        now = {**training.numbers(), "num_clients": len(self._client_ids)}
        for name, value in getattr(training.process, "assumed", {}).items():
            is_part = name == "total_rounds" and value and now[name] < value
            if value not in (None, now[name]) and not is_part:
                raise ValueError(
                    f"The process was built for {name}={value}, and here it is"
                    f" {now[name]}: build it with that number."
                )
        self._state: Any = None
        self._run = callbacks_lib.Run(
            total_rounds=training.total_rounds,
            rounds_per_evaluation=training.rounds_per_evaluation,
            settings=self._settings,
            directory=directory,
            say=self._progress.say,
            weight_names=training.weight_names,
            get_weights=self._weights,
            table=metrics.MetricsTable(),
            frozen=getattr(training.evaluate, "frozen", {}),
        )
        self._clients: Optional[ClientResults] = None
        self._rounds_saved = 0
        self._reported: set[str] = set()

    def __enter__(self) -> Rounds:
        return self

    @property
    def _has_own_objects(self) -> bool:
        """Whether process, model or functions are Python objects of the user's."""
        training = self._training
        return bool(
            getattr(training.process, "built_from", None) != {}
            or self._settings.get("model") is None
            or training.sample_fn
            or training.client_dataset_fn
            or self._settings["metrics"]
        )

    def __exit__(self, *_: object) -> None:
        self._progress.close()
        if self._directory is not None:
            self._directory.close()

    def _weights(self) -> Any:
        if self._state.weights_of:
            raise ValueError(local.NO_MODEL)
        return self._state.weights()

    @property
    def are_done(self) -> bool:
        """Whether all rounds are done, or a callback has ended the run."""
        return self._run.is_done

    def begin(self) -> list[Row]:
        """Takes the directory; returns the rows of the rounds of earlier processes."""
        directory, run = self._directory, self._run
        self._state = process_state.ProcessState(
            self._training.process, directory and directory.checkpoints
        )
        if directory is not None:
            self._take(directory)
            self._restore(directory)
            if not self.are_done:
                directory.add_code(identity.code(self._settings, self._has_own_objects))
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
        process = self._training.process
        get_hparams = getattr(process, "get_hparams", None)
        if get_hparams and getattr(process, "built_from", None) is None:
            hparams = digests.described(get_hparams(self._state.server))
            self._settings["process.hparams"] = hparams
        if not self._training.overwrite:
            directory.check(self._settings)
        sent = traffic.bytes_per_client(process, self._settings.get("process", ""))
        config = {**self._settings, **identity.machine(), identity.TRAFFIC: sent}
        directory.begin(_as_json(config), overwrite=self._training.overwrite)

    def _restore(self, directory: directory_lib.RunDirectory) -> None:
        """Starts from the newest whole checkpoint, or from the beginning."""
        run = self._run
        run.checkpoint = directory.checkpoints.latest(run.say)
        if run.checkpoint is not None:
            self._state.restore(run.checkpoint)
            text = run.checkpoint.part(_METRICS).read_text("utf-8")
            run.table = metrics.MetricsTable.parse(text)
            run.rounds_done = self._rounds_saved = run.checkpoint.round_num
            stopped = run.kept(_STOPPED)
            if stopped is not None:
                stopped = json.loads(stopped)
                if not summary_lib.goes_on(stopped, run.table, self._settings):
                    asked = max(stopped["total_rounds"], run.total_rounds)
                    run.stopped_early = {**stopped, "total_rounds": asked}
            run.say(f"Resuming after round {run.rounds_done} of {run.total_rounds}.")
            if changed := identity.other_code(directory.config or {}):
                run.say(changed)
            if not self.are_done:
                # Drops the evaluation of a round that was evaluated only as the last.
                run.table.keep_evaluations(run.rounds_per_evaluation, "evaluation")
                period = self._training.rounds_per_client_evaluation
                run.table.keep_evaluations(period, tuple(metrics.CLIENT_KINDS))
        directory.delete_results(and_analyses=not self.are_done)
        directory.write_metrics(run.table)

    def do_one(self) -> Row:
        """Trains, evaluates, records and saves a round; returns its row."""
        run = self._run
        began = time.monotonic()
        cohort = self._training.cohort(self._client_ids, run.rounds_done + 1)
        found = self._train(cohort, run.rounds_done + 1)
        row = self._row(found, time.monotonic() - began)
        run.rounds_done += 1
        row.update(self._evaluate(run.is_due))
        run.table.append(row)
        for callback in self._callbacks:
            reason = callback.on_round(run, run.table.row(-1))
            if reason and not run.stopped_early:
                total, by = run.total_rounds, type(callback).__name__
                run.stopped_early = {"reason": reason, "by": by, "total_rounds": total}
        if run.stopped_early:
            self._stop(row)
        if self._directory is not None:
            self._directory.write_metrics(run.table)
            if run.is_due(self._training.rounds_per_checkpoint) or run.stopped_early:
                self._save()
        self._progress.after_round(run.rounds_done, row)
        self._report(row, len(cohort))
        return run.table.row(run.rounds_done - 1)

    def _train(self, cohort: list[str], round_num: int) -> dict[str, Any]:
        """Trains a round; returns the metrics of the process by their columns."""
        clients, datasets, row = self._training.with_data(cohort, round_num)
        try:
            found = self._state.train(clients, datasets)
        except Exception as error:
            raise TrainingError(
                f"Round {round_num} failed: {type(error).__name__}: {error}"
            ) from error
        return {**metrics.round_metrics(found), **row}

    def _row(self, found: dict[str, Any], seconds: float) -> dict[str, Any]:
        """Returns a round's metrics; None for columns that are not measured yet."""
        evaluate = self._training.evaluate
        if found.get(metrics.NUM_EXAMPLES) == 0:
            # There is no mean, though the sums say 0: NaN if clients were rejected, an
            # empty cell if nobody trained.
            nothing = math.nan if metrics.rejected_clients(found) else None
            of_methods = [
                name
                for name in found
                if name.startswith(("training/", "server/")) and name.count("/") == 2
                if not name.endswith(metrics.NOT_FINITE)
            ]
            names = (metrics.TRAINING_LOSS, metrics.TRAINING_ACCURACY, *of_methods)
            found.update(dict.fromkeys(names, nothing))
        # The first row fixes the columns, also those that only later rounds fill.
        names = ["loss", "accuracy", *getattr(evaluate, "columns", ())]
        to_fill = [f"evaluation/{name}" for name in names[2:]]
        if evaluate is not None and self._state.has_all_clients_weights:
            to_fill += [f"evaluation_all_clients/{name}" for name in names]
        to_fill += getattr(self._training.client_evaluation, "columns", ())
        return {
            metrics.ROUND: self._run.rounds_done + 1,
            metrics.TRAINING_LOSS: found.pop(metrics.TRAINING_LOSS, None),
            metrics.TRAINING_ACCURACY: found.pop(metrics.TRAINING_ACCURACY, None),
            metrics.SECONDS: round(seconds, 3),
            metrics.MEMORY: _peak_megabytes(),
            **dict.fromkeys(to_fill),
            **found,
        }

    def _evaluate(self, is_due: Callable[[int], bool]) -> dict[str, Any]:
        """Evaluates the models, and each client, if that is due by its period."""
        row: dict[str, Any] = {}
        if is_due(self._run.rounds_per_evaluation):
            row.update(self._of_models())
        evaluate = self._training.client_evaluation
        if evaluate and is_due(self._training.rounds_per_client_evaluation):
            self._clients = evaluate(self._state, self._run.rounds_done)
            row.update(self._clients.row)
        return row

    def _of_models(self) -> dict[str, float]:
        """Evaluates the server's model, and the mean of all clients' if any."""
        evaluate = self._training.evaluate
        if evaluate is None or self._state.weights_of:
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

    def _stop(self, row: dict[str, Any]) -> None:
        """Ends the run after the last round, which is then evaluated in any case."""
        run = self._run
        found = self._evaluate(lambda period: not run.is_due(period))
        if not found:
            return
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
        parts = {
            process_state.STATE: process_state.written(self._state.server),
            _METRICS: run.table.text().encode("utf-8"),
        }
        if run.stopped_early:
            parts[_STOPPED] = json.dumps(run.stopped_early).encode()
        for callback in self._callbacks:
            kept = callback.keep()
            if taken := kept.keys() & parts.keys():
                raise ValueError(
                    f"{type(callback).__name__}.keep returns {min(taken)!r}, a name"
                    " that the checkpoint has already: take another one."
                )
            parts.update(kept)
        store, clients = self._directory.checkpoints, self._state.clients
        store.save(run.rounds_done, parts, clients)
        self._rounds_saved = run.rounds_done

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
        once: dict[str, str] = {}
        loss = row[metrics.TRAINING_LOSS]
        if loss is not None and not math.isfinite(loss):
            once["loss"] = (
                f"the training loss is {float(loss)}. A smaller client learning rate,"
                " or clipping of gradients, may help."
            )
        if row.get(metrics.ALL_ZERO):
            once["weights"] = "all clients have the weight 0, and weigh alike."
        for what in once.keys() - self._reported:
            say(f"Round {round_num}: {once[what]}")
        self._reported.update(once)

    def finish(self) -> RunResult:
        """Writes the results; `summary.json` last."""
        run = self._run
        weights = None if self._state.weights_of else self._state.weights()
        all_clients_weights = self._state.all_clients_weights()
        summary = summary_lib.summarize(run.table, self._settings)
        if run.stopped_early:
            summary[summary_lib.STOPPED_EARLY] = run.stopped_early
        if self._directory is not None and weights is not None:
            run.write_weights(directory_lib.WEIGHTS, weights)
            if all_clients_weights is not None:
                name = directory_lib.ALL_CLIENTS_WEIGHTS
                run.write_weights(name, all_clients_weights)
        drawn = callbacks_lib.accuracy_curves(run.table, self._settings)
        if self._directory is not None and drawn:
            picture = self._directory.path / directory_lib.PICTURE
            curves.write_curves(picture, drawn)
        if self._directory is not None and (points := callbacks_lib.drift(run.table)):
            picture = self._directory.path / directory_lib.DRIFT_PICTURE
            curves.write_points(picture, points, ".-")
        if self._clients is None:  # An earlier process may have measured them.
            evaluate = self._training.client_evaluation
            self._clients = evaluate and evaluate(self._state, run.rounds_done)
        if self._directory is not None and self._clients:
            self._clients.write(self._directory.path)
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
            self._weights if weights is None else build_model,
            drawn,
            self._clients.rows if self._clients else (),
        )


def run(training: Training) -> RunResult:
    """Does the rounds of a training; see `train` for the errors."""
    rounds = Rounds(training)
    with runtime.outside_programs(), rounds:
        for row in rounds.begin():
            rounds.show(row)
        while not rounds.are_done:
            row = rounds.do_one()
            rounds.show(row)
        return rounds.finish()


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
    return run(training)


def _peak_megabytes() -> int:
    """Returns the most memory that this process has had."""
    unit = 1 if sys.platform == "darwin" else 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return round(unit * peak / 1e6)


def _as_json(values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns values as they are read back from a JSON file."""
    return json.loads(json.dumps(dict(values)))
