"""The rounds of a learning process, one after the other: `Rounds`.

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
import resource
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Optional, ParamSpec, TypeVar, Union

from tff_reg import curves, lazy, runtime, scores
from tff_reg.data import digests, keys, sampling
from tff_reg.experiment.config import identity
from tff_reg.experiment.rounds import (
    callbacks as callbacks_lib,
    directory as directory_lib,
    metrics,
    process_state,
    progress as progress_lib,
    summary as summary_lib,
    unequal_work,
)
from tff_reg.experiment.rounds.callbacks import Callback, Row
from tff_reg.experiment.rounds.result import RunResult
from tff_reg.runtime import devices
from tff_reg.settings import SettingError, near_names
from tff_reg.training import traffic

if TYPE_CHECKING:
    from tff_reg.experiment.rounds.client_evaluation import ClientResults
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


@dataclasses.dataclass(eq=False)
class Rounds(callbacks_lib.Run):
    """The rounds of a learning process, or the rest of them.

    With an `output_dir`, a run that was stopped (by Ctrl-C, a notebook's
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
        for the rounds done. `config.json` has its name and that of
        `client_dataset_fn`: a run is not resumed with one of another name.
      unequal_work: Who of a cohort drops out, does part of the work, is late or
        attacks; None if all do all. Needs whole-client data.
      seed: Seed of the sampling and of the clients' keys.
      evaluate: Function from `tff.learning.models.ModelWeights` to `loss` and
        `accuracy`, such as a `CentralEvaluation`; None to train without evaluation.
      score: The number of `evaluate` by which models are judged; None for the
        accuracy, or the loss of a model that is no classifier.
      lower_is_better: Whether a lower score is better; None if its name says it.
      rounds_per_evaluation: Number of rounds between two evaluations; the last round
        is always evaluated.
      rounds_per_checkpoint: Number of rounds between two checkpoints; there is also one
        after the last round, and when `on_round` raises.
      keep_best: Write the server's model after the round with the best test score
        to `best_weights.npz`; the first of several equal ones.
      client_dataset_fn: Function of a client's id and its key for the round (int64 [2])
        that returns its `tf.data.Dataset`; None for `client_data.whole_client_dataset`.
      output_dir: Directory to resume from and to write to, or its `RunDirectory`; None
        writes nothing.
      overwrite: Delete the run in `output_dir` first.
      settings: Further JSON values by name, which are recorded in `config.json` and
        compared with it when a run is resumed. What the process was built from is so,
        too (of objects of other packages, type and plain attributes); of a process
        that `tff_reg.training` did not build, its hyperparameters.
      weight_names: Names of the trainable and the other variables, for
        `final_weights.npz` and its like; None for `trainable/0` and so on.
      progress: Shows every round; None for a bar on a terminal or in a notebook, and
        lines elsewhere. `progress.Silence()` shows nothing.
      client_evaluation: Measures each client's accuracy, given this object; None
        measures none.
      rounds_per_client_evaluation: Number of rounds between two such evaluations, of
        which there is also one after the last round; 0: only that.
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
    score: Optional[str] = None
    lower_is_better: Optional[bool] = None
    rounds_per_evaluation: int = 1
    rounds_per_checkpoint: int = 1
    client_dataset_fn: Optional[ClientDatasetFn] = None
    output_dir: Union[str, pathlib.Path, directory_lib.RunDirectory, None] = None
    overwrite: bool = False
    client_sampling: str = "fixed"
    sample_fn: Optional[SampleFn] = None
    unequal_work: Optional[unequal_work.UnequalWork] = None
    keep_best: bool = False
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    weight_names: Optional[callbacks_lib.WeightNames] = None
    progress: Optional[progress_lib.Progress] = None
    client_evaluation: Optional[Callable[[Rounds], ClientResults]] = None
    rounds_per_client_evaluation: int = 0
    callbacks: Sequence[Callback] = ()
    on_round: Optional[Callable[[Row], Any]] = None

    def __post_init__(self):
        """Checks the arguments, reads the config in `output_dir`; writes nothing."""
        names = ("total_rounds", "clients_per_round")
        names += ("rounds_per_evaluation", "rounds_per_checkpoint")
        numbers = {name: getattr(self, name) for name in names}
        self._check(numbers)
        own = {
            "seed": self.seed,
            "client_sampling": self.client_sampling,
            "keep_best": self.keep_best,
            # Recorded even if None: a run that began without is not resumed with one.
            "sample_fn": name_of(self.sample_fn),
            "client_dataset_fn": name_of(self.client_dataset_fn),
            "metrics": list(getattr(self.evaluate, "metrics", ())),
            "score": self._name_of_score(),
            "lower_is_better": self.lower_is_better,
        }
        functions = {"sample_fn": self.sample_fn, "data": self.client_dataset_fn}
        functions |= getattr(self.evaluate, "metrics", {})
        own |= digests.of_functions(functions)
        if self.unequal_work:
            own |= self.unequal_work.recorded()
        built_from = getattr(self.process, "built_from", None) or {}
        settings = {**numbers, **built_from, **self.settings, **own}
        self.settings = _as_json(settings)
        self.judged_by = scores.of(self.settings)
        self.directory, where = None, self.output_dir
        if where is not None:
            is_one = isinstance(where, directory_lib.RunDirectory)
            self.directory = where if is_one else directory_lib.RunDirectory(where)
        self._progress = self.progress or progress_lib.for_this_output(
            self.total_rounds
        )
        self._progress.tested = metrics.tested(self.settings)
        self._progress.score = self.judged_by
        self.say = self._progress.say
        self.callbacks = [
            *([callbacks_lib.BestWeights()] if self.keep_best else []),
            callbacks_lib.TensorBoard(),
            *self.callbacks,
        ]
        self._client_ids = list(self.client_data.client_ids)
        now = {**numbers, "num_clients": len(self._client_ids)}
        for name, value in getattr(self.process, "assumed", {}).items():
            is_part = name == "total_rounds" and value and now[name] < value
            if value not in (None, now[name]) and not is_part:
                raise ValueError(
                    f"The process was built for {name}={value}, and here it is"
                    f" {now[name]}: build it with that number."
                )
        self.frozen = getattr(self.evaluate, "frozen", {})
        # Not every process has it, and it may be None.
        self._get_mean = getattr(self.process, "get_all_clients_weights", None)
        self._set_back()

    def _name_of_score(self) -> str:
        """Returns what models are judged by, which the evaluation measures."""
        known = getattr(self.evaluate, "columns", None)
        if known is None:
            return self.score or scores.DEFAULT
        default = scores.DEFAULT if scores.DEFAULT in known else scores.OF_OTHERS
        name = self.score or default
        if name not in known:
            why = f"models here have {', '.join(known)}; give one, or Keras's metric."
            raise SettingError("score", name, why)
        return name

    def _set_back(self) -> None:
        """Forgets the rounds of an earlier call of `run`."""
        self.rounds_done = self._rounds_saved = 0
        self.table, self.stopped_early = metrics.MetricsTable(), None
        self._client_states: Optional[process_state.ClientStates] = None
        self._clients: Optional[ClientResults] = None
        self._reported: set[str] = set()

    def _check(self, numbers: Mapping[str, int]) -> None:
        """Checks the arguments."""
        for name, number in numbers.items():
            if isinstance(number, bool) or not isinstance(number, int) or number < 1:
                raise ValueError(
                    f"{name} is {number!r}; it must be a whole number of at least 1."
                )
        for each in self.callbacks:
            if not isinstance(each, Callback):
                raise TypeError(
                    f"callbacks has a {type(each).__name__}; give objects of"
                    " experiment.Callback's sub-classes."
                )
            for name in {*dir(each)} - {*dir(Callback)}:
                if name.startswith("on_") and (near := near_names(name, dir(Callback))):
                    kind = type(each).__name__
                    raise TypeError(f"{kind}.{name} is no hook of a callback{near}.")
        if self.unequal_work and self.client_dataset_fn:
            raise ValueError(
                "unequal_work needs the clients' whole data: leave"
                " client_dataset_fn out."
            )
        if self.unequal_work and self.unequal_work.enough and self.sample_fn:
            raise ValueError(
                "over_select draws more clients than count, and sample_fn draws them"
                " itself: leave one out."
            )
        if self.client_sampling not in ("fixed", "independent"):
            raise ValueError(
                f"client_sampling is {self.client_sampling!r}; it must be fixed or"
                " independent."
            )

    def __enter__(self) -> Rounds:
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.close()
        if self.directory is not None:
            self.directory.close()

    def get_weights(self) -> Any:
        """Returns the server's `ModelWeights` after these rounds, arrays.

        Raises:
          ValueError: If clients share no model, as with `local`.
        """
        if not self.shares_model:
            how = "bin/export --run_dir=DIR --client=0 writes that of the first."
            raise ValueError(f"{process_state.NO_MODEL} {how}")
        return self.process.get_model_weights(self.state)

    @property
    def weights_of(self) -> Optional[Callable[[str], Any]]:
        """A function to the weights that a client is evaluated with, if it has own."""
        states = self._client_states
        own = getattr(self.process, "get_client_weights", None)
        if states is None or own is None:
            return None
        return lambda client_id: own(self.state, states.load([client_id])[0])

    @property
    def shares_model(self) -> bool:
        """Whether the server's model has all weights of the clients' models."""
        return getattr(self.process, "shares_model", True)

    def begin(self) -> list[Row]:
        """Takes the directory; returns the rows of the rounds of earlier processes."""
        directory, process = self.directory, self.process
        self._set_back()
        self.state = process.initialize()
        if hasattr(process, "initial_client_state"):
            self._client_states = process_state.ClientStates(
                process.initial_client_state(self.state),
                directory and directory.checkpoints,
            )
        if directory is not None:
            self._take(directory)
            self._restore(directory)
            if not self.is_done:
                functions = self.sample_fn, self.client_dataset_fn
                has_own_objects = any((*functions, self.settings["metrics"])) or (
                    getattr(self.process, "built_from", None) != {}
                    or self.settings.get("model") is None
                )
                directory.add_code(identity.code(self.settings, has_own_objects))
        for callback in self.callbacks:
            callback.on_start(self)
        self._progress.start(self.rounds_done)
        return self.rows

    def _take(self, directory: directory_lib.RunDirectory) -> None:
        """Checks that the run there, if any, is this one, and takes the directory."""
        parts: dict[str, str] = {}
        for each in (self.client_data, self.evaluate):
            parts.update(getattr(each, "digests", {}))
        process, added = self.process, digests.recorded(parts)
        get_hparams = getattr(process, "get_hparams", None)
        if get_hparams and getattr(process, "built_from", None) is None:
            hparams = get_hparams(self.state)
            added["process.hparams"] = digests.described(hparams)
        self.settings = {**self.settings, **added}
        if not self.overwrite:
            directory.check(self.settings)
        sent = traffic.bytes_per_client(process, self.settings.get("process", ""))
        config = {**self.settings, **identity.machine(), identity.TRAFFIC: sent}
        directory.begin(_as_json(config), overwrite=self.overwrite)

    def _restore(self, directory: directory_lib.RunDirectory) -> None:
        """Starts from the newest whole checkpoint, or from the beginning."""
        self.checkpoint = directory.checkpoints.latest(self.say)
        if self.checkpoint is not None:
            if self._client_states is not None:
                self._client_states.names = {**self.checkpoint.clients}
            path = self.checkpoint.part(process_state.STATE)
            self.state = process_state.read_state(path, like=self.state)
            text = self.checkpoint.part(_METRICS).read_text("utf-8")
            self.table = metrics.MetricsTable.parse(text)
            self.rounds_done = self._rounds_saved = self.checkpoint.round_num
            stopped = self.kept(_STOPPED)
            if stopped is not None:
                stopped = json.loads(stopped)
                if not summary_lib.goes_on(stopped, self.table, self.settings):
                    asked = max(stopped["total_rounds"], self.total_rounds)
                    self.stopped_early = {**stopped, "total_rounds": asked}
            self.say(f"Resuming after round {self.rounds_done} of {self.total_rounds}.")
            if changed := identity.other_code(directory.config or {}):
                self.say(changed)
            if not self.is_done:
                # Drops the evaluation of a round that was evaluated only as the last.
                self.table.keep_evaluations(self.rounds_per_evaluation, "evaluation")
                period = self.rounds_per_client_evaluation
                self.table.keep_evaluations(period, tuple(metrics.CLIENT_KINDS))
        directory.delete_results(and_analyses=not self.is_done)
        directory.write_metrics(self.table)

    def do_one(self) -> Row:
        """Trains, evaluates, records and saves a round; returns its row."""
        began = time.monotonic()
        cohort = self._cohort(self.rounds_done + 1)
        found = self._train(cohort, self.rounds_done + 1)
        row = self._row(found, time.monotonic() - began)
        self.rounds_done += 1
        row.update(self._evaluate(self.is_due))
        self.table.append(row)
        for callback in self.callbacks:
            reason = callback.on_round(self, self.table.row(-1))
            if reason and not self.stopped_early:
                total, by = self.total_rounds, type(callback).__name__
                self.stopped_early = {"reason": reason, "by": by, "total_rounds": total}
        if self.stopped_early:
            self._stop(row)
        if self.directory is not None:
            self.directory.write_metrics(self.table)
            if self.is_due(self.rounds_per_checkpoint) or self.stopped_early:
                self._save()
        self._progress.after_round(self.rounds_done, row)
        self._report(row, len(cohort))
        return self.table.row(self.rounds_done - 1)

    def _cohort(self, round_num: int) -> list[str]:
        """Returns the clients that are drawn for a round."""
        names, unequal = self._client_ids, self.unequal_work
        if self.sample_fn is not None:
            return sampling.sample_by(self.sample_fn, names, round_num=round_num)
        drawn = {"seed": self.seed, "round_num": round_num}
        if self.client_sampling == "independent":
            share = self.clients_per_round / len(names)
            return sampling.sample_clients_bernoulli(names, share, **drawn)
        count = unequal.num_drawn if unequal else self.clients_per_round
        return sampling.sample_clients(names, count, **drawn)

    def _train(self, cohort: Sequence[str], round_num: int) -> dict[str, Any]:
        """Trains a round; returns what is measured by the columns of `metrics.csv`.

        If nobody of the cohort is left, the first client trains on no example: the
        process counts a round in which nobody trains.
        """
        unequal = self.unequal_work
        there = unequal and unequal.attendance(cohort, round_num)
        clients = (there.clients or cohort[:1]) if there else cohort
        make = self.client_dataset_fn or self.client_data.whole_client_dataset
        datasets = []
        for name in clients:
            key = keys.client_key(self.seed, round_num, name)
            datasets.append(make(name, key, **(there.told[name] if there else {})))
        if there and not there.clients:
            datasets = [*map(unequal_work.empty, datasets)]
        try:
            states = self._client_states
            more = [] if states is None else [states.load(clients)]
            output = self.process.next(self.state, datasets, *more)
            self.state = output.state
            if states is not None:
                states.store(clients, output.client_states)
        except Exception as error:
            raise TrainingError(
                f"Round {round_num} failed: {type(error).__name__}: {error}"
            ) from error
        return {**metrics.round_metrics(output.metrics), **(there.row if there else {})}

    def _row(self, found: dict[str, Any], seconds: float) -> dict[str, Any]:
        """Returns a round's metrics; None for columns that are not measured yet."""
        evaluate = self.evaluate
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
            names = (metrics.TRAINING_LOSS, self.judged_by.training, *of_methods)
            found.update(dict.fromkeys(names, nothing))
        # The first row fixes the columns, also those that only later rounds fill.
        names = getattr(evaluate, "columns", ("loss", self.judged_by.name))
        to_fill = [f"evaluation/{name}" for name in names if evaluate is not None]
        if evaluate is not None and self._get_mean is not None:
            to_fill += [f"evaluation_all_clients/{name}" for name in names]
        to_fill += getattr(self.client_evaluation, "columns", ())
        return {
            metrics.ROUND: self.rounds_done + 1,
            **dict.fromkeys((metrics.TRAINING_LOSS, self.judged_by.training)),
            **dict.fromkeys((metrics.EVALUATION_LOSS, self.judged_by.server)),
            metrics.SECONDS: round(seconds, 3),
            metrics.MEMORY: _peak_megabytes(),
            **devices.memory(metrics.GPU_MEMORY),
            **dict.fromkeys(to_fill),
            **found,
        }

    def _evaluate(self, is_due: Callable[[int], bool]) -> dict[str, Any]:
        """Evaluates the models, and each client, if that is due by its period."""
        row: dict[str, Any] = {}
        if is_due(self.rounds_per_evaluation):
            row.update(self._of_models())
        evaluate = self.client_evaluation
        if evaluate and is_due(self.rounds_per_client_evaluation):
            self._clients = evaluate(self)
            row.update(self._clients.row)
        return row

    def _of_models(self) -> dict[str, float]:
        """Evaluates the server's model, and the mean of all clients' if any."""
        evaluate = self.evaluate
        if evaluate is None or not self.shares_model:
            return {}
        try:
            results = evaluate(self.get_weights())
            row = {f"evaluation/{name}": value for name, value in results.items()}
            if self._get_mean is not None:
                results = evaluate(self._get_mean(self.state))
                for name, value in results.items():
                    row[f"evaluation_all_clients/{name}"] = value
            return row
        except Exception as error:
            raise TrainingError(
                f"The evaluation after round {self.rounds_done} failed:"
                f" {type(error).__name__}: {error}"
            ) from error

    def _stop(self, row: dict[str, Any]) -> None:
        """Ends the run after the last round, which is then evaluated in any case."""
        found = self._evaluate(lambda period: not self.is_due(period))
        if not found:
            return
        row.update(found)
        self.table.replace_last(row)
        for callback in self.callbacks:
            if isinstance(callback, callbacks_lib.OF_EVALUATIONS):
                callback.on_round(self, {metrics.ROUND: self.rounds_done, **found})

    def show(self, row: Row) -> None:
        """Gives a row to `on_round`; if that raises, the rounds done are saved."""
        if self.on_round is None:
            return
        try:
            self.on_round(row)
        except BaseException:
            self._save()
            raise

    def _save(self) -> None:
        """Commits a checkpoint, if there is none of this round."""
        if self.directory is None or self._rounds_saved == self.rounds_done:
            return
        parts = {
            process_state.STATE: process_state.written(self.state),
            _METRICS: self.table.text().encode("utf-8"),
        }
        if self.stopped_early:
            parts[_STOPPED] = json.dumps(self.stopped_early).encode()
        for callback in self.callbacks:
            kept = callback.keep()
            if taken := kept.keys() & parts.keys():
                raise ValueError(
                    f"{type(callback).__name__}.keep returns {min(taken)!r}, a name"
                    " that the checkpoint has already: take another one."
                )
            parts.update(kept)
        clients = {} if self._client_states is None else self._client_states.names
        self.directory.checkpoints.save(self.rounds_done, parts, clients)
        self._rounds_saved = self.rounds_done

    def _report(self, row: Mapping[str, Any], cohort_size: int) -> None:
        say = self.say
        round_num = self.rounds_done
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
        if self.stopped_early:
            why = self.stopped_early["reason"]
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
        weights = self.get_weights() if self.shares_model else None
        all_clients_weights = self._get_mean and self._get_mean(self.state)
        summary = summary_lib.summarize(self.table, self.settings)
        if self.stopped_early:
            summary[summary_lib.STOPPED_EARLY] = self.stopped_early
        if self.directory is not None and weights is not None:
            self.write_weights(directory_lib.WEIGHTS, weights)
            if all_clients_weights is not None:
                name = directory_lib.ALL_CLIENTS_WEIGHTS
                self.write_weights(name, all_clients_weights)
        drawn = callbacks_lib.score_curves(self.table, self.settings)
        if self.directory is not None and drawn:
            picture = self.directory.path / directory_lib.PICTURE
            curves.write_curves(picture, drawn, score=self.judged_by)
        if self.directory is not None and (points := callbacks_lib.drift(self.table)):
            picture = self.directory.path / directory_lib.DRIFT_PICTURE
            curves.write_points(picture, points, ".-")
        if self._clients is None:  # An earlier process may have measured them.
            evaluate = self.client_evaluation
            self._clients = evaluate and evaluate(self)
        if self.directory is not None and self._clients:
            self._clients.write(self.directory.path)
        for callback in self.callbacks:
            callback.on_end(self)
        if self.directory is not None:
            self.directory.write_summary(summary)
        evaluate = self.evaluate
        build_model = functools.partial(
            trained_model.of_process,
            self.process,
            weights,
            getattr(evaluate, "preprocess_fn", None),
            getattr(evaluate, "examples_spec", None),
        )
        return RunResult(
            self.state,
            weights,
            all_clients_weights,
            self.rows,
            summary,
            self.get_weights if weights is None else build_model,
            drawn,
            self._clients.rows if self._clients else (),
            self.judged_by,
        )

    def run(self) -> RunResult:
        """Does the rounds; see `train` for the errors."""
        with runtime.outside_programs(), self:
            for row in self.begin():
                self.show(row)
            while not self.is_done:
                self.show(self.do_one())
            return self.finish()


def with_arguments_of(
    kind: Callable[P, A],
) -> Callable[[Callable[[A], R]], Callable[P, R]]:
    """Decorator that gives a function of a dataclass the dataclass's arguments."""

    def decorate(function: Callable[[A], R]) -> Callable[P, R]:
        def called(*args: P.args, **kwargs: P.kwargs) -> R:
            make: Any = kind
            gather: Callable[..., Any] = getattr(kind, "gathered", dict)
            fields = (f.name for f in dataclasses.fields(make) if not f.kw_only)
            named = dict(zip(fields, args))
            if len(named) < len(args) or named.keys() & kwargs.keys():
                named = {}  # Python will refuse them.
            given = gather({**named, **kwargs})
            try:
                arguments = make(*(() if named else args), **given)
            except TypeError as error:  # Python's own names the class.
                name = f"{getattr(kind, 'CALLED', function.__name__)}()"
                text = str(error).replace(f"{make.__qualname__}.__init__()", name)
                raise TypeError(text) from None
            return function(arguments)

        functools.update_wrapper(called, function)
        # `help` shows the arguments of `kind`.
        vars(called)["__wrapped__"] = kind
        return called

    return decorate


@with_arguments_of(Rounds)
def train(rounds: Rounds) -> RunResult:
    """Runs the rounds of a learning process, or the rest of them.

        result = experiment.train(
            process, client_data, total_rounds=20, clients_per_round=4)

    The arguments are those of `Rounds`.

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
    return rounds.run()


def _peak_megabytes() -> int:
    """Returns the most memory that this process has had."""
    unit = 1 if sys.platform == "darwin" else 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return round(unit * peak / 1e6)


def _as_json(values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns values as they are read back from a JSON file."""
    return json.loads(json.dumps(dict(values)))
