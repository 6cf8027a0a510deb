"""Functions that carry out a run from its config, for commands and Python."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Optional

from tff_reg import interruption, lazy, runtime, training
from tff_reg.experiment.config.run_config import ResolvedConfig, RunConfig
from tff_reg.experiment.config.runtime_settings import RuntimeSettings
from tff_reg.experiment.config.task_settings import TaskSettings
from tff_reg.experiment.rounds import (
    description,
    evaluation as evaluation_lib,
    metrics as metrics_lib,
    progress as progress_lib,
    recorded,
    round_work,
    summary as summary_lib,
)
from tff_reg.experiment.rounds.callbacks import Callback, Row
from tff_reg.experiment.rounds.checked import CheckedRun
from tff_reg.experiment.rounds.loop import RunResult
from tff_reg.experiment.rounds.training import Training
from tff_reg.lazy import np
from tff_reg.settings import SettingError

if TYPE_CHECKING:
    from tff_reg.models.learning_model import LearningModel
    from tff_reg.training.composition import Process

OnRound = Callable[[Row], Any]


def run(
    config: RunConfig,
    *,
    tasks: Any = lazy.tasks,
    progress: Optional[progress_lib.Progress] = None,
    callbacks: Sequence[Callback] = (),
    on_round: Optional[OnRound] = None,
    stop: Optional[interruption.Interruption] = None,
) -> RunResult:
    """Carries out a run, or the rest of it.

        experiment.run(experiment.RunConfig(process="fedalign", total_rounds=5))

    Args:
      config: The request for the run.
      tasks: The module `tasks`, or an object with its functions.
      progress: As for `Training`; it also shows a description of the run at the start.
      callbacks: As for `Training`.
      on_round: As for `Training`.
      stop: Gets the message and the clean-up for a signal that ends the process.

    Returns:
      The result.

    Raises:
      SettingError: If the config is invalid, or does not fit its directory or this
        machine.
      ValueError: If its data are missing, or the method does not fit the model.
      StateMismatchError: If the state in its directory does not fit its process.
      TrainingError: If a round fails.
    """
    return carry_out(
        CheckedRun(config, tasks),
        progress=progress,
        callbacks=callbacks,
        on_round=on_round,
        stop=stop,
    )


def carry_out(
    checked: CheckedRun,
    *,
    progress: Optional[progress_lib.Progress] = None,
    stop: Optional[interruption.Interruption] = None,
    **of_training: Any,
) -> RunResult:
    """Carries out a checked run; more arguments as for `Training`."""
    stop = stop or interruption.Interruption()
    config = checked.config
    checked.check_ready()
    if checked.directory is not None:
        stop.say(functools.partial(description.resumption, config))
    examples = _read(config, checked.tasks)
    with _running(config):
        # Not before the runtime runs: `shutdown` would wait for its start.
        stop.before_exit(runtime.shutdown)
        progress = progress or progress_lib.for_this_output(config.total_rounds)
        stop.before_exit(progress.close)
        return prepare_checked(
            checked, progress, examples=examples, **of_training
        ).run()


def check(config: RunConfig, tasks: Any = lazy.tasks) -> ResolvedConfig:
    """Checks that a run is possible, without loading TensorFlow.

    The arguments are as for `run`.

    Returns:
      The resolved config.

    Raises:
      SettingError: If the config is invalid, or does not fit its directory.
      TypeError: If it is no `RunConfig`.
      ValueError: If its data are missing.
    """
    checked = CheckedRun(config, tasks)
    checked.check_ready()
    return checked.config


def finished(config: RunConfig, tasks: Any = lazy.tasks) -> Optional[dict[str, Any]]:
    """Returns the summary of a run, if it is finished.

    Args:
      config: The request for the run. Its rounds and targets are written to
        `summary.json`, if that has others.
      tasks: The module `tasks`, or an object with its functions.

    Returns:
      The summary; None if the run is not finished.

    Raises:
      DirectoryError: If its directory holds something else, or another run, or one on
        other data.
    """
    return summary_of(CheckedRun(config, tasks))


def summary_of(checked: CheckedRun) -> Optional[dict[str, Any]]:
    """Returns the result of `finished` for a checked run."""
    if checked.summary() is None:
        return None
    assert checked.directory is not None
    return summary_lib.refresh(checked.directory, checked.values)


def build_task(
    config: ResolvedConfig, tasks: Any = lazy.tasks, **arguments: Any
) -> Any:
    """Builds the task of a run, with its data; see `tasks.build` for the errors."""
    return tasks.build(**config.part(TaskSettings), **arguments)


def _read(config: ResolvedConfig, tasks: Any) -> Any:
    """Reads a run's examples if that needs no TensorFlow: errors come at once."""
    is_given = config.data_dir is not None or config.synthetic_data
    if not hasattr(tasks, "read") or not (
        is_given or tasks.defaults(config.task).tfds_name is None
    ):
        return None
    return tasks.read(**config.part(TaskSettings))


def _client_data(build: Callable[..., Any], settings: dict[str, Any]) -> Any:
    """Loads the client data of a task on another machine."""
    return build(**settings).client_data


def build_model_fn(config: ResolvedConfig, task: Any) -> Callable[[], LearningModel]:
    """Returns the function that makes the model that the run's method trains."""
    return training.adapt_model_fn(task.model_fn, config.methods)


def build_process(config: ResolvedConfig, task: Any, **arguments: Any) -> Process:
    """Builds the process of a run; more arguments as for `build_from_settings`."""
    return training.build_from_settings(
        config.process,
        task.model_fn,
        config,
        config.strengths,
        mean_examples=float(np.mean(task.client_data.client_sizes)),
        client_preprocess_fn=task.augment_fn,
        example_dtype=task.client_data.element_type_structure["x"].dtype.name,
        debug_eager=config.debug_eager,
        **arguments,
    )


def prepare(
    config: RunConfig,
    *,
    tasks: Any = lazy.tasks,
    progress: Optional[progress_lib.Progress] = None,
) -> Training:
    """Loads the data of a run and builds its process, for the runtime in use.

    The arguments are as for `run`.

    Returns:
      The `Training`, whose rounds are still to be done.

    Raises:
      SettingError: If the config is invalid, or no client has enough examples for a
        batch.
      ValueError: If its data are missing, or the method does not fit the model.
    """
    checked = CheckedRun(config, tasks)
    progress = progress or progress_lib.for_this_output(checked.config.total_rounds)
    return prepare_checked(checked, progress)


def prepare_checked(
    checked: CheckedRun,
    progress: progress_lib.Progress,
    *,
    examples: Any = None,
    metrics: Mapping[str, Any] = {},
    **of_training: Any,
) -> Training:
    """Does what `prepare` does for a checked run; `examples` may be read already.

    `metrics` are those of the evaluation, more arguments those of `Training`.
    """
    config = checked.config
    progress.tested = metrics_lib.tested(checked.values)
    where = runtime.describe()
    progress.say(where[0].upper() + where[1:])
    task = _task(config, checked.tasks, examples)
    x_test, y_test = task.test_arrays()
    model_fn, normalize_fn = build_model_fn(config, task), task.normalize_fn
    evaluation = evaluation_lib.CentralEvaluation(
        model_fn, x_test, y_test, preprocess_fn=normalize_fn, metrics=metrics
    )
    header = description.header(
        config,
        num_train=sum(task.client_data.client_sizes),
        num_test=len(y_test),
        num_weights=evaluation.num_weights,
        sample_fn=round_work.name_of(of_training.get("sample_fn")),
    )
    title, subtitle = description.plot_texts(config)
    for line in [*header, *_remarks(config, task.client_data, y_test)]:
        progress.say(line)
    return Training(
        _process(config, task),
        task.client_data,
        total_rounds=config.total_rounds,
        clients_per_round=config.clients_per_round,
        client_sampling=config.client_sampling,
        seed=config.seed,
        evaluate=evaluation,
        rounds_per_evaluation=config.rounds_per_evaluation,
        rounds_per_checkpoint=config.rounds_per_checkpoint,
        keep_best=config.keep_best,
        output_dir=checked.directory,
        overwrite=config.overwrite,
        settings={**checked.values, **recorded.of(config, task)},
        title=title,
        subtitle=subtitle,
        weight_names=evaluation.weight_names,
        progress=progress,
        **of_training,
    )


def _remarks(config: ResolvedConfig, clients: Any, y_test: Any) -> Iterator[str]:
    """Yields warnings of clients that never train, and of classes without a client."""
    sizes = clients.client_sizes
    idle = sum(size < config.batch_size for size in sizes)
    if config.drop_remainder and idle:
        yield (
            f"{idle} of {len(sizes)} clients never train: they have fewer examples than"
            f" batch_size={config.batch_size}, and drop_remainder leaves these out"
        )
    known = getattr(clients, "classes", None)
    # A part of the data may lack a class.
    if known is None or config.scale is not None:
        return
    if strange := int((~np.isin(y_test, known)).sum()):
        yield (
            f"{strange} of {len(y_test)} test examples are of classes that no client"
            " has: check how the labels are numbered"
        )


def _task(config: ResolvedConfig, tasks: Any, examples: Any) -> Any:
    """Builds the task; refuses one on which no client would train."""
    task = build_task(config, tasks, **({"examples": examples} if examples else {}))
    largest = max(task.client_data.client_sizes)
    if config.drop_remainder and largest < config.batch_size:
        raise SettingError(
            "batch_size",
            config.batch_size,
            f"the largest client has {largest} examples, and drop_remainder leaves"
            " shorter batches out: nobody would train.",
        )
    if config.data_on_nodes:
        task.client_data.load_by(
            functools.partial(_client_data, tasks.build, config.part(TaskSettings))
        )
    return task


def _process(config: ResolvedConfig, task: Any) -> Process:
    """Returns the process of a run."""
    aggregator = training.aggregators.build_model_aggregator(
        **config.aggregation(), clients_per_round=config.clients_per_round
    )
    return build_process(config, task, model_aggregator=aggregator)


@contextlib.contextmanager
def _running(config: ResolvedConfig) -> Iterator[None]:
    """Starts the runtime that a run asks for, for the body of a `with` statement."""
    options = config.part(RuntimeSettings)
    if config.debug_eager:
        options["clients_in_parallel"] = 1
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(runtime.running(options.pop("runtime"), **options))
        except runtime.NoGpuError as error:
            raise SettingError("require_gpu", True, str(error)) from error
        except runtime.WorkerError as error:
            setting = "ray_address" if config.ray_address else "runtime"
            raise SettingError(setting, getattr(config, setting), str(error)) from error
        yield
