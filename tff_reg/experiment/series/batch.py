"""The execution of a series: runs and their analyses, reported line by line.

Each is a command in its own process. Finished runs are not repeated; failed runs are
named, and the others go on.
"""

from __future__ import annotations

import concurrent.futures
import shlex
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Optional

from tff_reg import scores
from tff_reg.experiment.config import identity, run_config as config_lib
from tff_reg.experiment.rounds import description, directory, metrics, progress
from tff_reg.experiment.series import jobs as jobs_lib
from tff_reg.experiment.series.plan import Analysis, PlannedRun
from tff_reg.settings import as_text

# Exit status of a command whose flags are wrong.
_WRONG_FLAGS = 2


class WrongFlagsError(ValueError):
    """Raised when the first run that is started reports wrong flags."""


class Batch:
    """Carries out the runs of one command and prints how each of them ended.

    Attributes:
      run_one: Carries out a run if need be; returns None, or why it failed, in a line.
      failed: The reasons of failed runs by the runs' names.
    """

    def __init__(
        self,
        start: Sequence[str] = (),
        *,
        jobs: int = 1,
        verbosity: Optional[int] = None,
        executor: Any = None,
        fork: Any = None,
        run_one: Optional[Callable[[PlannedRun], Optional[str]]] = None,
        say: Callable[..., None] = print,
    ):
        """Starts nothing; without `run_one` a run is a command of the executor."""
        is_verbose = verbosity is not None and verbosity >= 0
        is_seen = is_verbose or (sys.stdout.isatty() and sys.stderr.isatty())
        self._start = tuple(start)
        self._jobs = jobs
        self._verbosity = verbosity
        self._is_watched = is_seen and jobs == 1 and executor is None
        self._executor = executor or jobs_lib.ChildProcesses(
            is_watched=self._is_watched, jobs=jobs, fork=fork
        )
        self.run_one = run_one or self._as_command
        self._has_heads = run_one is None  # Or progress bars are in their place.
        self._say = say
        self._is_in_line = False
        self._is_first = True
        self.failed: dict[str, str] = {}

    def _command(self, planned: PlannedRun) -> list[str]:
        more = [] if self._verbosity is None else [f"--verbosity={self._verbosity}"]
        return [*self._start, "run", *more, *as_flags(planned.asked)]

    def commands(self, runs: Sequence[PlannedRun]) -> list[str]:
        """Returns the command of each unfinished run, as a line for a shell.

        It sets the number of threads of this machine, which changes the last bits.
        """
        threads = [f"{name}={value}" for name, value in jobs_lib.threads().items()]
        return [
            shlex.join(["env", *threads, *self._command(run)])
            for run in runs
            if not run.is_finished
        ]

    def _as_command(self, planned: PlannedRun) -> Optional[str]:
        """A run whose `summary.json` is new is finished, whatever its exit status."""
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
        return reason_of(status, said)

    def leave_out(self, runs: Mapping[str, str]) -> None:
        """Tells of runs that will not start, by their names, and why."""
        for name, why in runs.items():
            self._say(f"{name}: not started ({why})", flush=True)
        self.failed |= runs

    def run(
        self,
        runs: Sequence[PlannedRun],
        on_finished: Callable[[PlannedRun], Any] = lambda run: None,
    ) -> None:
        """Runs the unfinished runs, and says so in them."""

        def head(number: int) -> str:
            return f"run {number + 1}/{len(runs)}  {runs[number].name}"

        def begin(number: int) -> None:
            if not runs[number].is_finished and self._has_heads:
                self._begin(head(number))

        left = progress.TimeLeft(sum(not run.is_finished for run in runs))
        for number, why in self._all(self.run_one, runs, begin):
            run = runs[number]
            if run.is_finished and not why:
                changed = identity.other_code(
                    directory.RunDirectory(run.directory).config or {}
                )
                told = f"{result(run)}. {changed}" if changed else result(run)
                self._say(f"{head(number)}: finished before, {told}", flush=True)
                continue
            text = f"failed ({why})" if why else result(run)
            self._end(head(number), text + left.after_one())
            run.is_finished = not why
            if why:
                self.failed[run.name] = why
            else:
                on_finished(run)

    def analyse(self, analyses: Sequence[Analysis]) -> None:
        """Carries out analyses; each kind in as many processes as there are jobs."""
        kinds: dict[tuple[str, tuple[str, ...]], list[Any]] = {}
        for each in analyses:
            kinds.setdefault((each.subject, each.flags), []).append(each.run)
        chunks = [
            (subject, flags, runs[start :: self._jobs])
            for (subject, flags), runs in kinds.items()
            for start in range(min(self._jobs, len(runs)))
        ]

        def head(number: int) -> str:
            subject, _, (first, *others) = chunks[number]
            more = f" and {len(others)} more" if others else ""
            return f"{subject} of {first.name}{more}"

        def work(chunk: tuple[str, Sequence[str], Sequence[Any]]) -> Optional[str]:
            subject, flags, runs = chunk
            directories = ",".join(run.directory for run in runs)
            where = f"--run_dir={directories}"
            command = [*self._start, "analyze", subject, where, *flags]
            status, said = self._executor.execute(command)
            return reason_of(status, said)

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


def reason_of(status: int, said: str) -> Optional[str]:
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
    score = scores.of(summary)
    value = score.text(summary[f"final_{score.name}"], ".1f")
    trouble = description.troubles(summary)
    return (
        f"{metrics.tested(summary)} {score.name} {value} after"
        f" {progress.count(summary['rounds'], 'round')},"
        f" {progress.duration(summary['training_seconds'])}"
        + (f"; {trouble}" if trouble else "")
    )


def as_flags(config: config_lib.RunConfig) -> list[str]:
    """Returns the flags of `bin/run` that give a config."""
    return [f"--{name}={as_text(value)}" for name, value in config.given().items()]
