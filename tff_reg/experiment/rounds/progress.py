"""The progress of a run: a bar on a terminal, one line per round elsewhere."""

from __future__ import annotations

import math
import os
import statistics
import sys
import time
from collections.abc import Mapping
from typing import Any, Optional, TextIO, Union

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


def count(number: Union[int, str], noun: str) -> str:
    """Formats a number with a noun: `1 round`, `2 rounds`, `2 to 4 rounds`."""
    return f"{number} {noun}" if str(number) == "1" else f"{number} {noun}s"


def percent(share: Optional[float]) -> str:
    """Formats a fraction as `93.1 %`; a dash for None or NaN."""
    if share is None or math.isnan(share):
        return "-"
    return f"{100 * share:.1f} %"


def _of_all_clients(row: Row) -> Optional[str]:
    """Describes the test accuracy of the mean of all clients' last models, if any."""
    accuracy = row.get(metrics.ALL_CLIENTS_ACCURACY)
    return None if accuracy is None else f"all clients' mean {percent(accuracy)}"


def _own_metrics(row: Row) -> list[str]:
    """Describes the user's own metrics in the row of an evaluated round."""
    usual = (metrics.EVALUATION_LOSS, metrics.EVALUATION_ACCURACY)
    return [
        f"{name.removeprefix('evaluation/')} {_number(value)}"
        for name, value in row.items()
        if name.startswith("evaluation/") and name not in usual and value is not None
    ]


def _number(value: Optional[float], digits: int = 4) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


class _TimeLeft:
    """Estimates the time of the remaining rounds from the rounds of this process."""

    def __init__(self, total_rounds: int):
        self._total_rounds = total_rounds
        self._last = time.monotonic()
        self._seconds: list[float] = []

    def after(self, round_num: int) -> float:
        now = time.monotonic()
        self._seconds.append(now - self._last)
        self._last = now
        # The first round traces and compiles, which the others do not.
        usual = statistics.median(self._seconds[1:][-20:] or self._seconds)
        return usual * (self._total_rounds - round_num)


class Progress:
    """Receives the progress of a run; each method prints nothing unless overridden.

    Attributes:
      tested: Name of the examples of the accuracies, from `metrics.tested`.
    """

    tested = "test"

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
        self._time_left = _TimeLeft(total_rounds)

    def start(self, rounds_done: int) -> None:
        self._time_left = _TimeLeft(self._total_rounds)

    def after_round(self, round_num: int, row: Row) -> None:
        left = self._time_left.after(round_num)
        width = len(str(self._total_rounds))
        parts = [
            f"round {round_num:{width}}/{self._total_rounds}",
            f"loss {_number(row[metrics.TRAINING_LOSS])}",
            f"accuracy {percent(row[metrics.TRAINING_ACCURACY])}",
        ]
        if row.get(metrics.EVALUATION_ACCURACY) is not None:
            accuracy = percent(row[metrics.EVALUATION_ACCURACY])
            parts.append(f"{self.tested} accuracy {accuracy}")
        of_all_clients = _of_all_clients(row)
        if of_all_clients:
            parts.append(of_all_clients)
        parts += _own_metrics(row)
        parts.append(f"{row[metrics.SECONDS]:.2f} s a round")
        parts.append(f"{duration(left)} left")
        self.say("  ".join(parts))

    def say(self, line: str) -> None:
        print(line, file=self._stream or sys.stdout, flush=True)


def _knows_size() -> bool:
    """Returns whether stderr is a terminal that reports its width."""
    try:
        return os.get_terminal_size(sys.stderr.fileno()).columns > 0
    except (OSError, ValueError):  # No terminal, or not even a file.
        return False


class Bar(Progress):
    """Progress as a bar that is redrawn in place."""

    def __init__(self, total_rounds: int):
        self._total_rounds = total_rounds
        self._accuracy: Optional[float] = None
        self._of_all_clients: Optional[str] = None
        self._own_metrics = ""
        self._bar: Any = None  # A tqdm, from the start on.
        self._time_left = _TimeLeft(total_rounds)

    def start(self, rounds_done: int) -> None:
        size: dict[str, Any] = {"ncols": 100, "nrows": 24}
        if _knows_size():
            size = {"dynamic_ncols": True}
        self._time_left = _TimeLeft(self._total_rounds)
        self._bar = tqdm.tqdm(
            total=self._total_rounds,
            initial=rounds_done,
            desc="tracing and compiling",
            bar_format="round {n_fmt}/{total_fmt} |{bar}| {desc}",
            leave=True,
            **size,
        )

    def after_round(self, round_num: int, row: Row) -> None:
        left = self._time_left.after(round_num)
        if row.get(metrics.EVALUATION_ACCURACY) is not None:
            self._accuracy = row[metrics.EVALUATION_ACCURACY]
        self._of_all_clients = _of_all_clients(row) or self._of_all_clients
        which, accuracy = self.tested, self._accuracy
        if accuracy is None:
            which, accuracy = "training", row[metrics.TRAINING_ACCURACY]
        of_all_clients = f" ({self._of_all_clients})" if self._of_all_clients else ""
        own = "".join(f", {each}" for each in _own_metrics(row))
        self._own_metrics = own or self._own_metrics
        loss = _number(row[metrics.TRAINING_LOSS], 3)
        self._bar.set_description_str(
            f"{which} accuracy {percent(accuracy)}{of_all_clients}{self._own_metrics},"
            f" loss {loss}, {row[metrics.SECONDS]:.1f} s a round,"
            f" {duration(left)} left",
            refresh=False,
        )
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
