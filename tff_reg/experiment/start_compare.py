"""`tff_reg.compare`: methods compared in a line of Python, as by `bin/compare`."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import os
import pathlib
import tempfile
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Optional, Union

from tff_reg import tables
from tff_reg.experiment import start
from tff_reg.experiment.config import identity
from tff_reg.experiment.report import (
    comparison,
    protocol,
    settings_table,
    table as table_lib,
)
from tff_reg.experiment.report.differences import baseline_of
from tff_reg.experiment.report.finished_runs import ComparisonError
from tff_reg.experiment.rounds import (
    directory,
    progress as progress_lib,
    training,
)
from tff_reg.experiment.rounds.loop import TrainingError, name_of
from tff_reg.experiment.rounds.runs import CheckedRun
from tff_reg.experiment.series import (
    axis,
    batch,
    plan as series,
    sensitivity,
    tuning,
)
from tff_reg.settings import SettingError

if TYPE_CHECKING:
    from tff_reg.lazy import mpl_figure, pandas


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

    rows: list[table_lib.Row]
    failed: dict[str, str]
    output_dir: Optional[str]
    _table: Union[table_lib.Table, settings_table.SettingsTable] = dataclasses.field(
        repr=False
    )
    settings: Mapping[str, Comparison] = dataclasses.field(
        default_factory=dict, repr=False
    )

    @property
    def table(self) -> pandas.DataFrame:
        """The `rows` as a pandas DataFrame.

        Raises:
          ImportError: If pandas is not installed.
        """
        return tables.to_pandas(self.rows, "rows")

    def plot(self) -> mpl_figure.Figure:
        """Draws test accuracy by round, mean over seeds with bands of one deviation.

            comparison.plot().savefig("curves.pdf")

        With `settings` there is one panel for each.

        Returns:
          A matplotlib figure, which a notebook shows.

        Raises:
          ValueError: If no run measured its accuracy.
        """
        if isinstance(self._table, settings_table.SettingsTable):
            figure = self._table.draw()
        else:
            drawn = comparison.curves_of(self._table)
            figure = comparison.draw(self._table, drawn) if drawn else None
        if figure is None:
            raise ValueError("No run measured an accuracy that could be drawn.")
        return figure

    def to_latex(self) -> str:
        """Returns the table for LaTeX (booktabs), as in `table.tex`."""
        return self._table.latex()

    def __str__(self) -> str:
        return self._table.markdown()

    def _repr_markdown_(self) -> str:
        return self._table.markdown()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Arguments(start.Arguments):
    """The arguments of `tff_reg.compare`.

    Attributes:
      processes: Methods or combinations of methods; `all` for every method.
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
    """

    CALLED: ClassVar[str] = "tff_reg.compare"

    process: None = None  # That of a single run.
    processes: Union[str, Sequence[str]] = dataclasses.field(kw_only=False)
    seeds: Union[int, Sequence[int]] = 1
    grid: Union[str, Mapping[str, Sequence[Any]], None] = None
    settings: Union[str, axis.Group, Sequence[axis.Group], None] = None
    baseline: Optional[str] = None


class _Rounds(progress_lib.Bar):
    """A progress bar of a run's rounds, without the description of the run."""

    def say(self, line: str) -> None:
        if self._bar is not None:
            super().say(line)


@training.with_arguments_of(Arguments)
def compare(arguments: Arguments) -> Comparison:
    """Runs methods under one protocol and tabulates them: `bin/compare` from Python.

        comparison = tff_reg.compare(["fedavg", "fedprox+man"], seeds=2)
        comparison.table        # a pandas DataFrame
        comparison.plot()

    The first argument lists methods or combinations (`all`: every method). The keyword
    arguments are those of `tff_reg.run` and `seeds` (how many, or which). All methods
    have the same settings, by default those of the task. With a Keras model as `model`
    every run begins with its weights; a function of the seed makes one for each seed.
    Every run has copies of the callbacks of its own.

    The runs follow one another in this process. With `output_dir` they are kept there
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
    if arguments.settings is not None:
        return _compare_settings(arguments)
    return _compare(arguments)


def _compare(arguments: Arguments) -> Comparison:
    """Compares methods under one setting."""
    say, request = _say(arguments), _Request(arguments)
    config, of_seeds, tasks = request.config, request.of_seeds, request.tasks
    with contextlib.ExitStack() as stack:
        where = config.output_dir or stack.enter_context(
            tempfile.TemporaryDirectory(prefix="tff_reg-compare-")
        )
        common = dataclasses.replace(config, output_dir=where)
        tuner, tuned, failed = None, {}, {}
        if arguments.grid is None:
            planned = request.plan(where)
        else:
            if getattr(tasks[request.seeds[0]], "positions", None) is not None:
                why = "client_data={...} has no examples to hold out; give (x, y)."
                raise SettingError("grid", None, why)
            tuner = tuning.Tuning(common, tuning.parse(arguments.grid), **request.asked)
            failed = _carry_out(tuner.planned, of_seeds, tasks, say)
            done = [run for run in tuner.planned if run.name not in failed]
            tuned = tuner.best(done)
            if config.output_dir:
                rows = tuner.rows(done)
                sensitivity.write(rows, tuner.names, pathlib.Path(config.output_dir))
            planned = tuner.plan(tuned, tasks)
            if not planned:
                raise TrainingError("No setting of the grid ended finite.")
        sample_fn = name_of(arguments.sample_fn)
        configs = {
            run.config.process: [{**run.config.dump(), "sample_fn": sample_fn}]
            for run in planned
        }
        chosen = tuner.names if tuner else ()
        say(*protocol.of(configs, chosen).lines(), "", sep="\n", flush=True)
        untuned = tuner.lost(tuned) if tuner else ()
        failed |= dict.fromkeys(untuned, "no setting of the grid ended finite.")
        failed |= _carry_out(planned, of_seeds, tasks, say)
        groups: dict[str, list[str]] = {name: [] for name in configs}
        for run in planned:
            if run.name not in failed:
                groups[run.config.process].append(run.directory)
        groups = {name: paths for name, paths in groups.items() if paths}
        first = planned[0].config
        try:
            table = comparison.tabulate(
                groups,
                accuracy_at_rounds=first.accuracy_at_rounds,
                target_accuracies=first.target_accuracies,
                target_measure=first.target_measure,
                target_model=first.target_model,
                tuned=tuned,
                missing=list(failed),
                baseline=request.baseline,
            )
        except ComparisonError as error:
            text = str(error).replace(f"{where}{os.sep}", "")
            kept = "" if config.output_dir else " With output_dir the runs are kept."
            raise ComparisonError(text + kept) from error
        if config.output_dir:
            comparison.write(table, where, command="tff_reg.compare, in Python")
    return Comparison(table.rows(), failed, config.output_dir, table)


def _compare_settings(arguments: Arguments) -> Comparison:
    """Compares methods under each of several settings."""
    if arguments.grid is not None:
        why = "give it or grid: tune each setting by a call of its own."
        raise SettingError("settings", str(arguments.settings), why)
    assert arguments.settings is not None
    given = {name: each for name, each in vars(arguments).items() if each is not None}
    where, own = arguments.output_dir, {}
    for heading, column in axis.parse(arguments.settings, given).items():
        folder = where and os.path.join(where, axis.folder(column))
        own[heading] = dataclasses.replace(
            arguments, settings=None, output_dir=folder, **column
        )
    with tempfile.TemporaryDirectory() as nowhere:
        for each in own.values():  # Nothing trains before all are checked.
            _Request(each).plan(each.output_dir or nowhere)
    found: dict[str, Comparison] = {}
    made: dict[str, Any] = {}
    failed = {}
    for heading, each in own.items():
        _say(arguments)(f"{heading}\n")
        try:
            found[heading] = _compare(each)
            made[heading] = found[heading]._table
        except (TrainingError, ValueError) as error:
            failed[heading] = str(error)
            if len(failed) == len(own):
                raise
            continue
        runs = found[heading].failed
        failed |= {f"{name}, {heading}": why for name, why in runs.items()}
    table = settings_table.SettingsTable(made)
    if where:
        table.write(where, command="tff_reg.compare, in Python")
    return Comparison(table.rows(), failed, where, table, found)


class _Request:
    """The runs that are asked for, without settings of columns."""

    def __init__(self, arguments: Arguments):
        """Checks the names, the seeds and the settings."""
        names = arguments.processes
        self.names = [names] if isinstance(names, str) else names
        for name, why in (
            ("process", "the first argument lists them."),
            ("seed", "give seeds, how many or which."),
        ):
            if getattr(arguments, name) is not None:
                raise SettingError(name, getattr(arguments, name), why)
        self.seeds = series.SEEDS.of(arguments.seeds)
        planned_names = series.process_names(self.names)
        start.check_sampling(arguments, planned_names)
        count = len({*self.seeds})
        self.baseline = baseline_of(arguments.baseline, planned_names, count)
        self.of_seeds = {seed: arguments.of_seed(seed) for seed in self.seeds}
        requests = {seed: each.to_config() for seed, each in self.of_seeds.items()}
        self.config = requests[self.seeds[0]][0]
        self.tasks = {seed: each for seed, (_, each) in requests.items()}
        self.asked = {"processes": self.names, "seeds": self.seeds, "tasks": self.tasks}

    def plan(self, where: str) -> list[series.PlannedRun]:
        """Plans the runs."""
        common = dataclasses.replace(self.config, output_dir=where)
        return series.plan(common, **self.asked)


def _say(arguments: Arguments) -> Callable[..., None]:
    is_silent = isinstance(arguments.progress, progress_lib.Silence)
    return _nothing if is_silent else print


def _nothing(*_: Any, **__: Any) -> None:
    pass


def _with_own_callbacks(arguments: start.Arguments) -> start.Arguments:
    """Returns the arguments with copies of the callbacks, whose state is a run's."""
    try:
        callbacks = copy.deepcopy(arguments.callbacks)
    except (TypeError, copy.Error) as error:
        raise TypeError(
            f"Every run of a comparison needs copies of the callbacks, and one cannot"
            f" be copied ({error}): make what it holds in on_start."
        ) from error
    return dataclasses.replace(arguments, callbacks=callbacks)


def _carry_out(
    planned: Sequence[series.PlannedRun],
    of_seeds: Mapping[int, start.Arguments],
    tasks: Mapping[int, Any],
    say: Callable[..., None],
) -> dict[str, str]:
    """Carries out the runs; returns the reasons of failed runs by the runs' names."""
    failed: dict[str, str] = {}
    errors = []
    left = progress_lib.TimeLeft(sum(not run.is_finished for run in planned))
    for number, run in enumerate(planned, start=1):
        arguments = of_seeds[run.config.seed]
        # A finished run with the user's functions, data or model is checked again.
        is_plain = (
            arguments.sample_fn is None
            and not arguments.metrics
            and arguments.client_data is None
        )
        head = f"run {number}/{len(planned)}  {run.name}"
        stored = directory.RunDirectory(run.directory).config
        changed = identity.other_code(stored) if stored else None
        try:
            if not (run.is_finished and is_plain and run.config.model is not None):
                shown = progress_lib.for_this_output(run.config.total_rounds)
                progress = progress_lib.Silence()
                if isinstance(shown, progress_lib.Bar):
                    progress = _Rounds(run.config.total_rounds)
                start.carried_out(
                    _with_own_callbacks(arguments),
                    CheckedRun(run.asked, tasks[run.config.seed]),
                    arguments.progress or progress,
                )
            before = " (finished before)" if run.is_finished else left.after_one()
            told = f". {changed}" if changed else ""
            say(f"{head}: {batch.result(run)}{before}{told}", flush=True)
        except (TrainingError, ValueError) as error:
            failed[run.name] = str(error)
            errors.append(error)
            say(f"{head}: failed ({error})", flush=True)
    if len(failed) == len(planned):
        raise errors[0]
    return failed
