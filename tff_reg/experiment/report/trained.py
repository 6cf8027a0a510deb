"""A run read back: its task, its model with the trained weights, its clients' models.

Nothing is written to the run's directory.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import types
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Optional

from tff_reg import data, files, lazy, runtime
from tff_reg.data import digests
from tff_reg.experiment.config import identity
from tff_reg.experiment.config.run_config import ResolvedConfig
from tff_reg.experiment.config.task_settings import OWN_DATA
from tff_reg.experiment.rounds import (
    checkpoints,
    directory as directory_lib,
    evaluation,
    process_state,
    runs,
)
from tff_reg.lazy import np, tf, tff
from tff_reg.methods import all_clients, catalogue
from tff_reg.settings import SettingError

schedules = lazy.module("tff_reg.training.schedules")

if TYPE_CHECKING:
    from tff_reg.models.learning_model import LearningModel

# The kinds of a run's weights: the server's last, the mean of all clients' last models,
# and the server's after the round with the best test accuracy.
WEIGHTS = ("server", "all_clients", "best")
_GLOBAL = "global_model_weights"
_ALL_CLIENTS = f"finalizer/memory/{all_clients.MEAN}"
# State of the run's aggregator, which is not used to train clients here.
_OF_AGGREGATORS = ("aggregator/",)
_END = "weights_at_the_end"


class TrainedRunError(ValueError):
    """Raised when a directory has no weights that can be read; says why."""


@dataclasses.dataclass(frozen=True)
class TrainedRun:
    """A run with the state of one of its checkpoints.

    Attributes:
      directory: The run's directory.
      config: The run's settings.
      task: Its task, with its data.
      round_num: Rounds done at the checkpoint; the weights `best` are of one of them.
      checkpoint: The checkpoint.
      kind: The kind of `weights`, one of `WEIGHTS`.
      client: The client whose own `weights` they are; None for none.
    """

    directory: directory_lib.RunDirectory
    config: ResolvedConfig
    task: Any
    round_num: int
    checkpoint: checkpoints.Checkpoint
    kind: str = "server"
    client: Optional[str] = None

    @property
    def model_fn(self) -> Callable[[], LearningModel]:
        """Makes the model that the method trains."""
        return runs.build_model_fn(self.config, self.task)

    @functools.cached_property
    def digest(self) -> str:
        """A digest of the weights of the `kind`, and of the code that analyses them."""
        is_best = self.kind == "best"
        name = directory_lib.BEST_WEIGHTS if is_best else process_state.STATE
        of_weights = self.checkpoint.parts.get(name)
        return f"{of_weights}, analysis {identity.of_package('tff_reg.analysis')}"

    @functools.cached_property
    def weights(self) -> tff.learning.models.ModelWeights:
        """The weights of the `kind`, or the client's own, arrays."""
        server = self._server_weights
        if self.client is not None:
            return self._weights_of(self.client)
        if self.kind == "best":
            if directory_lib.BEST_WEIGHTS not in self.checkpoint.parts:
                raise TrainedRunError(
                    f"{self.checkpoint.path} has no {directory_lib.BEST_WEIGHTS}; a run"
                    " with keep_best writes it."
                )
            path = self.checkpoint.part(directory_lib.BEST_WEIGHTS)
            with np.load(path, allow_pickle=False) as stored:
                values = iter([stored[name] for name in stored.files])
            # Frozen weights come after these.
            return tf.nest.map_structure(lambda _: next(values), server)
        if self.kind == "all_clients":
            mean = self._stored(_ALL_CLIENTS)
            if not mean:
                raise TrainedRunError(
                    f"{self.directory.path} has no mean of all clients' last models; a"
                    " run with averages_all_clients has."
                )
            return tff.learning.models.ModelWeights(mean, server.non_trainable)
        return server

    @functools.cached_property
    def _server_weights(self) -> tff.learning.models.ModelWeights:
        kinds = ("trainable", "non_trainable")
        return tff.learning.models.ModelWeights(
            *(self._stored(f"{_GLOBAL}/{kind}") for kind in kinds)
        )

    def _weights_of(self, client: str) -> tff.learning.models.ModelWeights:
        self.check_client_states()
        with runtime.running("in_process"):
            process, state, states = self._process(self.config, self.task)
            return process.get_client_weights(state, states.load([client])[0])

    def _process(self, config: ResolvedConfig, task: Any) -> tuple[Any, Any, Any]:
        """Returns the run's process, its state, and its clients' states, if any."""
        process = runs.build_process(config, task, model_aggregator=None)
        initial = process.initialize()
        state = process_state.read_state(
            self.checkpoint.part(process_state.STATE),
            like=initial,
            but=_OF_AGGREGATORS,
        )
        if not hasattr(process, "initial_client_state"):
            return process, state, None
        states = process_state.ClientStates(
            process.initial_client_state(initial), self.directory.checkpoints
        )
        states.names = {**self.checkpoint.clients}
        return process, state, states

    def _stored(self, name: str) -> list[Any]:
        """Returns a list of arrays in the checkpoint's state; empty if it has none."""
        with np.load(
            self.checkpoint.part(process_state.STATE), allow_pickle=False
        ) as stored:
            count = sum(each.startswith(f"{name}/") for each in stored.files)
            return [stored[f"{name}/{index}"] for index in range(count)]

    def model(self, *, is_exact: bool = False) -> LearningModel:
        """Makes a model with the weights of the `kind`.

        If it `is_exact`, it computes in the weights' data type, whatever the run's
        `mixed_precision`.
        """
        model = self.model_fn()
        self.weights.assign_weights_to(model)
        if is_exact:
            model.network.compute_in(model.trainable_variables[0].dtype)
        return model

    def client_examples(self, client_id: str) -> tuple[np.ndarray, np.ndarray]:
        """Returns a client's training examples, normalised and not augmented."""
        examples = self.task.client_data.client_examples(client_id)
        x = np.asarray(self.task.normalize_fn(examples["x"]))
        return x, np.asarray(examples["y"])

    def check_client_states(self) -> None:
        """Checks that the clients' states are those of the checkpoint."""
        try:
            self.checkpoint.verify()
        except checkpoints.CheckpointDamagedError as error:
            raise TrainedRunError(
                f"{self.directory.path}: {error}, so clients cannot be trained; with"
                " clients=0 only the server's model is looked at."
            ) from error

    def train_clients(self, client_ids: Sequence[str]) -> tuple[dict[str, Any], ...]:
        """Trains clients for one more round.

        Each client trains alone from the checkpoint's server model, whatever the
        `kind`, with the run's process, the last round's learning rate and the key of
        the next round. Returns the weights with which each began, and its new ones.
        """
        self.check_client_states()
        task = types.SimpleNamespace(
            model_fn=_reporting_weights(self.task.model_fn),
            client_data=self.task.client_data,
            augment_fn=self.task.augment_fn,
        )
        # The state has the next round's number, but its rate is that of the last one.
        factor = schedules.of(self.config)(tf.constant(max(0, self.round_num - 1)))
        rate = float(factor) * (self.config.client_learning_rate or 0.0)
        config = dataclasses.replace(
            self.config,
            learning_rate_schedule="listed",
            client_learning_rates=(rate,),
            warmup_rounds=0,
            straggler_epochs=(),  # Each does all of its work, and is honest.
            attack_share=0.0,
        )
        process, state, states = self._process(config, task)

        def end(client_id: str, dataset: tf.data.Dataset):
            arguments = [] if states is None else [states.load([client_id])]
            metrics = process.next(state, [dataset], *arguments).metrics
            metrics = metrics["client_work"]["train"]
            if metrics["rejected_clients"]:
                raise TrainedRunError(
                    f"The training of client {client_id} gave numbers that are not"
                    " finite."
                )
            values = [np.asarray(value) for value in metrics[_END]]
            count = len(self._server_weights.trainable)
            return tff.learning.models.ModelWeights(values[:count], values[count:])

        def dataset(client_id: str):
            key = data.client_key(self.config.seed, self.round_num + 1, client_id)
            return self.task.client_data.whole_client_dataset(client_id, key)

        # Without examples a client ends where it begins.
        began = {name: end(name, dataset(name).take(0)) for name in client_ids}
        return began, {name: end(name, dataset(name)) for name in client_ids}


def _reporting_weights(model_fn: Callable[[], Any]) -> Callable[[], Any]:
    """Wraps a `model_fn`: its models report their final weights as a metric."""

    def reporting_model_fn():
        model = model_fn()
        report = model.report_local_unfinalized_metrics
        finalizers = model.metric_finalizers

        def report_with_weights():
            weights = [*model.trainable_variables, *model.non_trainable_variables]
            return collections.OrderedDict(
                report(), **{_END: [variable.read_value() for variable in weights]}
            )

        model.report_local_unfinalized_metrics = report_with_weights
        model.metric_finalizers = lambda: collections.OrderedDict(
            finalizers(), **{_END: lambda weights: weights}
        )
        return model

    return reporting_model_fn


def load(
    path: files.PathLike,
    *,
    tasks: Any = lazy.tasks,
    round_num: Optional[int] = None,
    weights: str = "server",
    client: Optional[str] = None,
) -> TrainedRun:
    """Reads a run; of one whose clients have own weights, those of a `client`."""
    directory, checkpoint = _whole_checkpoint(path, round_num, weights, client)
    if "process" not in (directory.config or {}):
        raise TrainedRunError(
            f"{path} was made by experiment.train, which knows no task: use its result"
            " (result.model.save)."
        )
    config = ResolvedConfig.load(directory.config or {})
    check_is_whole(config, path)
    if client is not None:
        _check_client(client, config.process, weights)
    task = runs.build_task(config, tasks)
    if client is not None:
        client = _client_of(task.client_data.client_ids, client)
    # Training examples are analysed, too, so all must be those of the run.
    x, y = task.test_arrays()
    parts = evaluation.subsets_of(task, config.imbalance_factor is not None)
    tested = digests.of_tests(x, y, parts)
    of_clients = getattr(task.client_data, "digests", {})
    recorded = digests.recorded({**of_clients, **tested})
    directory.check(recorded | getattr(task.model_fn, "digests", {}))
    found = TrainedRun(
        directory, config, task, checkpoint.round_num, checkpoint, weights, client
    )
    # Missing weights are reported before anything is computed.
    _ = found.weights
    return found


def _check_client(client: str, process: str, weights: str) -> None:
    """Checks that a client may have a model of its own, which no other is beside."""
    if not catalogue.has_own_models(process):
        why = f"clients of {process} have no model of their own."
        raise SettingError("client", client, why)
    if weights != "server":
        why = "a client's own model is that of the last round: leave it out."
        raise SettingError("weights", weights, why)


def _client_of(names: Sequence[str], client: str) -> str:
    """Returns the client of a name, or of a number from 0."""
    if client in names:
        return client
    if client.isdecimal() and int(client) < len(names):
        return names[int(client)]
    why = (
        f"the run has the clients {names[0]} to {names[-1]}, or 0 to {len(names) - 1}."
    )
    raise SettingError("client", client, why)


def check_is_whole(config: ResolvedConfig, path: files.PathLike) -> None:
    """Raises a TrainedRunError for a run on data or a model given from Python."""
    if config.task == OWN_DATA or config.model is None:
        what = "arrays" if config.task == OWN_DATA else "a model"
        raise TrainedRunError(
            f"{path} was trained with {what} from Python, which are not in it: call"
            " tff_reg.run as before, and use its result (result.model.save)."
        )


def _whole_checkpoint(
    path: files.PathLike,
    round_num: Optional[int],
    weights: str,
    client: Optional[str],
) -> tuple[directory_lib.RunDirectory, checkpoints.Checkpoint]:
    """Returns a run's directory and checkpoint; arguments and errors as for `load`."""
    if weights not in WEIGHTS:
        why = f"choose one of {', '.join(WEIGHTS)}."
        raise SettingError("weights", weights, why)
    try:
        directory = directory_lib.RunDirectory(path)
    except directory_lib.DirectoryError as error:
        why = "there is no run with a readable config.json."
        raise directory_lib.DirectoryError("run_dir", path, why) from error
    if directory.config is None:
        raise TrainedRunError(f"{path} has no run; give the directory of one.")
    process = directory.config.get("process")
    if process and client is None and not catalogue.shares_model(process):
        raise TrainedRunError(
            f"{path}: {process_state.NO_MODEL} Name one (bin/export --client=0)."
        )
    problems = []
    found = directory.checkpoints.all()
    wanted = [each for each in found if round_num in (None, each.round_num)]
    if found and not wanted:
        raise TrainedRunError(
            f"{path} has no checkpoint of round {round_num}, only of"
            f" {', '.join(str(each.round_num) for each in found)}."
        )
    for checkpoint in reversed(wanted):
        try:
            checkpoint.verify(with_clients=False)
            return directory, checkpoint
        except checkpoints.CheckpointDamagedError as error:
            problems.append(f"that of round {checkpoint.round_num}: {error}")
    why = f" ({'; '.join(problems)})" if problems else ""
    raise TrainedRunError(f"{path} has no whole checkpoint{why}.")
