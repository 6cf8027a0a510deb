"""How a round's time and memory grow.

They grow with the number of clients in all, the clients of a round, the size of the
model, the clients at a time, and the visits of clients. The network is small, so that
the work around the training shows. Each point is a process of its own, but all visits
happen in one; memory is the peak of resident memory.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from absl import flags

from benchmarks.shared import asking, subject
from tff_reg.lazy import mpl_agg, mpl_figure


class Point(NamedTuple):
    """The sizes of a round.

    Attributes:
      clients_held: Clients in all.
      clients_per_round: Clients of a round.
      megabytes: Size of the model, in 10^6 bytes.
      clients_in_parallel: Clients at a time.
      tensors: The model's tensors.
    """

    clients_held: int = 1000
    clients_per_round: int = 10
    megabytes: float = 1.0
    clients_in_parallel: int = 1
    tensors: int = 4


# What grows, and the points; with `--quick` all but the largest of each.
SWEEPS: dict[str, list[Point]] = {
    "clients_held": [Point(clients_held=n) for n in (10, 100, 1000, 10000)],
    "clients_per_round": [Point(clients_per_round=n) for n in (10, 30, 100, 300, 1000)],
    "megabytes": [Point(megabytes=size) for size in (0.1, 1.0, 10.0, 100.0)],
    "clients_in_parallel": [
        Point(clients_per_round=16, megabytes=10.0, clients_in_parallel=n)
        for n in (1, 2, 4, 8)
    ],
    "tensors": [Point(clients_per_round=100, tensors=n) for n in (4, 20, 80)],
}
_VISITS = "visits"  # A sweep of SCAFFOLD, whose clients remember something.
_SHARES_OF_VISITS = (0.1, 0.2, 0.5, 1.0)
_ROUNDS = 5


def measure(
    *,
    sweeps: Sequence[str] = (*SWEEPS, _VISITS),
    visits: int = 10000,
    quick: bool = False,
    report: Callable[[str], None] = lambda line: None,
) -> list[dict[str, Any]]:
    """Times rounds; takes about ten minutes, or five if `quick`.

    Args:
      sweeps: The names of some sweeps.
      visits: How many clients train in all, in the sweep of visits.
      quick: Without the largest point of each sweep.
      report: Called with a line now and then, to show progress.

    Returns:
      JSON values by name, for each point of each sweep.
    """
    rows = []
    for sweep in sweeps:
        if sweep == _VISITS:
            found = _measure_visits(visits, quick)
        else:
            points = SWEEPS[sweep][:-1] if quick else SWEEPS[sweep]
            found = (_measure_point(sweep, point) for point in points)
        for row in found:
            rows.append(row)
            report(
                f"{sweep} {row[sweep]}: {row['seconds_median']} s a round,"
                f" {row['peak_mb']} MB"
            )
    return rows


def _program(point: Point, *method: str) -> asking.Program:
    command = [sys.executable, "-m", "benchmarks.shared.growing", *map(str, point)]
    return asking.Program([*command, *method])


def _measure_point(sweep: str, point: Point) -> dict[str, Any]:
    with _program(point) as program:
        program.ask("round")
        seconds = [program.ask("round") for _ in range(_ROUNDS)]
        return _row(sweep, point, seconds, program)


def _measure_visits(visits: int, quick: bool) -> Iterator[dict[str, Any]]:
    shares = _SHARES_OF_VISITS[:-1] if quick else _SHARES_OF_VISITS
    cohort = max(1, min(100, round(visits * shares[0])))
    point = Point(max(10000, cohort), cohort, clients_in_parallel=2)
    seconds: list[float] = []
    with _program(point, "in_process", "scaffold") as program:
        for share in shares:
            while len(seconds) * cohort < round(visits * share):
                seconds.append(program.ask("round"))
            row = _row(_VISITS, point, seconds[-_ROUNDS:], program)
            yield {**row, _VISITS: len(seconds) * cohort}


def _row(
    sweep: str, point: Point, seconds: Sequence[float], program: asking.Program
) -> dict[str, Any]:
    return {
        "sweep": sweep,
        **point._asdict(),
        "seconds_median": round(statistics.median(seconds), 4),
        "seconds_min": round(min(seconds), 4),
        "seconds_max": round(max(seconds), 4),
        "seconds_of_steps": round(program.ask("steps"), 4),
        "resident_mb": round(program.ask("resident")),
        "peak_mb": round(program.ask("peak")),
    }


def table(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """The lines of a table of what `measure` returns."""
    return subject.to_markdown(
        [
            {
                "what grows": row["sweep"].replace("_", " "),
                "to": f"{row[row['sweep']]:g}",
                "seconds a round": f"{row['seconds_median']:.3f}",
                "of bare steps": f"{row['seconds_of_steps']:.3f}",
                "ms a client beside them": _beside(row),
                "peak MB": str(row["peak_mb"]),
            }
            for row in rows
        ]
    )


def _beside(row: Mapping[str, Any]) -> str:
    beside = row["seconds_median"] - row["seconds_of_steps"]
    return f"{1000 * beside / row['clients_per_round']:.1f}"


def plot(rows: Sequence[Mapping[str, Any]], path: str) -> None:
    """Draws seconds and memory against the growing number, two panels for each sweep.

    Args:
      rows: What `measure` returns.
      path: The PNG.
    """
    sweeps = list(dict.fromkeys(row["sweep"] for row in rows))
    figure = mpl_figure.Figure(figsize=(3.4 * len(sweeps), 5.6), layout="constrained")
    mpl_agg.FigureCanvasAgg(figure)
    panels = figure.subplots(2, len(sweeps), squeeze=False, sharex="col", sharey="row")
    for column, sweep in enumerate(sweeps):
        own = [row for row in rows if row["sweep"] == sweep]
        across = [row[sweep] for row in own]
        for line, (name, label) in enumerate(
            [("seconds_median", "seconds a round"), ("peak_mb", "peak memory (MB)")]
        ):
            axes = panels[line][column]
            axes.plot(across, [row[name] for row in own], marker="o")
            axes.set_xscale("log")
            axes.set_xticks(across, [f"{value:g}" for value in across])
            axes.minorticks_off()
            if name == "seconds_median":
                axes.set_yscale("log")
            else:
                axes.set_ylim(0, 1.1 * max(row[name] for row in rows))
            axes.grid(True, linewidth=0.5, alpha=0.5)
            if not column:
                axes.set_ylabel(label)
        panels[1][column].set_xlabel(sweep.replace("_", " "))
    figure.savefig(path)


def _run(given: flags.FlagValues) -> None:
    if given.visits < 1:
        raise subject.RefusedError(f"--visits={given.visits}: give at least 1.")
    rows = measure(
        sweeps=given.sweeps,
        visits=given.visits,
        quick=given.quick,
        report=subject.say,
    )
    if given.plot:
        plot(rows, given.plot)
    subject.finish(given, rows, table(rows))


def _define_flags(given: flags.FlagValues) -> None:
    flags.DEFINE_string("plot", None, "PNG to draw.", flag_values=given)
    flags.DEFINE_multi_enum(
        "sweeps",
        [*SWEEPS, _VISITS],
        [*SWEEPS, _VISITS],
        "What grows.",
        flag_values=given,
    )
    flags.DEFINE_integer(
        "visits", 10000, "Most visits of clients in a run.", flag_values=given
    )


SUBJECT = subject.Subject(
    run=_run,
    define_flags=_define_flags,
    help="""\
bin/bench growth [--sweeps=NAME] [--visits=N] [--quick] [--json=FILE] [--plot=PNG]
  Seconds and memory of rounds of a small network for 10 to 10,000 clients held, 10 to
  1,000 a round, models of 0.1 to 100 megabytes, 1 to 8 clients at a time, and along
  10,000 visits of clients of SCAFFOLD. Ten minutes, or five with --quick, which leaves
  the largest out. Sweeps: clients_held, clients_per_round, megabytes,
  clients_in_parallel, tensors, visits; --sweeps may be given several times.""",
)
