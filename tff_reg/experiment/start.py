"""`tff_reg.run`: a run in a line of Python, also with the user's own data and model."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import types
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Optional, Union

from tff_reg import lazy
from tff_reg.experiment.config.run_config import RunConfig
from tff_reg.experiment.report import comparison, protocol
from tff_reg.experiment.rounds import (
    callbacks as callbacks_lib,
    live_curve,
    progress as progress_lib,
    training,
)
from tff_reg.experiment.rounds.callbacks import Callback
from tff_reg.experiment.rounds.result import RunResult
from tff_reg.experiment.rounds.runs import CheckedRun
from tff_reg.experiment.rounds.training import with_arguments_of
from tff_reg.settings import SettingError, settings_of

if TYPE_CHECKING:
    import keras
    import tf_keras

    from tff_reg import data

    Pair = tuple[Any, Any]
    ClientData = Union[Pair, Mapping[str, Pair], data.ArrayClientData]
    KerasModel = Union[keras.Model, tf_keras.Model]
    Model = Union[str, KerasModel, Callable[[int], KerasModel]]
else:
    # Settings are made from a class's annotations without importing these libraries.
    ClientData = Model = Pair = Any


@dataclasses.dataclass(frozen=True, kw_only=True)
class Arguments(RunConfig):
    """The settings of `experiment.RunConfig`, and the further arguments of `run`.

    Attributes:
      model: Name of a network, or a Keras model, which is trained as it is: its weights
        are the initial ones. Or a function that makes such a model for a seed.
      client_learning_rate: The clients' learning rate, or a function that returns it
        for a round (1, 2, ...).
      client_data: Training examples in place of a task's: a pair (x, y), which the
        settings `partition`, `num_clients` and so on split; a dict of pairs by the
        client's name; or a `data.ArrayClientData`. x are arrays [n, ...], y class
        numbers [n] from 0.
      test_data: Test examples (x, y).
      sample_fn: Function of (round_num, client_ids) that returns the ids of the clients
        that take part in a round; see `experiment.Training`.
      metrics: Further metrics by name; see `experiment.CentralEvaluation`.
      progress: As in `experiment.Training`.
      callbacks: As in `experiment.Training`.
      on_round: As in `experiment.Training`.
    """

    CALLED: ClassVar[str] = "tff_reg.run"

    process: Optional[str] = dataclasses.field(default=None, kw_only=False)
    model: Optional[Model] = None
    client_learning_rate: Union[float, Callable[[int], float], None] = None
    client_data: Optional[ClientData] = None
    test_data: Optional[Pair] = None
    sample_fn: Optional[training.SampleFn] = None
    metrics: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    progress: Optional[progress_lib.Progress] = None
    callbacks: Sequence[Callback] = ()
    on_round: Optional[Callable[[callbacks_lib.Row], Any]] = None

    def __post_init__(self):
        """Checks nothing: `RunConfig` checks the settings when `to_config` makes it."""

    def of_seed(self, seed: Optional[int]) -> Arguments:
        """Returns the arguments with the seed's model, if `model` is a function."""
        if not isinstance(self.model, (types.FunctionType, functools.partial)):
            return self
        try:
            inspect.signature(self.model).bind(0)
        except TypeError:
            why = "model is a function that takes no seed; write lambda seed: ..."
            raise TypeError(why) from None
        model = self.model(seed or 0)
        if not callable(model) and not isinstance(model, str):
            raise TypeError(
                f"model is a function that returned {model!r}; give a model, or a"
                " function of the seed that returns one."
            )
        return dataclasses.replace(self, model=model)

    def to_config(self) -> tuple[RunConfig, Any]:
        """Returns the request for the run, of the settings alone, and its tasks.

        They are the module `tasks`, or a replacement for it with the given data and
        model.
        """
        if not isinstance(self.partition, (str, type(None))):
            raise TypeError(
                "partition is the name of a scheme. For clients of your own give"
                " client_data={name: (x, y), ...}; with an array of each example's"
                " client: {c: (x[ids == c], y[ids == c]) for c in set(ids)}."
            )
        names = [each.name for each in settings_of(RunConfig)]
        values = {name: getattr(self, name) for name in names}
        model = self.model
        if model is not None and not isinstance(model, str):
            values["model"] = None
        else:
            model = None
        config = RunConfig(**values, strengths=self.strengths)
        given = {**config.given(), "grid": getattr(self, "grid", None)}
        if self.client_data is not None:
            own = lazy.tasks.own_data
            tasks = own.OwnData(self.client_data, self.test_data, model, given)
            return dataclasses.replace(config, task=own.NAME), tasks
        if self.test_data is not None:
            raise ValueError(
                "test_data is given without client_data; give both, or neither to run a"
                " task."
            )
        if model is not None:
            return config, lazy.tasks.own_data.OwnModel(model, given)
        return config, lazy.tasks


def carried_out(
    arguments: Arguments, checked: CheckedRun, progress: Optional[progress_lib.Progress]
) -> RunResult:
    """Carries out a checked run with the given callbacks, sampling and metrics."""
    if arguments.sample_fn is not None and checked.config.aggregator == "dp":
        raise SettingError(
            "aggregator",
            "dp",
            "its privacy guarantee needs clients that are drawn at random; leave"
            " sample_fn out.",
        )
    check_sampling(arguments, [checked.config.process])
    callbacks = [*arguments.callbacks]
    if progress is None and live_curve.is_possible():
        callbacks.append(live_curve.LiveCurve())
    return checked.run(
        progress=progress,
        callbacks=callbacks,
        on_round=arguments.on_round,
        sample_fn=arguments.sample_fn,
        metrics=arguments.metrics,
    )


def check_sampling(arguments: Arguments, processes: Sequence[str]) -> None:
    """Checks that no `sample_fn` is given with `central`."""
    if arguments.sample_fn is not None and "central" in processes:
        why = "it needs cohorts of a known size; leave sample_fn out."
        raise SettingError("process", "central", why)


@with_arguments_of(Arguments)
def run(arguments: Arguments) -> RunResult:
    """Trains a federated model: `bin/run` in a line of Python.

        result = tff_reg.run("fedalign", total_rounds=5)
        result.plot()

        result = tff_reg.run(
            process="fedalign", model=keras_model,
            client_data=(x_train, y_train), test_data=(x_test, y_test),
            partition="dirichlet_unbalanced", concentration=0.3, num_clients=10)

    The keyword arguments are the flags of `bin/run`, hyperparameters such as
    `fedalign_strength=0.3` among them, and the attributes of
    `experiment.start.Arguments`: the user's own data, model, metrics and sampling.
    Settings that are not given are those of the task, the same for every method;
    `settings_of="each"` takes those of the method's paper, as `bin/run` does. The
    header and `result.summary["settings_from"]` say whose they are.

    Without `output_dir` nothing is written, and a second call begins anew. With it the
    run is written there like one of `bin/run`, and the same call again resumes.

    In a notebook a figure shows the accuracies during the run, unless `progress` is
    given.

    Returns:
      The result: `model` (Keras, for examples as they were given), `metrics` (pandas),
      `plot()`, `rows`, `summary`, `weights`.

    Raises:
      SettingError: If the settings are invalid, or do not fit `output_dir` or this
        machine.
      TypeError: If an argument does not exist or is of another kind.
      ValueError: If the data are inconsistent, or do not fit the model or the method.
      TrainingError: If a round fails.
    """
    arguments = arguments.of_seed(arguments.seed)
    config, tasks = arguments.to_config()
    config = protocol.asked(config)
    checked = CheckedRun(config, tasks, writes=bool(config.output_dir))
    result = carried_out(arguments, checked, arguments.progress)
    if config.output_dir:
        comparison.report_run(checked.config.output_dir, "tff_reg.run, in Python")
    return result
