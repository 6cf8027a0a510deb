"""Runs methods with seeds and tabulates: `bin/compare --help` says how.

The thin end of `tff_reg.experiment.series`, which plans, of `batch`, which runs, and of
`tff_reg.experiment.compare`, which makes the table.
"""

from tff_reg import experiment
from tff_reg.commands import several
from tff_reg.experiment import (
    batch,
    command_line,
    comparison,
    config as config_lib,
    finished_runs,
    series,
)
from tff_reg.lazy import flags
from tff_reg.settings import SettingError

_COMMAND = "bin/compare"
_HELP = """\
bin/compare --processes=NAME[+NAME...],... [--seeds=N,...] --output_dir=DIR [flags]

Runs every method with every seed and makes the table and the figure that a paper would
have. The same command again resumes: runs that are finished are not repeated. What
fails is named, and the table has the rest.

  --processes=NAME,...            methods, or sums of methods such as fedprox+man
  --seeds=N,...                   such as 0,1,2; each method runs with each [0]
  --output_dir=DIR                holds the runs, in DIR/NAME-seedN, and the results:
                                  table.csv    a row a method: means and sample
                                               deviations (n - 1) over the seeds, none
                                               for one seed
                                  table.md     the same in percent, the best in bold
                                  curves.png   test accuracy by round, with bands of
                                               one sample deviation
                                  compute.png  by multiply-adds of a client, with the
                                               column mflops
  --accuracy_at_rounds=N,...      columns with the moving average after these rounds
  --columns=NAME,...              columns of table.md, as of FedAlign's Tables 1 and 5,
                                  for which the runs are analysed where they are not
                                  yet: accuracy, best, ema, all_clients,
                                  lambda_max, trace, h_n, h_d, h_n_code, h_d_code,
                                  drift, drift_agreement, gradient_agreement, mflops,
                                  params, seconds
  --target_accuracies=X,...       columns with the rounds to these accuracies, such as
                                  0.48,0.52
  --weights=NAME                  of which model lambda_max and trace are: server,
                                  all_clients (the mean of all clients' last models) or
                                  best (of a run with --keep_best) [server]
  --jobs=N                        runs at a time on this machine, which share its cores;
                                  their numbers are the same [1]

All other flags are those of bin/run, whose --help lists them, and go to every run;
strengths such as --fedprox_strength go to the methods that have them. So do those of a
--recipe, whose other settings all runs have, but for its process and directory."""


def fail(message, exit_code=2):
    """Ends the command with one line."""
    command_line.fail(message, exit_code=exit_code, command=_COMMAND)


def read_flags(argv):
    """The flags of the command."""
    given = flags.FlagValues()
    own = [
        *series.SETTINGS,
        series.JOBS,
        comparison.COLUMNS_SETTING,
        finished_runs.WEIGHTS,
    ]
    command_line.define_flags(given, [*config_lib.listed(), *own])
    command_line.parse(argv, given, command=_COMMAND)
    return given


def plan(given):
    """The runs that the flags ask for."""
    requested = command_line.requested(given)
    for name, own in (("process", "processes"), ("seed", "seeds")):
        if name in requested:
            raise SettingError(
                name, None, f"give --{own}, one or several separated by commas."
            )
    own = {each.name: given[each.name].value for each in series.SETTINGS}
    own = {name: value for name, value in own.items() if value is not None}
    for name in ("processes", "output_dir"):
        command_line.needed(name, given[name].value)
    return series.plan(experiment.RunConfig.of(requested), **own)


def tabulate(given, planned, done, is_last=False):
    """Writes the files.

    Args:
      given: The flags.
      planned: All runs.
      done: A `batch.Batch` of them.
      is_last: Whether no run is to come, so that analyses are worth their while.

    Returns:
      Whether there was anything to write.
    """
    config = planned[0].config  # Rounds and targets are the same for all.
    directories = {run.config.process: [] for run in planned}
    for run in done.finished:
        directories[run.config.process].append(run.directory)
    directories = {name: paths for name, paths in directories.items() if paths}
    columns = comparison.parse_columns(given.columns or ()) if is_last else []
    weights = given.weights or finished_runs.WEIGHTS.default
    done.analyse(
        [
            analysis
            for run in done.finished
            for analysis in batch.analyses_for(run, columns, weights)
        ]
    )
    if directories:
        experiment.compare(
            directories,
            given.output_dir,
            accuracy_at_rounds=config.accuracy_at_rounds,
            target_accuracies=config.target_accuracies,
            columns=columns,
            weights=weights,
        )
    return bool(directories)


@command_line.command(_HELP)
def main(argv, stop, executor=None):
    """Plans, runs, tabulates.

    Args:
      argv: The arguments.
      stop: Is told what to say and to end.
      executor: Runs the commands; by default in processes of their own.
    """
    given = read_flags(argv)
    try:
        planned = plan(given)
        # A column that there is not is told before anything starts.
        comparison.parse_columns(given.columns or ())
        several.value_of(given, finished_runs.WEIGHTS)
        done = several.begin(given, planned, stop, executor)
    except ValueError as error:
        fail(error)
    with several.carried_out(done, fail):
        done.run(lambda: tabulate(given, planned, done))
        has_table = tabulate(given, planned, done, is_last=True)
    if has_table:
        several.show(given.output_dir, comparison.FILES)
    several.fail_for_failed(done, len(planned), has_table, fail)
