"""Runs methods with seeds and tabulates: `bin/compare --help` says how.

The thin end of `tff_reg.experiment.series`, which plans and runs, and of
`tff_reg.experiment.compare`, which makes the table.
"""

import os
import pathlib
import signal
import sys

from tff_reg import commands, experiment
from tff_reg.experiment import (
    command_line,
    comparison,
    config as config_lib,
    progress,
    series,
)
from tff_reg.lazy import flags
from tff_reg.settings import SettingError

_COMMAND = "bin/compare"
_HELP = """\
bin/compare --processes=NAME[+NAME...],... [--seeds=N,...] --output_dir=DIR [flags]

Runs every method with every seed, one run after another, and makes the table and the
figure that a paper would have. The same command again resumes: runs that are finished
are not repeated. What fails is named, and the table has the rest.

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

All other flags are those of bin/run, whose --help lists them, and go to every run;
strengths such as --fedprox_strength go to the methods that have them. So do those of a
--recipe, whose other settings all runs have, but for its process and directory."""


def fail(message, exit_code=2):
    """Ends the command with one line."""
    command_line.fail(message, exit_code=exit_code, command=_COMMAND)


def read_flags(argv):
    """The flags of the command."""
    given = flags.FlagValues()
    own = [*series.SETTINGS, comparison.COLUMNS_SETTING]
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


class Comparison:
    """The runs of one command, what has come of them, and telling about it."""

    def __init__(self, given, planned, executor, is_watched):
        self._given = given
        self._planned = planned
        self._is_watched = is_watched
        self._executor = executor
        self._series = series.Series(self._command, executor)
        self._finished = []
        self._columns = comparison.parse_columns(given.columns or ())
        self._is_in_line = False
        self.failed = []

    def _command(self, asked):
        command = [*commands.START, "run"]
        if self._given.verbosity is not None:
            command.append(f"--verbosity={self._given.verbosity}")
        return [*command, *command_line.as_flags(asked)]

    def run(self):
        """Runs what is not finished; tabulates whenever something has finished."""
        for number, run in enumerate(self._planned, start=1):
            head = f"run {number}/{len(self._planned)}  {run.name}"
            if run.is_finished:
                self._finished.append(run)
                print(f"{head}: finished before, {_result(run)}", flush=True)
                continue
            self._begin(head)
            why = self._series.run(run)
            self._end(head, f"failed ({why})" if why else _result(run))
            if why:
                self.failed.append(run)
            else:
                self._finished.append(run)
                self.tabulate()

    def _begin(self, head):
        if self._is_watched:
            print(f"\n{head}", flush=True)
        else:  # The result will end this line.
            print(f"{head}: ", end="", flush=True)
            self._is_in_line = True

    def _end(self, head, text):
        print(f"{head}: {text}" if self._is_watched else text, flush=True)
        self._is_in_line = False

    def end_line(self):
        """Ends the line that waits for a result, for what is said instead."""
        if self._is_in_line:
            print(flush=True)
        self._is_in_line = False

    def stop(self):
        """Ends the run that is under way, for who interrupts us."""
        self._executor.stop()
        self.end_line()

    def say_where_it_stands(self):
        again = "the same command"
        if self._given.overwrite:
            again += " without --overwrite"
        return (
            f"{len(self._finished)} of {len(self._planned)} runs are finished in"
            f" {self._given.output_dir}, and {again} goes on from there"
        )

    def tabulate(self, is_last=False):
        """Writes the files; returns whether there was anything to write."""
        config = self._planned[0].config  # Rounds and targets are the same for all.
        directories = {run.config.process: [] for run in self._planned}
        for run in self._finished:
            directories[run.config.process].append(run.directory)
        directories = {name: paths for name, paths in directories.items() if paths}
        columns = self._columns if is_last else []
        if columns:
            self._analyse(columns)
        if directories:
            experiment.compare(
                directories,
                self._given.output_dir,
                accuracy_at_rounds=config.accuracy_at_rounds,
                target_accuracies=config.target_accuracies,
                columns=columns,
            )
        return bool(directories)

    def _analyse(self, columns):
        """Runs the analyses that columns need and runs have not."""
        needed = {
            "hessian": comparison.HESSIAN_COLUMNS.keys() & set(columns),
            "cost": comparison.COST_COLUMNS.keys() & set(columns),
        }
        for run in self._finished:
            for subject, wanted in needed.items():
                if wanted and not comparison.is_analysed(run.directory, sorted(wanted)):
                    head = f"{subject} of {run.name}"
                    self._begin(head)
                    why = self._series.run_command(
                        [
                            *commands.START,
                            "analyze",
                            subject,
                            f"--run_dir={run.directory}",
                        ]
                    )
                    self._end(head, f"failed ({why})" if why else "done")
                    if why:
                        raise ValueError(f"{head} failed: {why}")


def _result(run):
    summary = run.result()
    return (
        f"test accuracy {progress.percent(summary['final_accuracy'])} after"
        f" {summary['rounds']} rounds, {progress.duration(summary['training_seconds'])}"
    )


@command_line.command(_HELP)
def main(argv, stop, executor=None):
    """Plans, runs, tabulates.

    Args:
      argv: The arguments.
      stop: Is told what to say and to end.
      executor: Runs the commands; by default in processes of their own.
    """
    given = read_flags(argv)
    is_verbose = given.verbosity is not None and given.verbosity >= 0
    is_watched = is_verbose or (sys.stdout.isatty() and sys.stderr.isatty())
    executor = executor or series.ChildProcesses(is_watched=is_watched)
    try:
        planned = plan(given)
        comparison_ = Comparison(given, planned, executor, is_watched)
    except ValueError as error:
        fail(error)
    stop.before_exit(comparison_.stop)
    stop.say(comparison_.say_where_it_stands)
    try:
        comparison_.run()
        has_table = comparison_.tabulate(is_last=True)
    except series.Interrupted as error:
        # As if we had been sent the signal, which we may have been, too.
        os.kill(os.getpid(), error.number)
        while True:
            signal.pause()
    except series.WrongFlagsError as error:
        comparison_.end_line()
        if str(error):
            fail(error)
        raise command_line.Ended(2) from None
    except (ValueError, OSError) as error:
        if isinstance(error, BrokenPipeError):
            raise
        fail(error, exit_code=1)
    if has_table:
        directory = pathlib.Path(given.output_dir)
        print()
        print((directory / "table.md").read_text("utf-8"))
        names = [name for name in comparison.FILES if (directory / name).exists()]
        print(f"In {directory}: {', '.join(names)}", flush=True)
    if comparison_.failed:
        names = "; ".join(run.name for run in comparison_.failed)
        rest = "; the table has the rest" if has_table else ""
        fail(
            f"{len(comparison_.failed)} of {len(planned)} runs failed ({names}){rest}.",
            exit_code=1,
        )
