"""Runs methods with several seeds and tabulates them: `bin/compare`.

The command line of `tff_reg.experiment.series`, which plans and carries out the runs,
and of `tff_reg.experiment.compare`, which makes the table.
"""

import functools
import os
import pathlib
import shlex

from absl import flags

from tff_reg import experiment, files
from tff_reg.commands import command_line, several
from tff_reg.experiment.report import (
    comparison,
    finished_runs,
    protocol,
    settings_table,
    table,
)
from tff_reg.experiment.report.differences import BASELINE, baseline_of
from tff_reg.experiment.series import (
    axis,
    batch,
    forecast,
    jobs,
    plan as series,
    sensitivity,
    tuning,
)
from tff_reg.settings import Setting, SettingError

_COMMAND = "bin/compare"
_RUN_DIRS = Setting(
    "run_dirs",
    str,
    (),
    "finished runs, in place of new ones: grouped by the names, or by their processes",
    placeholder="[NAME=]DIR",
    is_tuple=True,
)
_OWN = (
    *series.SETTINGS,
    _RUN_DIRS,
    BASELINE,
    table.COLUMNS_SETTING,
    finished_runs.WEIGHTS,
    tuning.GRID,
    axis.SETTINGS,
    *jobs.SETTINGS,
    Setting(
        "dry_run",
        bool,
        False,
        "tries two rounds of each method in a temporary directory, and prints the time"
        " and the bytes that are to be expected, instead of running",
    ),
    Setting("title", str, None, "title of the pictures"),
)
# The settings that may be given with finished runs.
_OF_TABLES = (
    "accuracy_at_rounds",
    "target_accuracies",
    "target_measure",
    "target_model",
    "output_dir",
)
_USAGE = """\
bin/compare --processes=NAME[+NAME...],... [--seeds=N] --output_dir=DIR [flags]
bin/compare --run_dirs=[NAME=]DIR,... --output_dir=DIR [flags]

Runs every method with every seed under one protocol, and writes a table and a figure as
papers have them. The same command again resumes: finished runs are not repeated. Failed
runs are named, and the table has the others. In DIR:

  NAME-seedN                 the runs
  table.csv, .md, .tex       one row per method: means and sample standard deviations
                             (n - 1) over the seeds, differences to --baseline with
                             95 % intervals and p values; in .md and .tex in percent
  curves.png, .pdf, .csv     test accuracy by round, with bands of one deviation
  compute.png, .pdf          test accuracy by multiply-adds, with the column mflops
  report.html                all of it in one file, to hand on
  grid.csv, sensitivity.*    with --grid: held-out accuracy of all settings
  SETTING/                   with --settings: the runs and the files above, by setting;
                             the table in DIR has one column per setting, its figure
                             one panel

The flags of bin/run apply to every run; hyperparameters such as --fedprox_strength go
to the methods that have them. --settings_of=NAME takes the settings that are not given
from a method instead of the task, or with `each` from every method's own paper.
"""

fail = functools.partial(command_line.fail, command=_COMMAND)


def read_flags(argv):
    """Parses the flags of the command."""
    given = flags.FlagValues()
    runs = several.settings_of_runs("directory of the runs, tables and pictures")
    own = [*runs, *_OWN, command_line.VERBOSITY]
    command_line.define_flags(given, own, key=("output_dir", "settings_of", "recipe"))
    command_line.parse(argv, given, _USAGE)
    for name, reason in (
        ("process", "give --processes, one or several separated by commas."),
        ("seed", "give --seeds, how many, or which: 0,1,2."),
    ):
        if given[name].value is not None:
            fail(SettingError(name, None, reason))
    return given


def write(
    given,
    done,
    groups,
    measured,
    *,
    folder="",
    missing=(),
    tuned=None,
    columns=(),
    weights=None,
    command="",
):
    """Writes the files of finished runs; returns their table, None without a run."""
    groups = {name: paths for name, paths in groups.items() if paths}
    if not groups:
        return None
    weights = weights or finished_runs.WEIGHTS.default
    analyses = []
    for name, paths in groups.items():
        for path in paths:
            run = f"{name}, {pathlib.Path(path).name}"
            analyses += batch.analyses_for(path, run, columns, weights)
    done.analyse(analyses)
    found = comparison.tabulate(
        groups,
        accuracy_at_rounds=measured.accuracy_at_rounds or (),
        target_accuracies=measured.target_accuracies or (),
        target_measure=measured.target_measure,
        target_model=measured.target_model,
        columns=columns,
        weights=weights,
        tuned=tuned or {},
        missing=missing,
        baseline=given.baseline,
    )
    where = os.path.join(given.output_dir, folder)
    comparison.write(found, where, given.title or "", command)
    return found


def write_settings(given, done, of_settings, made, **options):
    """Writes the files of each setting, and of all; returns whether there are any.

    Args:
      given: The flags.
      done: The batch.
      of_settings: Settings and planned runs by heading.
      made: Groups and table by heading, as made before; those of other groups are made.
      **options: Further arguments of `write`.
    """
    for heading, (column, planned) in of_settings.items():
        groups = by_process(planned, done)
        if made.get(heading, (None,))[0] != groups:
            missing = [run.name for run in planned if run.name in done.missing]
            folder = axis.folder(column)
            found = write(
                given, done, groups, folder=folder, missing=missing, **options
            )
            made[heading] = groups, found
    found = {heading: each for heading, (_, each) in made.items() if each}
    if found:
        everything = settings_table.SettingsTable(found)
        everything.write(given.output_dir, given.title or "", options["command"])
    return bool(found)


def by_process(planned, done):
    """Returns the directories of finished runs by process, in the planned order."""
    finished = {run.directory for run in done.finished}
    groups = {run.config.process: [] for run in planned}
    for run in planned:
        if run.directory in finished:
            groups[run.config.process].append(run.directory)
    return groups


def given_groups(given):
    """Returns the groups of `--run_dirs`; None without this flag."""
    if not given.run_dirs:
        command_line.needed("processes", given.processes)
        return None
    for name in several.requested(given):
        if name not in _OF_TABLES:
            raise SettingError(name, None, "leave it out: --run_dirs are finished.")
    for each in (*series.SETTINGS, tuning.GRID, axis.SETTINGS):
        if given[each.name].value is not None:
            raise SettingError(each.name, None, "leave it out: give it or --run_dirs.")
    groups = {}
    for text in given.run_dirs:
        name, is_named, path = text.rpartition("=")
        run = finished_runs.read(path)
        groups.setdefault(name if is_named else run.config["process"], []).append(path)
    return groups


def print_protocol(common, processes, grid, of_settings):
    """Prints the protocol of the requested runs."""
    if of_settings:
        of_columns = {
            heading: {run.config.process: [run.config.dump()] for run in planned}
            for heading, (_, planned) in of_settings.items()
        }
        lines = protocol.lines_of_columns(of_columns)
    else:
        common = protocol.asked(common)
        configs = {
            name: [series.of_process(common, name, 0).resolved().dump()]
            for name in series.process_names(processes)
        }
        lines = protocol.of(configs, grid).lines()
    print(*lines, "", sep="\n", flush=True)


def plan_settings(given, common, asked):
    """Returns the settings and the planned runs of each column by its heading."""
    if given.grid is not None:
        why = "give it or --grid: each setting is tuned by a command of its own."
        raise SettingError(axis.SETTINGS.name, given.settings, why)
    return {
        heading: (column, axis.plan(common, column, heading, **asked))
        for heading, column in axis.parse(given.settings, common.given()).items()
    }


@command_line.command
def main(argv, stop, executor=None):
    """Plans the runs, carries them out and tabulates them."""
    given = read_flags(argv)
    common, tuner, planned, grid, of_settings = None, None, [], {}, {}
    try:
        groups = given_groups(given)
        command_line.needed("output_dir", given.output_dir)
        weights = several.value_of(given, finished_runs.WEIGHTS)
        wanted = {name: given[name].value for name in _OF_TABLES}
        measured = experiment.RunConfig.of(wanted)
        if groups is not None:
            given.baseline = baseline_of(given.baseline, [*groups])
        else:
            common = experiment.RunConfig.of(several.requested(given))
            seeds = series.SEEDS.of(several.value_of(given, series.SEEDS))
            asked = {"processes": given.processes, "seeds": seeds}
            names = series.process_names(given.processes)
            given.baseline = baseline_of(given.baseline, names, len({*seeds}))
            if given.settings is not None:
                of_settings = plan_settings(given, common, asked)
                planned = [run for _, runs in of_settings.values() for run in runs]
            elif given.grid is None:
                planned = series.plan(common, **asked)
            else:
                grid = tuning.parse(given.grid)
                tuner = tuning.Tuning(common, grid, **asked)
        first = tuner.planned if tuner else planned
        if first:  # A recipe may set rounds and targets.
            measured = first[0].config
        targets = measured.target_accuracies or ()
        columns = table.parse_columns(given.columns or (), targets)
        table.check_measured(columns, [run.config for run in planned])
        executor = executor or several.executor(given)
        done = several.begin(given, first, stop, executor)
    except ValueError as error:
        fail(error)
    if given.dry_run:
        if groups is not None:
            fail(
                SettingError("dry_run", True, "leave it out: --run_dirs are finished.")
            )
        if common is not None:
            print_protocol(common, given.processes, grid, of_settings)
        with several.carried_out(done, fail), forecast.Forecast(first) as tried:
            if tried.planned:
                trial = several.begin(given, tried.planned, stop, executor, tried.path)
                trial.run()
                several.fail_for_failed(trial.failed, len(tried.planned), False, fail)
            print("", *tried.lines(several.value_of(given, jobs.JOBS)), sep="\n")
        return
    if given.list_commands:
        if tuner and not done.missing:
            planned = tuner.plan(tuner.best(done.finished))
            done = several.begin(given, planned, stop, executor)
        several.print_commands(done)
        return
    if common is not None:
        print_protocol(common, given.processes, grid, of_settings)
    failed, tuned, lost = [], None, []
    with several.carried_out(done, fail):
        if tuner:
            done.run()
            failed = done.failed
            tuned = tuner.best(done.finished)
            where = files.make_directory(given.output_dir, "output_dir")
            sensitivity.write(tuner.rows(done.finished), tuner.names, where)
            planned = tuner.plan(tuned)
            lost = [*done.missing, *tuner.lost(tuned)]
            done = several.begin(given, planned, stop, executor)

        def write_all(made=None, **more):
            command = shlex.join([_COMMAND, *argv])
            options = {"measured": measured, "command": command, **more}
            if of_settings:
                made = {} if made is None else made
                return write_settings(given, done, of_settings, made, **options)
            found = groups or by_process(planned, done)
            missing = [*done.missing, *lost]
            return write(given, done, found, missing=missing, tuned=tuned, **options)

        done.run(functools.partial(write_all, {}))
        has_table = write_all(columns=columns, weights=weights)
    if has_table:
        of_grid = sensitivity.FILES if tuner else ()
        several.show(given.output_dir, (*comparison.FILES, *of_grid))
    total = len(planned) + (len(first) if tuner else 0)
    several.fail_for_failed([*failed, *done.failed], total, has_table, fail)
    if lost:
        fail(f"{'; '.join(lost)}: no setting of the grid ended finite.", exit_code=1)
