"""A run from its config: checked against its directory, prepared and carried out."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Optional

from tff_reg import (
    data,
    files,
    interruption,
    lazy,
    runtime,
    scores,
    training,
)
from tff_reg.data import digests, rows, sampling
from tff_reg.experiment.config import identity, resolution, work_settings
from tff_reg.experiment.config.run_config import (
    ResolvedConfig,
    RunConfig,
)
from tff_reg.experiment.config.task_settings import TaskSettings
from tff_reg.experiment.rounds import (
    callbacks as callbacks_lib,
    client_evaluation,
    description,
    directory as directory_lib,
    evaluation as evaluation_lib,
    loop,
    process_state,
    progress as progress_lib,
    remarks,
    summary as summary_lib,
    trackers,
    unequal_work,
)
from tff_reg.experiment.rounds.callbacks import Callback, Row
from tff_reg.experiment.rounds.result import RunResult
from tff_reg.lazy import np, tf, tff
from tff_reg.methods import catalogue, method as method_lib
from tff_reg.models import names as model_names
from tff_reg.runtime import devices
from tff_reg.settings import FILE, SettingError, ignored_settings, settings_of, tagged
from tff_reg.training.aggregator_settings import AggregatorSettings

if TYPE_CHECKING:
    from tff_reg.models.learning_model import LearningModel
    from tff_reg.training.composition import Process

OnRound = Callable[[Row], Any]
# Files of data, which may be the same in another place.
_FILES = tagged(RunConfig, FILE)


def run(
    config: RunConfig,
    *,
    tasks: Any = lazy.tasks,
    progress: Optional[progress_lib.Progress] = None,
    callbacks: Sequence[Callback] = (),
    on_round: Optional[OnRound] = None,
) -> RunResult:
    """Carries out a run, or the rest of it.

        experiment.run(experiment.RunConfig(process="fedalign", total_rounds=5))

    Args:
      config: The request for the run.
      tasks: The module `tasks`, or an object with its functions.
      progress: As for `loop.Rounds`; it also shows the run in words at the start.
      callbacks: As for `loop.Rounds`.
      on_round: As for `loop.Rounds`.

    Returns:
      The result.

    Raises:
      SettingError: If the config is invalid, or does not fit its directory or this
        machine.
      ValueError: If its data are missing, or the method does not fit the model.
      StateMismatchError: If the state in its directory does not fit its process.
      TrainingError: If a round fails.
    """
    checked = CheckedRun(config, tasks)
    return checked.run(progress=progress, callbacks=callbacks, on_round=on_round)


class CheckedRun:
    """A valid run: its settings are consistent and fit its directory.

    Attributes:
      config: The resolved settings.
      values: The settings as JSON values by name.
      directory: Its directory: empty, with a run that this one can continue, or to be
        overwritten; None if the run writes nothing.
      tasks: The module `tasks`, or an object with its functions.
    """

    def __init__(
        self,
        config: RunConfig,
        tasks: Any = lazy.tasks,
        *,
        writes: bool = True,
        seen: Optional[dict[str, list[int]]] = None,
    ):
        """Checks the request; without `writes` the run has no directory.

        Runs that are planned together have one dict of the `seen` states of files.
        """
        self._seen = {} if seen is None else seen
        self.config = config.resolved(tasks)
        if not writes:
            self.config = dataclasses.replace(self.config, output_dir=None)
        trackers.of(self.config.track)
        ignored = ignored_settings(settings_of(config), vars(self.config))
        self._without = [name for name in ignored if getattr(config, name)]
        self.values = self.config.dump()
        self.tasks = tasks
        self.directory: Optional[directory_lib.RunDirectory] = None
        if writes:
            self.directory = directory_lib.RunDirectory(self.config.output_dir)
            if not self.config.overwrite:
                self.directory.check(self.values)

    def check_ready(self) -> None:
        """Checks that its directory can be written to, and that its data are there."""
        if self.directory is not None:
            files.check_writable(self.directory.path, "output_dir")
        if self.config.client_speeds is not None:
            unequal_work.read_table(self.config.client_speeds)
        if not self.config.synthetic_data:
            self.tasks.check_data(self.config.task, self.config.data_dir)

    def summary(self) -> Optional[dict[str, Any]]:
        """Returns the summary with the requested rounds and targets, if finished."""
        if self.config.overwrite or self.directory is None:
            return None
        found = summary_lib.of_finished_run(self.directory, self.values)
        made = self.directory.config or {}
        is_same = found and all(self.values[name] == made.get(name) for name in _FILES)
        if is_same and self._states() == made.get(identity.FILES, {}):
            return found
        return None  # The contents are compared when the run is done again.

    def _states(self) -> dict[str, list[int]]:
        """Returns the states of its files, as they were first seen, by the setting."""
        paths = {name: path for name in _FILES if (path := self.values[name])}
        for path in {*paths.values()} - {*self._seen}:
            self._seen[path] = files.state(path)
        return {name: self._seen[path] for name, path in paths.items()}

    def refresh_summary(self) -> Optional[dict[str, Any]]:
        """Returns `summary`, and writes it to `summary.json` if that has another."""
        if self.summary() is None:
            return None
        return summary_lib.refresh(self.directory, self.values)

    def run(
        self,
        *,
        progress: Optional[progress_lib.Progress] = None,
        stop: Optional[interruption.Interruption] = None,
        **of_training: Any,
    ) -> RunResult:
        """Carries out the run; more arguments as for `prepare`.

        `stop` gets the clean-up for a signal that ends the process.
        """
        stop = stop or interruption.Interruption()
        self.check_ready()
        self._states()  # Before they are read.
        examples = self._read()
        with _running(self.config):
            # Not before the runtime runs: `shutdown` would wait for its start.
            stop.before_exit(runtime.shutdown)
            progress = progress or progress_lib.for_this_output(
                self.config.total_rounds
            )
            stop.before_exit(progress.close)
            prepared = self.prepare(progress, examples=examples, **of_training)
            return prepared.run()

    def _read(self) -> Any:
        """Reads the examples if that needs no TensorFlow: mistakes are told at once."""
        config, tasks = self.config, self.tasks
        is_given = config.data_dir is not None or config.synthetic_data
        if is_given or tasks.defaults(config.task).tfds_name is None:
            return tasks.read(**config.part(TaskSettings))
        return None

    def prepare(
        self,
        progress: progress_lib.Progress,
        *,
        examples: Any = None,
        metrics: Mapping[str, Any] = {},
        model_aggregator: Any = None,
        **of_training: Any,
    ) -> loop.Rounds:
        """Loads the data and builds the process, for the runtime in use.

        `examples` may be read already; `metrics` are those of the evaluation; an
        aggregation factory is in place of the one of the settings; more arguments are
        those of `loop.Rounds`.
        """
        config, states = self.config, self._states()
        where = runtime.describe()
        progress.say(where[0].upper() + where[1:])
        task = _task(config, self.tasks, examples)
        x_test, y_test = task.test_arrays()
        more = scores.metric(config.score, metrics)
        evaluation_lib.check_labels(more, y_test)
        more = {n: scores.of_probabilities(m, task.model_fn) for n, m in more.items()}
        evaluation = evaluation_lib.CentralEvaluation(
            build_model_fn(config, task),
            x_test,
            y_test,
            preprocess_fn=task.normalize_fn,
            metrics={**metrics, **more} if more else metrics,
            subsets=evaluation_lib.subsets_of(
                task, config.imbalance_factor is not None
            ),
        )
        header = description.header(
            config,
            num_train=sum(task.client_data.client_sizes),
            num_test=rows.count(y_test),
            num_weights=evaluation.num_weights,
            assumed=getattr(task.model_fn, "assumed", None),
            sample_fn=loop.name_of(of_training.get("sample_fn")),
        )
        said = list(remarks.of(config, task))
        if config.mixed_precision == model_names.TF32 and "TF32" not in where:
            said.append("mixed_precision=tf32 changes nothing: no GPU here has it")
        if self._without:
            what = f"{config.process} averages no models, and trains its rounds without"
            said.append(f"{what} {', '.join(self._without)}")
        given, recorded = dict[str, Any](), None
        if model_aggregator is not None:
            recorded = training.aggregators.identified(model_aggregator)
            given = {"model_aggregator": model_aggregator}
            said.append(f"the clients' updates are aggregated by {recorded}")
        settings = {**self.values, **_records(config, task), identity.REMARKS: said}
        settings["model_aggregator"] = recorded
        settings[identity.FILES] = states
        for line in [*header, *said]:
            progress.say(line)
        process = build_process(config, task, **given)
        pools, of_clients = config.process in catalogue.POOLED, None
        if config.client_evaluation is not None:
            tune = _finetuning(config, task, process)
            of_clients = client_evaluation.ClientEvaluation(evaluation, task, tune)
        unequal, clients = None, task.client_data
        if work_settings.is_unequal(config):
            unequal = unequal_work.of(config, clients.client_ids, clients.client_sizes)
        stopping = callbacks_lib.EarlyStopping(
            config.patience, at_target=config.stop_at_target
        )
        callbacks = of_training.pop("callbacks", ())
        return loop.Rounds(
            process,
            task.client_data.pooled() if pools else task.client_data,
            total_rounds=config.total_rounds,
            clients_per_round=1 if pools else config.clients_per_round,
            client_sampling=config.client_sampling,
            unequal_work=unequal,
            seed=config.seed,
            evaluate=evaluation,
            score=config.score,
            lower_is_better=config.lower_is_better,
            rounds_per_evaluation=config.rounds_per_evaluation,
            rounds_per_checkpoint=config.rounds_per_checkpoint,
            client_evaluation=of_clients,
            rounds_per_client_evaluation=config.client_evaluation or 0,
            keep_best=config.keep_best,
            output_dir=self.directory,
            overwrite=config.overwrite,
            settings=settings,
            weight_names=evaluation.weight_names,
            progress=progress,
            callbacks=[stopping, *trackers.of(config.track), *callbacks],
            **of_training,
        )


@contextlib.contextmanager
def _running(config: ResolvedConfig) -> Iterator[None]:
    """Starts the runtime that a run asks for, for the body of a `with` statement."""
    options = config.part(runtime.RuntimeSettings)
    if config.mixed_precision == model_names.TF32:
        options["tf32"] = True
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(runtime.running(options.pop("runtime"), **options))
        except runtime.NoGpuError as error:
            raise SettingError("require_gpu", True, str(error)) from error
        except runtime.WorkerError as error:
            setting = "ray_address" if config.ray_address else "runtime"
            raise SettingError(setting, getattr(config, setting), str(error)) from error
        yield


def build_task(
    config: ResolvedConfig, tasks: Any = lazy.tasks, **arguments: Any
) -> Any:
    """Builds the task of a run, with its data; see `tasks.build` for the errors."""
    return tasks.build(**config.part(TaskSettings), **arguments)


def build_model_fn(config: ResolvedConfig, task: Any) -> Callable[[], LearningModel]:
    """Returns the function that makes the model that the run's method trains."""
    return training.adapt_model_fn(task.model_fn, config.methods)


def build_process(config: ResolvedConfig, task: Any, **arguments: Any) -> Process:
    """Builds the process of a run; more arguments as for `build_from_settings`."""
    sizes = np.asarray(task.client_data.client_sizes)
    mean_examples = float(np.mean(sizes))
    settings = config
    if "model_aggregator" not in arguments:
        of_means = config.part(AggregatorSettings)
        arguments["model_aggregator"] = training.aggregators.build_model_aggregator(
            of_means.pop("aggregator"),
            clients_per_round=config.clients_per_round,
            **of_means,
        )
    if config.process in catalogue.POOLED:
        mean_examples = float(_steps_of_cohort(config, sizes) * config.batch_size)
        settings = dataclasses.replace(
            config,
            num_clients=1,
            local_epochs=1,
            local_steps=None,
            same_local_steps=True,
        )
    if config.process in catalogue.REFERENCES:  # Plain averaging.
        arguments["server_optimizer_fn"] = tff.learning.optimizers.build_sgdm(1.0)
    process = training.build_from_settings(
        config.process,
        task.model_fn,
        settings,
        config.hyperparameters,
        mean_examples=mean_examples,
        debug_eager=config.debug_eager,
        compile_steps=_compiles(config),
        measures_drift=config.drift,
        told=unequal_work.told(config),
        **_form(task),
        **arguments,
    )
    process.built_from = {}  # The settings of the run say it.
    is_local = config.process in catalogue.WITHOUT_MODEL
    return process_state.Local(process) if is_local else process


def _compiles(config: ResolvedConfig) -> Optional[bool]:
    """Returns whether steps are compiled: True, False, or None for the default."""
    if config.compile_steps != "auto":
        return config.compile_steps == "true"
    return None if devices.are_gpus(devices.parse(config.devices)) else False


def _steps_of_cohort(config: ResolvedConfig, sizes: np.ndarray) -> int:
    """Returns the steps on all examples that use about as many as a cohort does."""
    total = sizes.sum()

    def batches(counts: Any) -> Any:
        return np.maximum(1, config.batches_of(counts))

    passes = np.ceil(config.local_epochs * batches(sizes) - 1e-6) / batches(sizes)
    examples = passes * config.examples_of(sizes)
    if config.same_local_steps or config.local_steps:
        steps = config.steps_of(float(sizes.mean()))
        examples = steps * np.minimum(config.examples_of(sizes), config.batch_size)
    cohort = sampling.mean_size(
        config.client_sampling, config.clients_per_round, len(sizes)
    )
    epochs = cohort * np.mean(examples) / config.examples_of(total)
    return max(1, round(epochs * batches(total)))


def _form(task: Any) -> dict[str, Any]:
    """Returns what `build_from_settings` has to know of a task's examples."""
    return {
        "client_preprocess_fn": task.augment_fn,
        "example_dtype": tf.nest.map_structure(
            lambda each: each.dtype.name, task.client_data.element_type_structure["x"]
        ),
    }


def _finetuning(config: ResolvedConfig, task: Any, process: Process) -> Any:
    """Returns a function from the rounds and a client to the weights of its copy."""
    if config.finetune_epochs is None:
        return None
    changes = {
        "local_epochs": config.finetune_epochs,
        "local_steps": None,
        "same_local_steps": False,
        "keep_client_optimizer": False,
    }
    # A network that is evaluated otherwise than trained is trained as it was.
    hooks = ("adapt_network", "change_pass")
    own = [
        m
        for m in config.methods
        if m.when_finetuned or all(method_lib.overrides(m, h) for h in hooks)
    ]
    hyperparameters = {
        f"{m.name}_{k}": v for m in own for k, v in m.when_finetuned.items()
    }
    name = "+".join(m.name for m in own) or "fedavg"
    alone = training.build_from_settings(
        name,
        process.model_fn or task.model_fn,
        dataclasses.replace(config, averages_all_clients=False, **changes),
        {**resolution.owned(config.hyperparameters, name), **hyperparameters},
        server_optimizer_fn=tff.learning.optimizers.build_sgdm(1.0),
        **_form(task),
    )
    initial = alone.initialize()

    def finetune(run: Any, name: str) -> Any:
        shared = process.get_model_weights(run.state)
        start = initial._replace(
            global_model_weights=run.weights_of(name) if run.weights_of else shared,
            client_work=run.state.client_work,  # With the next round's learning rate.
        )
        key = data.client_key(config.seed, run.rounds_done, f"finetuned {name}")
        examples = [task.client_data.whole_client_dataset(name, key)]
        return alone.get_model_weights(alone.next(start, examples).state)

    return finetune


def _task(config: ResolvedConfig, tasks: Any, examples: Any) -> Any:
    """Builds the task; refuses one on which no client would train."""
    given = {} if examples is None else {"examples": examples}
    task = build_task(config, tasks, **given)
    largest = max(task.client_data.client_sizes)
    if config.client_evaluation is not None and not task.class_names:
        why = "it measures accuracies, and the labels are no class numbers."
        raise SettingError("client_evaluation", None, why)
    if config.drop_remainder and not config.batches_of(largest):
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


def _client_data(build: Callable[..., Any], settings: dict[str, Any]) -> Any:
    """Loads the client data of a task on another machine."""
    return build(**settings).client_data


def _records(config: ResolvedConfig, task: Any) -> dict[str, Any]:
    """Returns what `config.json` has of data and model beside the settings."""
    found: dict[str, Any] = {"class_names": list(task.class_names)}
    found[digests.INITIAL_WEIGHTS] = None
    return found | getattr(task.model_fn, "digests", {})
