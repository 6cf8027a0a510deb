"""`tff_reg.run` and `tff_reg.compare`: runs and comparisons in a line of Python.

They do what `bin/run` and `bin/compare` do, also with the user's own data and model.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import functools
import inspect
import os
import tempfile
import types
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Optional, Union

from tff_reg import lazy, tables
from tff_reg.experiment.config.run_config import RunConfig
from tff_reg.experiment.report import comparison, protocol, quantities
from tff_reg.experiment.report.finished_runs import ComparisonError
from tff_reg.experiment.report.table import Row, Table
from tff_reg.experiment.rounds import (
    callbacks as callbacks_lib,
    loop,
    progress as progress_lib,
)
from tff_reg.experiment.rounds.callbacks import Callback
from tff_reg.experiment.rounds.loop import (
    TrainingError,
    name_of,
    with_arguments_of,
)
from tff_reg.experiment.rounds.result import RunResult
from tff_reg.experiment.rounds.runs import CheckedRun
from tff_reg.experiment.series import (
    batch,
    calls,
    comparing,
    jobs as jobs_lib,
    plan as series,
)
from tff_reg.methods import catalogue
from tff_reg.plugins import PluginError
from tff_reg.settings import SettingError, settings_of

if TYPE_CHECKING:
    import keras
    import tf_keras

    from tff_reg import data
    from tff_reg.lazy import mpl_figure, pandas
    from tff_reg.methods.method import Method
    from tff_reg.training.aggregators import AggregationFactory

    OneMethod = Union[str, Method, type[Method]]
    Process = Union[OneMethod, Sequence[OneMethod]]
    Pair = tuple[Any, Any]
    ClientData = Union[Pair, Mapping[str, Pair], data.ArrayClientData]
    KerasModel = Union[keras.Model, tf_keras.Model]
    Model = Union[str, KerasModel, Callable[[int], KerasModel]]
else:
    # Settings are made from a class's annotations without importing these libraries.
    AggregationFactory = ClientData = Model = Pair = Process = Any


@dataclasses.dataclass(frozen=True, kw_only=True)
class Arguments(RunConfig):
    """The settings of `experiment.RunConfig`, and the further arguments of `run`.

    Attributes:
      process: Name of a method or of a combination; a method such as
        `methods.FedProx(0.01)`, also of the user's own, its class, or a list of them,
        which are combined.
      aggregator: As in `experiment.RunConfig`, or any TFF aggregation factory.
      model: Name of a network, or a Keras model, which is trained as it is: its weights
        are the initial ones. Or a function that makes such a model for a seed.
      client_learning_rate: The clients' learning rate, or a function that returns it
        for a round (1, 2, ...).
      client_data: Training examples in place of a task's: a pair (x, y), which the
        settings `partition`, `num_clients` and so on split; a dict of pairs by the
        client's name; or a `data.ArrayClientData`. x are arrays [n, ...], or dicts,
        lists or tuples of arrays, y class numbers [n] from 0 or other labels that the
        loss of a Keras model takes.
      test_data: Test examples (x, y), or a dict of such pairs by client, on which
        `client_evaluation` measures each client; the server's model is tested on all.
      stratify: The group of each example of `client_data=(x, y)`, [n], which partitions
        and `validation_share` divide in the place of classes.
      sample_fn: Function of (round_num, client_ids) that returns the ids of the clients
        that take part in a round; see `experiment.Rounds`.
      metrics: Further metrics by name; see `experiment.CentralEvaluation`.
      progress: As in `experiment.Rounds`.
      callbacks: As in `experiment.Rounds`.
      on_round: As in `experiment.Rounds`.
    """

    CALLED: ClassVar[str] = "tff_reg.run"

    process: Optional[Process] = dataclasses.field(default=None, kw_only=False)
    aggregator: Union[str, AggregationFactory, None] = None
    model: Optional[Model] = None
    client_learning_rate: Union[float, Callable[[int], float], None] = None
    client_data: Optional[ClientData] = None
    test_data: Union[Pair, Mapping[str, Pair], None] = None
    stratify: Optional[Any] = None
    sample_fn: Optional[loop.SampleFn] = None
    metrics: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    progress: Optional[progress_lib.Progress] = None
    callbacks: Sequence[Callback] = ()
    on_round: Optional[Callable[[callbacks_lib.Row], Any]] = None

    def __post_init__(self):
        """Checks nothing: `RunConfig` checks the settings when `to_config` makes it."""

    @classmethod
    def gathered(cls, given: Mapping[str, Any]) -> dict[str, Any]:
        """As in `RunConfig`; methods that are objects become names and values."""
        own: dict[str, Any] = {}
        classes: dict[str, type] = {}
        taken = [each.name for each in settings_of(RunConfig)]

        def name_of(process: Any) -> str:
            for cls in catalogue.classes_of(process):
                if classes.setdefault(cls.name, cls) is not cls:
                    why = f"two classes are called {cls.name!r}: rename one."
                    raise SettingError("process", None, why)
            try:
                name, values = catalogue.of_objects(process, taken)
            except PluginError as error:
                raise SettingError("process", None, str(error)) from error
            for flag, value in values.items():
                if own.setdefault(flag, value) != value:
                    why = f"another object has {own[flag]}; give one value, or grid."
                    raise SettingError(flag, value, why)
            return name

        found = dict(given)
        if not isinstance(process := found.get("process"), (str, type(None))):
            found["process"] = name_of(process)
        if not isinstance(several := found.get("processes"), (str, type(None))):
            several = several if isinstance(several, (list, tuple)) else [several]
            found["processes"] = [*map(name_of, several)]
            for name in (each for each in several if isinstance(each, str)):
                if both := {*catalogue.parts_of(name)} & classes.keys():
                    why = f"{min(both)} is also given as an object; give one of them."
                    raise SettingError("processes", name, why)
        found = super().gathered(found)
        also = found.get("hyperparameters", {})
        for flag in own.keys() & also.keys():
            why = "the method that is given has it already; leave it out."
            raise SettingError(flag, also[flag], why)
        return {**found, "hyperparameters": {**own, **also}} if own else found

    @property
    def factory(self) -> Optional[AggregationFactory]:
        """The aggregator, if it is an object.

        Raises:
          TypeError: If it has no `create`, as TFF's factories have.
        """
        if isinstance(self.aggregator, (str, type(None))):
            return None
        is_class = isinstance(self.aggregator, type)
        if is_class or not hasattr(self.aggregator, "create"):
            raise TypeError(
                f"aggregator is {self.aggregator!r}; give a name, or a factory such as"
                " tff.aggregators.MeanFactory()."
            )
        return self.aggregator

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
        if self.factory is not None:
            values["aggregator"] = "mean"  # What rules ask for; the record has both.
        model = self.model
        if model is not None and not isinstance(model, str):
            values["model"] = None
        else:
            model = None
        config = RunConfig(**values, hyperparameters=self.hyperparameters)
        given = {**config.given(), "grid": getattr(self, "grid", None)}
        if self.client_data is not None:
            own = lazy.tasks.own_data
            of_data = (self.client_data, self.test_data, model, given, self.stratify)
            tasks = own.OwnData(*of_data)
            return dataclasses.replace(config, task=own.NAME), tasks
        for name in ("test_data", "stratify"):
            if getattr(self, name) is not None:
                raise ValueError(
                    f"{name} is given without client_data; give both, or neither to run"
                    " a task."
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
    if progress is None and callbacks_lib.can_be_live():
        callbacks.append(callbacks_lib.LiveCurve())
    return checked.run(
        progress=progress,
        callbacks=callbacks,
        on_round=arguments.on_round,
        sample_fn=arguments.sample_fn,
        metrics=arguments.metrics,
        model_aggregator=arguments.factory,
    )


def check_sampling(arguments: Arguments, processes: Sequence[str]) -> None:
    """Checks that no `sample_fn` is given with `central`."""
    if arguments.sample_fn is not None and {*processes} & {*catalogue.POOLED}:
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

    In a notebook a figure shows the scores during the run, unless `progress` is
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


@dataclasses.dataclass(frozen=True)
class Comparison:
    """The result of `tff_reg.compare`; prints, and shows in a notebook, as a table.

    Attributes:
      rows: One row per method: numbers by column as in `table.csv` (accuracies are 0 to
        1), None for an empty cell.
      settings: With `settings`, the comparison under each by its heading, such as
        `concentration=0.1`; empty otherwise.
      failed: The reasons of failed runs, a grid's among them, by the runs' names; empty
        if all finished.
      output_dir: Directory of the runs and the files; None if nothing was written.
    """

    rows: list[Row]
    failed: dict[str, str]
    output_dir: Optional[str]
    _table: Union[Table, comparison.SettingsTable] = dataclasses.field(repr=False)
    settings: Mapping[str, Comparison] = dataclasses.field(
        default_factory=dict, repr=False
    )

    @property
    def table(self) -> pandas.DataFrame:
        """The `rows` as a pandas DataFrame."""
        return tables.to_pandas(self.rows)

    def plot(self) -> mpl_figure.Figure:
        """Draws the test score by round, mean over seeds with bands of one deviation.

            comparison.plot().savefig("curves.pdf")

        With `settings` there is one panel for each.

        Returns:
          A matplotlib figure, which a notebook shows.

        Raises:
          ValueError: If no run measured its score.
        """
        if isinstance(self._table, comparison.SettingsTable):
            figure = self._table.draw()
        else:
            drawn = comparison.by_round(self._table.groups)
            figure = comparison.draw(self._table, drawn) if drawn else None
        if figure is None:
            raise ValueError("No run measured a score that could be drawn.")
        return figure

    def to_latex(self) -> str:
        """Returns the table for LaTeX (booktabs), as in `table.tex`."""
        return self._table.latex()

    def __str__(self) -> str:
        return self._table.markdown()

    def _repr_markdown_(self) -> str:
        return self._table.markdown()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Compared(Arguments):
    """The arguments of `tff_reg.compare`.

    Attributes:
      processes: Methods or combinations of methods, each as `process` of
        `tff_reg.run`; `all` for every method.
      seeds: Number of seeds (0, 1, ...), or a list; each is one run per process.
      grid: Values to try by setting, such as `{"fedprox_strength": [0.001, 0.01]}`:
        each method tries all combinations of the settings that it has on held-out
        training examples (`validation_share`, 0.1 by default), and then runs with the
        best.
      settings: Settings to compare the methods under, each a column of the table: a
        list of groups, such as `[{"concentration": [0.1, 0.3]}, {"partition":
        "shards", "classes_per_client": 2}]`, of which each has all combinations of its
        values; or a text, as for `bin/compare`.
      baseline: The process that the others are compared with, seed by seed; by default
        the first.
      names: What processes are called in tables and pictures, such as `{"man": "MAN"}`.
      columns: Columns of the tables, as of `bin/compare --columns`, but for those that
        take an analysis.
      jobs: Runs at a time. With more than 1 each is in a process of its own, with a
        copy of everything that is given; the numbers are the same.
    """

    CALLED: ClassVar[str] = "tff_reg.compare"

    process: None = None  # That of a single run.
    processes: Union[Process, Sequence[Process]] = dataclasses.field(kw_only=False)
    seeds: Union[int, Sequence[int]] = 1
    grid: Union[str, Mapping[str, Sequence[Any]], None] = None
    settings: Union[str, series.Values, Sequence[series.Values], None] = None
    baseline: Optional[str] = None
    names: Mapping[str, str] = dataclasses.field(default_factory=dict)
    columns: Sequence[str] = ()
    jobs: int = 1


class _Rounds(progress_lib.Bar):
    """A progress bar of a run's rounds, without the description of the run."""

    def say(self, line: str) -> None:
        if self._bar is not None:
            super().say(line)


@with_arguments_of(Compared)
def compare(arguments: Compared) -> Comparison:
    """Runs methods under one protocol and tabulates them: `bin/compare` from Python.

        comparison = tff_reg.compare(["fedavg", "fedprox+man"], seeds=2)
        comparison.table        # a pandas DataFrame
        comparison.plot()

    The first argument lists methods or combinations (`all`: every method). The keyword
    arguments are those of `tff_reg.run` and `seeds` (how many, or which). All methods
    have the same settings, by default those of the task. With a Keras model as `model`
    every run begins with its weights; a function of the seed makes one for each seed.
    Every run has copies of the callbacks of its own.

    The runs follow one another in this process, or `jobs` at a time in others. With
    `output_dir` they are kept there
    as by `bin/compare`, with the same files (`table.csv`, `table.md`, `table.tex`,
    `curves.png`, `curves.pdf`, ...), and the same call again resumes; without it
    nothing is kept. Failed runs are named, and the table has the other runs. With
    `settings` the result's `settings` has the comparison under each, and its own table
    one column for each.

    Returns:
      The `Comparison`.

    Raises:
      SettingError: If a run cannot be set up.
      TypeError: If an argument does not exist or is of another kind.
      ValueError: If the data are inconsistent, or do not fit the model.
      TrainingError: If all runs failed.
      ComparisonError: If the seeds of a method ended after different rounds.
    """
    for name, why in (
        ("process", "the first argument lists them."),
        ("seed", "give seeds, how many or which."),
    ):
        if getattr(arguments, name) is not None:
            raise SettingError(name, getattr(arguments, name), why)
    names: Any = arguments.processes
    seeds = series.SEEDS.of(arguments.seeds)
    names = series.process_names([names] if isinstance(names, str) else names)
    check_sampling(arguments, names)
    jobs_lib.JOBS.check(arguments.jobs)
    columns = quantities.check(arguments.columns)
    if analysed := quantities.measured(columns, *quantities.ANALYSES):
        why = "it takes an analysis, which bin/compare carries out."
        raise SettingError("columns", analysed[0], why)
    if arguments.jobs > 1 and arguments.on_round is not None:
        why = "on_round would be called in other processes; leave one of them out."
        raise SettingError("jobs", arguments.jobs, why)
    of_seeds = {seed: arguments.of_seed(seed) for seed in seeds}
    with contextlib.ExitStack() as stack:
        where = arguments.output_dir or stack.enter_context(
            tempfile.TemporaryDirectory(prefix="tff_reg-compare-")
        )

        def request(column: Mapping[str, Any]) -> tuple[Any, Any]:
            own = dict(column, output_dir=where)
            made = {
                seed: dataclasses.replace(each, **own).to_config()
                for seed, each in of_seeds.items()
            }
            config, tasks = made[seeds[0]]
            is_split = getattr(tasks, "positions", None) is not None
            if is_split and arguments.grid is not None:
                why = "client_data={...} has no examples to hold out; give (x, y)."
                raise SettingError("grid", None, why)
            return config, {seed: tasks for seed, (_, tasks) in made.items()}

        study = comparing.planned(
            request,
            processes=names,
            seeds=seeds,
            settings=arguments.settings,
            grid=arguments.grid,
            baseline=arguments.baseline,
            called=arguments.names,
            columns=columns,
        )
        errors: list[Exception] = []
        sampled = {"sample_fn": name_of(arguments.sample_fn)}
        is_silent = isinstance(arguments.progress, progress_lib.Silence)
        say: Callable[..., None] = (lambda *_, **__: None) if is_silent else print
        say(*study.sheet.protocol(study, **sampled), sep="\n", flush=True)
        kept = where if arguments.output_dir else None
        executor = jobs_lib.ChildProcesses(is_watched=False, jobs=arguments.jobs)

        def run_one(planned: series.PlannedRun) -> Optional[str]:
            if planned.is_finished and _is_plain(arguments, planned):
                return None
            if arguments.jobs == 1:
                return _run_here(arguments, planned, errors)
            quiet = dataclasses.replace(arguments, progress=progress_lib.Silence())
            work = functools.partial(_run_here, quiet, planned, [])
            return calls.in_a_process(executor, work)

        done = batch.Batch(
            run_one=run_one, say=say, jobs=arguments.jobs, executor=executor
        )
        try:
            study.carry_out(done, kept, command="tff_reg.compare, in Python")
        except ComparisonError as error:
            text = str(error).replace(f"{where}{os.sep}", "")
            told = "" if kept else " With output_dir the runs are kept."
            raise ComparisonError(text + told) from error
    made = study.sheet.tables
    if not made:
        why = "; ".join(done.failed.values()) or "No setting of the grid ended finite."
        raise errors[0] if errors else TrainingError(why)
    rest = (done.failed, kept)
    found = {name: Comparison(each.rows(), *rest, each) for name, each in made.items()}
    if arguments.settings is None:
        return found[""]
    table = comparison.SettingsTable([*study.sheet.folders], made)
    return Comparison(table.rows(), *rest, table, found)


def _is_plain(given: Compared, planned: series.PlannedRun) -> bool:
    """Returns whether a finished run is known to be the asked one by its settings."""
    is_plain = given.sample_fn is None and not given.metrics and given.factory is None
    return is_plain and given.client_data is None and planned.config.model is not None


def _run_here(
    given: Compared, planned: series.PlannedRun, errors: list[Exception]
) -> Optional[str]:
    """Carries out a run in this process, as `Batch.run_one`; notes its error."""
    config = planned.config
    shown = progress_lib.for_this_output(config.total_rounds)
    is_bar = isinstance(shown, progress_lib.Bar)
    progress = _Rounds(config.total_rounds) if is_bar else progress_lib.Silence()
    try:
        carried_out(
            _with_own_callbacks(given),
            CheckedRun(planned.asked, planned.tasks),
            given.progress or progress,
        )
    except (TrainingError, ValueError) as error:
        errors.append(error)
        return str(error)
    return None


def _with_own_callbacks(arguments: Arguments) -> Arguments:
    """Returns the arguments with copies of the callbacks, whose state is a run's."""
    try:
        callbacks = copy.deepcopy(arguments.callbacks)
    except (TypeError, copy.Error) as error:
        raise TypeError(
            f"Every run of a comparison needs copies of the callbacks, and one cannot"
            f" be copied ({error}): make what it holds in on_start."
        ) from error
    return dataclasses.replace(arguments, callbacks=callbacks)
