"""Runs methods with several seeds and tabulates them: `bin/compare`.

The command line of `tff_reg.experiment.series`, which plans and carries out the runs,
and writes the table.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import shlex
import tempfile
import time
from collections.abc import Sequence
from typing import Any

from absl import flags

from tff_reg import experiment, lazy, tables
from tff_reg.commands import command_line, several
from tff_reg.experiment.config import identity
from tff_reg.experiment.report import finished_runs, quantities, table
from tff_reg.experiment.report.differences import BASELINE, baseline_of
from tff_reg.experiment.rounds import directory, metrics, progress
from tff_reg.experiment.series import (
    comparing,
    jobs,
    plan as series,
    tuning,
)
from tff_reg.experiment.series.plan import PlannedRun, plan_run
from tff_reg.settings import SUMMARY, Setting, SettingError, tagged

_COMMAND = "bin/compare"
_RUN_DIRS = Setting(
    "run_dirs",
    str,
    (),
    "finished runs, in place of new ones: grouped by the names, or by their processes",
    placeholder="[NAME=]DIR",
    is_tuple=True,
)
_OF_RUNS = (tuning.GRID, comparing.SETTINGS)
# What tables show beside the rounds and targets.
_SHOWN = (BASELINE, quantities.COLUMNS, finished_runs.WEIGHTS)
_OWN = (
    *series.SETTINGS,
    _RUN_DIRS,
    *_SHOWN,
    comparing.NAMES,
    *_OF_RUNS,
    *jobs.SETTINGS,
    Setting(
        "dry_run",
        bool,
        False,
        "tries two rounds of each method in a temporary directory, and prints the time,"
        " memory and bytes that are to be expected, instead of running",
    ),
    Setting("title", str, None, "title of the pictures"),
)
_ROUNDS = 2  # The first traces and compiles.
# The settings that may be given with finished runs.
_OF_TABLES = (*tagged(experiment.RunConfig, SUMMARY), "output_dir")
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
  clients.csv                every client of every run, with --client_evaluation
  curves.png, .pdf, .csv     test score by round, with bands of one deviation
  compute.png, .pdf          test score by multiply-adds, with the column mflops
  report.html                all of it in one file, to hand on
  grid.csv, sensitivity.*    with --grid: held-out score of all settings
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
    runs = several.settings_of_runs("directory of the runs, tables and pictures", argv)
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


def given_groups(given):
    """Returns the groups of `--run_dirs`; None without this flag."""
    if not given.run_dirs:
        command_line.needed("processes", given.processes)
        return None
    for name in several.requested(given):
        if name not in _OF_TABLES:
            raise SettingError(name, None, "leave it out: --run_dirs are finished.")
    for name in (*(each.name for each in (*series.SETTINGS, *_OF_RUNS)), "dry_run"):
        if given[name].value is not None:
            raise SettingError(name, None, "leave it out: give it or --run_dirs.")
    groups = {}
    for text in given.run_dirs:
        name, is_named, path = text.rpartition("=")
        run = finished_runs.read(path)
        groups.setdefault(name if is_named else run.config["process"], []).append(path)
    return groups


def planned(given):
    """Returns the comparison that the flags ask for, planned or of finished runs."""
    groups = given_groups(given)
    command_line.needed("output_dir", given.output_dir)
    if groups is not None:
        baseline_of(given.baseline, [*groups])
        wanted = {name: given[name].value for name in _OF_TABLES}
        asked, shown = experiment.RunConfig.of(wanted), several.values_of(given, _SHOWN)
        shown["names"] = comparing.names_of(
            several.value_of(given, comparing.NAMES), groups
        )
        return comparing.finished(groups, table.Layout.of(asked, **shown))
    common = experiment.RunConfig.of(several.requested(given))
    return comparing.planned(
        lambda column: (dataclasses.replace(common, **column), lazy.tasks),
        processes=given.processes,
        seeds=series.SEEDS.of(several.value_of(given, series.SEEDS)),
        called=several.value_of(given, comparing.NAMES),
        **several.values_of(given, (*_OF_RUNS, *_SHOWN)),
    )


class Forecast:
    """The expectation of planned runs; in a `with` statement.

    Attributes:
      path: A temporary directory.
      planned: The runs to try there: of the seeds of a method the first.
    """

    def __init__(self, runs: Sequence[PlannedRun]):
        """Plans the trials."""
        self._folder = tempfile.TemporaryDirectory(prefix="tff_reg-dry-run-")
        self.path = self._folder.name
        self._left: dict[str, list[PlannedRun]] = {}
        self._num_finished = sum(run.is_finished for run in runs)
        for run in runs:
            if not run.is_finished:
                self._left.setdefault(run.name.rpartition(", seed")[0], []).append(run)
        self.planned = [
            self._trial(number, name, each[0])
            for number, (name, each) in enumerate(self._left.items())
        ]
        self._on_cpu = []
        if jobs.gpus() and not any(
            run.config.devices or run.config.runtime != "in_process" for run in runs
        ):
            on_cpu = {"devices": ("CPU:0",), "require_gpu": False}
            self._on_cpu = [
                self._trial(number, f"{name} on the CPU", each[0], **on_cpu)
                for number, (name, each) in enumerate(self._left.items(), len(runs))
            ]
            self.planned += self._on_cpu

    def _trial(
        self, number: int, name: str, run: PlannedRun, **changes: Any
    ) -> PlannedRun:
        where = os.path.join(self.path, str(number))
        rounds = min(_ROUNDS, run.config.total_rounds)
        asked = dataclasses.replace(
            run.asked,
            total_rounds=rounds,
            output_dir=where,
            stop_at_target=False,
            patience=None,
            **changes,
        )
        return plan_run(asked, name=f"{name}, tried")

    def __enter__(self) -> Forecast:
        return self

    def __exit__(self, *_: Any) -> None:
        self._folder.cleanup()

    def lines(self, elapsed: float, jobs: int = 1) -> list[str]:
        """Returns a table of each method's estimated time, memory and traffic.

        `elapsed` are the seconds that the trials took, with their starts and tests.
        """
        cells: dict[str, list[str]] = {}
        seconds = disk = memory = 0.0
        for trial, (name, runs) in zip(self.planned, self._left.items()):
            there = directory.RunDirectory(trial.directory)
            table = _metrics(trial)
            per_round = table.column(metrics.SECONDS)[-1]
            megabytes = table.column(metrics.MEMORY)[-1]
            rounds = sum(run.config.total_rounds for run in runs)
            clients = rounds * runs[0].config.clients_per_round
            sent = clients * sum((there.config or {}).get(identity.TRAFFIC) or ())
            files = (path for path in there.path.rglob("*") if path.is_file())
            size = len(runs) * sum(path.stat().st_size for path in files) / 1e6
            seconds, disk = seconds + rounds * per_round, disk + size
            memory = max(memory, megabytes)
            for head, text in {
                "method": name,
                "runs": str(len(runs)),
                "rounds": str(rounds),
                "s a round": f"{per_round:.2f}",
                "time": progress.duration(rounds * per_round),
                "MB of memory": f"{megabytes:,.0f}",
                **_of_gpu(table),
                "MB sent and received": f"{sent / 1e6:,.0f}" if sent else "-",
                "MB on disk": f"{size:,.0f}",
            }.items():
                cells.setdefault(head, []).append(text)
        notes = []
        for trial, name, seconds_here in zip(
            self._on_cpu, self._left, cells.get("s a round", ())
        ):
            on_cpu = _metrics(trial).column(metrics.SECONDS)[-1]
            cells.setdefault("on the CPU", []).append(f"{on_cpu:.2f}")
            if on_cpu < float(seconds_here):
                notes.append(f"{name} is faster on the CPU here: --devices=CPU:0.")
        there = progress.count(sum(map(len, self._left.values())), "run")
        total = (
            f"{there} to do, {self._num_finished} finished: about"
            f" {progress.duration(seconds / jobs)} of rounds and"
            f" {jobs * memory / 1000:.1f} GB of memory with"
            f" {progress.count(jobs, 'job')}, and {disk:,.0f} MB on disk, without"
            " further states of clients. Starts and tests come on top:"
            f" {progress.count(len(self.planned), 'trial')} of two rounds took"
            f" {progress.duration(elapsed)} with them."
        )
        return [*tables.to_markdown(cells), "", *notes, total] if cells else [total]


def _metrics(run: PlannedRun) -> metrics.MetricsTable:
    path = directory.RunDirectory(run.directory).path / "metrics.csv"
    return metrics.MetricsTable.parse(path.read_text("utf-8"))


def _of_gpu(table: metrics.MetricsTable) -> dict[str, str]:
    megabytes = table.rows()[-1].get(metrics.GPU_MEMORY)
    return {"MB of the GPU": f"{megabytes:,.0f}"} if megabytes else {}


def try_runs(study, done, num_jobs):
    """Tries two rounds of each method, and prints what all will take."""
    print(*study.sheet.protocol(study), sep="\n", flush=True)
    study.sheet.plan_rest(study)
    expected = study.sheet.tuner.expected() if study.sheet.tuner else []
    runs = [*study.runs, *expected]
    with several.carrying_out(done, fail), Forecast(runs) as tried:
        began = time.monotonic()
        done.run(tried.planned)
        elapsed = time.monotonic() - began
        several.fail_for_failed(done.failed, len(tried.planned), False, fail)
        print("", *tried.lines(elapsed, num_jobs), sep="\n")


@command_line.command
def main(argv, stop, executor=None):
    """Plans the runs, carries them out and tabulates them."""
    given = read_flags(argv)
    try:
        study = planned(given)
        of_runs = study.runs, given.output_dir, "output_dir"
        done = several.begin(given, stop, *of_runs, executor)
    except ValueError as error:
        fail(error)
    if given.dry_run:
        try_runs(study, done, several.value_of(given, jobs.JOBS))
        return
    of_files = {"title": given.title or "", "command": shlex.join([_COMMAND, *argv])}
    several.carry_out(study, done, given, given.output_dir, fail, **of_files)
