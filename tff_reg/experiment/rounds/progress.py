"""The progress of a run: a bar on a terminal, one line per round elsewhere."""

from __future__ import annotations

import shutil
import statistics
import sys
import time
from collections.abc import Mapping
from typing import Any, Optional, TextIO, Union

from tff_reg import scores
from tff_reg.experiment.rounds import metrics
from tff_reg.lazy import tqdm

Row = Mapping[str, float]


def duration(seconds: float) -> str:
    """Formats seconds as `12.3 s`, `4:05` or `2:03:04`."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"


class TimeLeft:
    """Estimates the time that is left of several runs from the time of those done."""

    def __init__(self, total: int):
        """Begins to count the time."""
        self._total, self._done, self._began = total, 0, time.monotonic()

    def after_one(self) -> str:
        """Returns `, 4:05 left` after one more run; nothing after the last."""
        self._done += 1
        left = self._total - self._done
        each = (time.monotonic() - self._began) / self._done
        return f", {duration(left * each)} left" if left > 0 else ""


def count(number: Union[float, str], noun: str) -> str:
    """Formats a number with a noun: `1 round`, `2 rounds`, `2 to 4 rounds`."""
    return f"{number} {noun}" if str(number) == "1" else f"{number} {noun}s"


class Progress:
    """Receives the progress of a run; each method prints nothing unless overridden.

    Attributes:
      tested: Name of the examples of the accuracies, from `metrics.tested`.
    """

    tested, score = "test", scores.Score()

    def start(self, rounds_done: int) -> None:
        """Called once, before the first round of this process."""

    def after_round(self, round_num: int, row: Row) -> None:
        """Called after every round with its row of metrics."""

    def say(self, line: str) -> None:
        """Prints a line without disturbing the progress bar."""

    def close(self) -> None:
        """Called at the end, also when the run failed or was interrupted."""


class Silence(Progress):
    """Progress that is not shown."""


class Lines(Progress):
    """Progress as one line per round."""

    def __init__(self, total_rounds: int, stream: Optional[TextIO] = None):
        self._total_rounds = total_rounds
        self._stream = stream

    def start(self, rounds_done: int) -> None:
        self._last = time.monotonic()
        self._seconds: list[float] = []

    def after_round(self, round_num: int, row: Row) -> None:
        width = len(str(self._total_rounds))
        head = f"round {round_num:{width}}/{self._total_rounds}"
        self.say("  ".join([head, *self._numbers(round_num, row)]))

    def _numbers(self, round_num: int, row: Row) -> list[str]:
        """Describes a round, and estimates the time of the remaining ones."""
        now = time.monotonic()
        self._seconds.append(now - self._last)
        self._last = now
        # The first round traces and compiles, which the others do not.
        usual = statistics.median(self._seconds[1:][-20:] or self._seconds)
        loss, score = row[metrics.TRAINING_LOSS], self.score
        parts = [f"loss {'-' if loss is None else f'{loss:.4f}'}"]
        judged = {
            score.training: score.name,
            score.server: f"{self.tested} {score.name}",
            score.all_clients: "all clients' mean",
        }
        for name, text in judged.items():
            if row.get(name) is not None and name != metrics.TRAINING_LOSS:
                parts.append(f"{text} {score.text(row[name], '.1f')}")
        shown = (metrics.EVALUATION_LOSS, score.server)
        parts += [
            f"{name.removeprefix('evaluation/')} {value:.4f}"
            for name, value in row.items()
            if name.startswith("evaluation/") and name not in shown
            if value is not None and not metrics.is_of_subset(name)
        ]
        left = duration(usual * (self._total_rounds - round_num))
        return [*parts, f"{row[metrics.SECONDS]:.2f} s a round", f"{left} left"]

    def say(self, line: str) -> None:
        print(line, file=self._stream or sys.stdout, flush=True)


class Bar(Lines):
    """Progress as a bar that is redrawn in place."""

    def __init__(self, total_rounds: int):
        super().__init__(total_rounds)
        self._bar: Any = None  # A tqdm, from the start on.
        # With the numbers of the last round that was evaluated.
        self._row: dict[str, Any] = {}

    def start(self, rounds_done: int) -> None:
        super().start(rounds_done)
        # tqdm has no default for a terminal that does not know its size.
        columns, lines = shutil.get_terminal_size((100, 24))
        self._bar = tqdm.tqdm(
            total=self._total_rounds,
            initial=rounds_done,
            desc="tracing and compiling",
            bar_format="round {n_fmt}/{total_fmt} |{bar}| {desc}",
            ncols=columns,
            nrows=lines,
        )

    def after_round(self, round_num: int, row: Row) -> None:
        self._row.update((n, value) for n, value in row.items() if value is not None)
        shown = {**row, **self._row}
        if is_tested := self.score.server in self._row:
            shown[self.score.training] = None  # Those of the training do not fit.
        numbers = self._numbers(round_num, shown)[is_tested:]
        self._bar.set_description_str("  ".join(numbers), refresh=False)
        self._bar.update(1)
        self._bar.refresh()

    def say(self, line: str) -> None:
        if self._bar is None:
            print(line, flush=True)
        else:
            self._bar.write(line)
            sys.stdout.flush()

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()


def for_this_output(total_rounds: int) -> Progress:
    """Returns a bar on a terminal or in a notebook, lines elsewhere."""
    on_terminal = sys.stdout.isatty() and sys.stderr.isatty()
    return (Bar if on_terminal or in_notebook() else Lines)(total_rounds)


def in_notebook() -> bool:
    """Returns whether a Jupyter kernel runs this code, not only IPython."""
    ipython = sys.modules.get("IPython")
    return ipython is not None and hasattr(ipython.get_ipython(), "kernel")
