"""The execution of a series: runs and their analyses, reported line by line.

Each is a command in its own process. Finished runs are not repeated; failed runs are
named, and the others go on.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import shlex
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Optional

from tff_reg.experiment.config import identity, run_config as config_lib
from tff_reg.experiment.report import finished_runs, quantities
from tff_reg.experiment.report.table import Layout
from tff_reg.experiment.rounds import description, directory, metrics, progress
from tff_reg.experiment.series import jobs as jobs_lib
from tff_reg.experiment.series.plan import PlannedRun
from tff_reg.settings import as_text

# Exit status of a command whose flags are wrong.
_WRONG_FLAGS = 2


class WrongFlagsError(ValueError):
    """Raised when the first run that is started reports wrong flags."""


@dataclasses.dataclass(frozen=True)
class Analysis:
    """An analysis of a finished run.

    Attributes:
      subject: The subject for `bin/analyze`.
      directory: The run's directory.
      name: The run's name for people.
      flags: Its flags beside the run's directory.
    """

    subject: str
    directory: str
    name: str
    flags: tuple[str, ...] = ()


def analyses_for(
    directory: str,
    name: str,
    layout: Layout,
    settings: Mapping[str, Any] = {},
    defaults: Mapping[str, Any] = {},
) -> list[Analysis]:
    """Returns the analyses of a finished run that a table's columns still need.

    `settings` are those that differ from the defaults. A setting that is in neither may
    have any value.
    """
    of_clients, flat, cost = (
        quantities.needing(layout.columns, kind) for kind in quantities.ANALYSES
    )
    server, weights = finished_runs.WEIGHTS.default, layout.weights
    needs: list[Any] = [(weights, flat, {**settings, "clients": 0})]
    if of_clients:
        needs.append((server, of_clients, settings))
        if weights == server:  # One analysis has both.
            needs = [(server, flat + of_clients, settings)]
    found = [
        Analysis(
            "hessian",
            directory,
            name,
            (
                *([] if whose == server else [f"--weights={whose}"]),
                *(f"--{key}={as_text(value)}" for key, value in how.items()),
            ),
        )
        for whose, asked, how in needs
        if asked
        and not quantities.is_analysed(directory, asked, whose, {**defaults, **how})
    ]
    if cost and not quantities.is_analysed(directory, cost):
        found.append(Analysis("cost", directory, name))
    return found


class Batch:
    """Carries out the runs of one command and prints how each of them ended.

    Attributes:
      failed: The reasons of failed runs by the runs' names.
    """

    def __init__(
        self,
        planned: Sequence[PlannedRun],
        start: Sequence[str],
        *,
        jobs: int = 1,
        verbosity: Optional[int] = None,
        executor: Any = None,
        fork: Any = None,
        say: Callable[..., None] = print,
    ):
        """Starts nothing."""
        is_verbose = verbosity is not None and verbosity >= 0
        is_seen = is_verbose or (sys.stdout.isatty() and sys.stderr.isatty())
        self._planned = list(planned)
        self._start = tuple(start)
        self._jobs = jobs
        self._verbosity = verbosity
        self._is_watched = is_seen and jobs == 1 and executor is None
        self._executor = executor or jobs_lib.ChildProcesses(
            is_watched=self._is_watched, jobs=jobs, fork=fork
        )
        self._say = say
        self._is_in_line = False
        self._is_first = True
        self._finished = {n for n, run in enumerate(planned) if run.is_finished}
        self.failed: dict[str, str] = {}

    @property
    def finished(self) -> list[PlannedRun]:
        """The runs that are finished, in the order of the planned ones."""
        return [self._planned[number] for number in sorted(self._finished)]

    @property
    def missing(self) -> list[str]:
        """The names of the planned runs that are not finished."""
        planned = enumerate(self._planned)
        return [run.name for number, run in planned if number not in self._finished]

    def _command(self, planned: PlannedRun) -> list[str]:
        more = [] if self._verbosity is None else [f"--verbosity={self._verbosity}"]
        return [*self._start, "run", *more, *as_flags(planned.asked)]

    def commands(self) -> list[str]:
        """Returns the command of each unfinished run, as a line for a shell.

        It sets the number of threads of this machine, which changes the last bits.
        """
        threads = [f"{name}={value}" for name, value in jobs_lib.threads().items()]
        return [
            shlex.join(["env", *threads, *self._command(run)])
            for run in self._planned
            if not run.is_finished
        ]

    def run_one(self, planned: PlannedRun) -> Optional[str]:
        """Carries out a run if need be; returns None, or why it failed, in one line.

        A run whose `summary.json` is new is finished, whatever its exit status.
        """
        if planned.is_finished:
            return None
        is_first, self._is_first = self._is_first, False
        before = planned.result()  # Of the run that is overwritten.
        status, said = self._executor.execute(self._command(planned))
        result = planned.result()
        if result is not None and result != before:
            return None
        if status == _WRONG_FLAGS and is_first:
            raise WrongFlagsError(said)
        if status == 0 and result is None:
            return f"it left no finished run in {planned.directory}"
        return _why(status, said)

    def leave_out(self, runs: Mapping[str, str]) -> None:
        """Tells of runs that will not start, by their names, and why."""
        for name, why in runs.items():
            self._say(f"{name}: not started ({why})", flush=True)
        self.failed |= runs

    def run(self, on_finished: Callable[[], Any] = lambda: None) -> None:
        """Runs the unfinished runs."""

        def head(number: int) -> str:
            name = self._planned[number].name
            return f"run {number + 1}/{len(self._planned)}  {name}"

        def begin(number: int) -> None:
            if not self._planned[number].is_finished:
                self._begin(head(number))

        left = progress.TimeLeft(len(self._planned) - len(self._finished))
        for number, why in self._all(self.run_one, self._planned, begin):
            run = self._planned[number]
            if run.is_finished and not why:
                changed = identity.other_code(
                    directory.RunDirectory(run.directory).config or {}
                )
                told = f"{result(run)}. {changed}" if changed else result(run)
                self._say(f"{head(number)}: finished before, {told}", flush=True)
                continue
            text = f"failed ({why})" if why else result(run)
            self._end(head(number), text + left.after_one())
            if why:
                self.failed[run.name] = why
                self._finished.discard(number)
            else:
                self._finished.add(number)
                on_finished()

    def analyse(self, analyses: Sequence[Analysis]) -> None:
        """Carries out analyses; each kind in as many processes as there are jobs."""
        kinds: dict[tuple[str, tuple[str, ...]], list[Analysis]] = {}
        for each in analyses:
            kinds.setdefault((each.subject, each.flags), []).append(each)
        chunks = [
            those[start :: self._jobs]
            for those in kinds.values()
            for start in range(min(self._jobs, len(those)))
        ]

        def head(number: int) -> str:
            first, *others = chunks[number]
            more = f" and {len(others)} more" if others else ""
            return f"{first.subject} of {first.name}{more}"

        def work(those: Sequence[Analysis]) -> Optional[str]:
            directories = ",".join(each.directory for each in those)
            flags = [f"--run_dir={directories}", *those[0].flags]
            command = [*self._start, "analyze", those[0].subject, *flags]
            status, said = self._executor.execute(command)
            return _why(status, said)

        for number, why in self._all(work, chunks, lambda n: self._begin(head(n))):
            self._end(head(number), f"failed ({why})" if why else "done")
            if why:
                raise ValueError(f"{head(number)} failed: {why}")

    def _all(
        self,
        work: Callable[[Any], Any],
        items: Sequence[Any],
        begin: Callable[[int], None],
    ) -> Iterator[tuple[int, Any]]:
        """Calls `work` for items; yields each item's index and result as it ends."""
        if self._jobs == 1:
            for number, item in enumerate(items):
                begin(number)
                yield number, work(item)
            return
        with concurrent.futures.ThreadPoolExecutor(self._jobs) as pool:
            numbers = {pool.submit(work, each): n for n, each in enumerate(items)}
            try:
                for future in concurrent.futures.as_completed(numbers):
                    yield numbers[future], future.result()
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                self._executor.stop()
                raise

    def _begin(self, head: str) -> None:
        if self._is_watched:
            self._say(f"\n{head}", flush=True)
        else:  # The result will end this line.
            self._say(f"{head}: ", end="", flush=True)
            self._is_in_line = True

    def _end(self, head: str, text: str) -> None:
        has_head = self._is_in_line
        self._say(text if has_head else f"{head}: {text}", flush=True)
        self._is_in_line = False

    def end_line(self) -> None:
        """Ends an unfinished line that waits for a result."""
        if self._is_in_line:
            self._say(flush=True)
        self._is_in_line = False

    def stop(self) -> None:
        """Ends the running jobs when the command is interrupted."""
        self._executor.stop()
        self.end_line()

    def standing(self, where: str, again: str) -> str:
        """Describes how many runs of a directory are finished, and how to resume."""
        return (
            f"{len(self._finished)} of {len(self._planned)} runs are finished in"
            f" {where}, and {again} goes on from there"
        )


def _why(status: int, said: str) -> Optional[str]:
    """Returns why a command failed; None if it succeeded."""
    if status == 0:
        return None
    why = f"exit code {status}"
    if status < 0:
        why = f"killed by {signal.Signals(-status).name}"
    return f"{why}: {said}" if said else why


def result(run: PlannedRun) -> str:
    """Describes a finished run in one line."""
    summary = run.result()
    assert summary is not None
    accuracy = progress.percent(summary["final_accuracy"])
    trouble = description.troubles(summary)
    return (
        f"{metrics.tested(summary)} accuracy {accuracy} after"
        f" {progress.count(summary['rounds'], 'round')},"
        f" {progress.duration(summary['training_seconds'])}"
        + (f"; {trouble}" if trouble else "")
    )


def as_flags(config: config_lib.RunConfig) -> list[str]:
    """Returns the flags of `bin/run` that give a config."""
    return [f"--{name}={as_text(value)}" for name, value in config.given().items()]
