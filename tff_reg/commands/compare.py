"""Runs methods with seeds and tabulates: `bin/compare --help` says how.

The thin end of `tff_reg.experiment.series`, which plans, of `batch`, which runs, and of
`tff_reg.experiment.compare`, which makes the table.
"""

import pathlib

from tff_reg import experiment
from tff_reg.commands import command_line, several
from tff_reg.experiment.config import run_config as config_lib
from tff_reg.experiment.report import comparison, finished_runs, protocol
from tff_reg.experiment.series import batch, jobs, plan as series, tuning
from tff_reg.lazy import flags
from tff_reg.settings import Setting, SettingError

_COMMAND = "bin/compare"
_HELP = """\
bin/compare --processes=NAME[+NAME...],... [--seeds=N,...] --output_dir=DIR [flags]
bin/compare --run_dirs=[NAME=]DIR,... --output_dir=DIR [flags]

Runs every method with every seed under one protocol, and makes the table and the figure
that a paper would have. The same command again resumes: runs that are finished are not
repeated. What fails is named, and the table has the rest.

  --processes=NAME,...            methods, or sums of methods such as fedprox+man; all
                                  for every method
  --run_dirs=[NAME=]DIR,...       finished runs, in place of new ones: grouped by the
                                  names, or by their processes
  --seeds=N,...                   such as 0,1,2; each method runs with each [0]
  --settings_of=NAME              whose settings are the protocol, all that is not the
                                  methods' own: the task's (task), or a method's; with
                                  each, every method has its own, which compares nothing
                                  but papers, and nothing is in bold. --recipe=NAME
                                  takes its place [task]
  --output_dir=DIR                holds the runs, in DIR/NAME-seedN, and the results:
                                  table.csv    a row a method: means and sample
                                               deviations (n - 1) over the seeds, none
                                               for one seed
                                  table.md     the same in percent, the best in bold
                                  curves.png   test accuracy by round, with bands of
                                               one sample deviation
                                  curves.csv   its numbers, a row a method and round
                                  compute.png  by multiply-adds of a client, with the
                                               column mflops
  --accuracy_at_rounds=N,...      columns with the moving average after these rounds
  --columns=NAME,...              columns of table.md, as of FedAlign's Tables 1 and 5,
                                  for which the runs are analysed where they are not
                                  yet: accuracy, best, ema, all_clients,
                                  lambda_max, trace, h_n, h_d, h_n_code, h_d_code,
                                  drift, drift_agreement, gradient_agreement, mflops,
                                  rest_mflops, params, seconds
  --target_accuracies=X,...       columns with the rounds to these accuracies, such as
                                  0.48,0.52
  --weights=NAME                  of which model lambda_max and trace are: server,
                                  all_clients (the mean of all clients' last models) or
                                  best (of a run with --keep_best) [server]
  --grid=NAME=X,...;NAME=X,...    settings to be tuned, such as
                                  'fedprox_strength=0.001,0.01;man_strength=0.1,0.2':
                                  each method tries all combinations of those that it
                                  has, in DIR/tuning, on training examples that are held
                                  out (--validation_share, 0.1 of them), never on the
                                  test set; then it runs on all with the best
  --jobs=N                        runs at a time, which share this machine's cores and
                                  GPUs; their numbers are the same [1]
  --jobs_on=local|slurm|ray       this machine, jobs of SLURM (submitted from here), or
                                  tasks of Ray (--ray_address); with --cpus_per_job=N
                                  [1], --gpus_per_job=N [0] and options of SLURM's own:
                                  --sbatch=partition=gpu,time=4:00:00,mem=16G [local]

All other flags are those of bin/run, which --help=all lists, and go to every run;
strengths such as --fedprox_strength go to the methods that have them. So do those of a
--recipe, whose other settings all runs have, but for its process and directory. A
method's own are its strengths, and what it cannot be without, such as FedAdam its
server's Adam; they are told before the first run, and below the table."""


def fail(message, exit_code=2):
    """Ends the command with one line."""
    command_line.fail(message, exit_code=exit_code, command=_COMMAND)


_RUN_DIRS = Setting("run_dirs", str, (), "finished runs", is_tuple=True)
# What makes sense beside finished runs.
_OF_TABLES = (
    "accuracy_at_rounds",
    "target_accuracies",
    "target_measure",
    "target_model",
    "output_dir",
)


def read_flags(argv):
    """The flags of the command."""
    given = flags.FlagValues()
    own = [
        *series.SETTINGS,
        *jobs.SETTINGS,
        tuning.GRID,
        _RUN_DIRS,
        comparison.COLUMNS_SETTING,
        finished_runs.WEIGHTS,
        command_line.VERBOSITY,
    ]
    command_line.define_flags(given, [*config_lib.listed(), *own])
    command_line.parse(argv, given, command=_COMMAND)
    for name in ("process", "seed"):
        if given[name].value is not None:
            own = {"process": "processes", "seed": "seeds"}[name]
            reason = f"give --{own}, one or several separated by commas."
            fail(SettingError(name, None, reason))
    return given


class Table:
    """What the flags want of the files, and writing them."""

    def __init__(self, given):
        self._directory = command_line.needed("output_dir", given.output_dir)
        # A column that there is not is told before anything starts.
        self._columns = comparison.parse_columns(given.columns or ())
        self._weights = several.value_of(given, finished_runs.WEIGHTS)
        asked = experiment.RunConfig.of(
            {
                name: given[name].value
                for name in _OF_TABLES
                if given[name].value is not None
            }
        )
        self._rounds = asked.accuracy_at_rounds or ()
        self._targets = asked.target_accuracies or ()
        # Else what each run's config says.
        self._measure, self._model = given.target_measure, given.target_model

    def of_config(self, config):
        """Takes rounds and targets from a run's config: a recipe may have them."""
        self._rounds = config.accuracy_at_rounds
        self._targets = config.target_accuracies

    def write(self, done, groups, tuned=None, is_last=True):
        """Writes the files of finished runs.

        Args:
          done: A `batch.Batch`, which analyses.
          groups: Directories by the name that the table has for them.
          tuned: As of `experiment.compare`.
          is_last: Whether no run is to come, so that analyses are worth their while.

        Returns:
          Whether there was anything to write.
        """
        groups = {name: paths for name, paths in groups.items() if paths}
        if not groups:
            return False
        columns = self._columns if is_last else []
        done.analyse(
            [
                analysis
                for name, paths in groups.items()
                for path in paths
                for analysis in batch.analyses_for(
                    path, f"{name}, {pathlib.Path(path).name}", columns, self._weights
                )
            ]
        )
        experiment.compare(
            groups,
            self._directory,
            accuracy_at_rounds=self._rounds,
            target_accuracies=self._targets,
            target_measure=self._measure,
            target_model=self._model,
            columns=columns,
            weights=self._weights,
            tuned=tuned or {},
            missing=done.missing,
        )
        return True


def by_process(planned, done):
    """The directories of finished runs, by process in the order of the planned ones."""
    groups = {run.config.process: [] for run in planned}
    for run in done.finished:
        groups[run.config.process].append(run.directory)
    return groups


def given_groups(given):
    """The groups of `--run_dirs`."""
    for name in several.requested(given):
        if name not in _OF_TABLES:
            raise SettingError(name, None, "leave it out: --run_dirs are finished.")
    for each in (*series.SETTINGS, tuning.GRID):
        if given[each.name].value is not None:
            raise SettingError(each.name, None, "leave it out: give it or --run_dirs.")
    groups = {}
    for text in given.run_dirs:
        name, is_named, path = text.rpartition("=")
        run = finished_runs.read(path)
        groups.setdefault(name if is_named else run.config["process"], []).append(path)
    return groups


def protocol_of(common, processes, grid):
    """What the runs that are asked for have in common."""
    common = protocol.asked(common)
    configs = {
        name: [series.of_process(common, name, 0).resolved().dump()]
        for name in series.process_names(processes)
    }
    return protocol.of(configs, grid)


@command_line.command(command_line.with_flags_of_runs(_HELP))
def main(argv, stop, executor=None):
    """Plans, runs, tabulates.

    Args:
      argv: The arguments.
      stop: Is told what to say and to end.
      executor: Runs the commands; by default in processes of their own.
    """
    given = read_flags(argv)
    try:
        groups = given_groups(given) if given.run_dirs else None
        if groups is None:
            command_line.needed("processes", given.processes)
        table = Table(given)
        asked = {
            "processes": given.processes,
            "seeds": several.value_of(given, series.SEEDS),
        }
        common = None
        if groups is None:
            common = experiment.RunConfig.of(several.requested(given))
        tuner, planned, grid = None, [], {}
        if given.grid is not None:
            grid = tuning.parse(given.grid)
            tuner = tuning.Tuning(common, grid, **asked)
        elif groups is None:
            planned = series.plan(common, **asked)
        first = tuner.planned if tuner else planned
        if common is not None:
            shared = protocol_of(common, given.processes, grid)
        executor = executor or several.executor(given, given.output_dir)
        done = several.begin(given, first, stop, executor)
    except ValueError as error:
        fail(error)
    failed, tuned, lost = [], None, []
    if common is not None:
        print(*shared.lines(), "", sep="\n", flush=True)
    with several.carried_out(done, fail):
        if tuner:
            done.run()
            failed = done.failed
            tuned = tuner.best(done.finished)
            planned = tuner.plan(tuned)
            lost = sorted({run.config.process for run in tuner.planned} - tuned.keys())
            done = several.begin(given, planned, stop, executor)
        if planned:
            table.of_config(planned[0].config)
            done.run(lambda: table.write(done, by_process(planned, done), tuned, False))
            groups = by_process(planned, done)
        has_table = table.write(done, groups or {}, tuned)
    if has_table:
        several.show(given.output_dir, comparison.FILES)
    total = len(planned) + (len(tuner.planned) if tuner else 0)
    several.fail_for_failed([*failed, *done.failed], total, has_table, fail)
    if lost:
        why = f"{', '.join(lost)}: no setting of the grid ended finite."
        fail(why, exit_code=1)
