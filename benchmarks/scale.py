"""How rounds scale in Ray: with the clients of a round, and with the actors.

Three questions. What Ray costs: rounds of two models with two actors, against the same
in process with two clients at a time, in turns. How seconds and the driver's memory
grow with the clients of a round, of a network so small that a client is next to
nothing. And whether the driver's memory grows with the rounds.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from absl import flags

from benchmarks import runtime as runtime_subject
from benchmarks.shared import asking, subject
from tff_reg.runtime import WorkerError, devices, ray_cluster

_HELD, _MEGABYTES = 10_000, 0.01
_ACTORS = (1, 2, 4)
_CLIENTS = (10, 100, 1000)
_CASES = ("cnn", "resnet20")
_IN_PROCESS, _IN_RAY = "in_process_whole_client", "ray_whole_client"
# Of each way, after the first; of a number of clients; of few clients.
_ROUNDS = {"cnn": (21, 9), "resnet20": (7, 3)}
_ROUNDS_OF_CLIENTS = 3
_MANY_ROUNDS, _FEW_CLIENTS = (300, 30), 10


def measure(
    quick: bool = False, report: Callable[[str], None] = lambda line: None
) -> list[dict[str, Any]]:
    """Times rounds; takes about six minutes, or three if `quick`.

    Args:
      quick: Fewer rounds, and no thousand clients.
      report: Called with a line now and then, to show progress.

    Returns:
      JSON values by name: of each model "ratio", of each number of actors and clients
      "seconds_median" and "driver_mb", of the many rounds "grown_mb".
    """
    rows = [ratio(case, _ROUNDS[case][quick], report) for case in _CASES]
    for actors in _ACTORS:
        rows += _growth(actors, _CLIENTS[:-1] if quick else _CLIENTS, quick, report)
    return rows


def ratio(case: str, rounds: int, report: Callable[[str], None]) -> dict[str, Any]:
    """Rounds in Ray over rounds in process, medians.

    Args:
      case: The model.
      rounds: How many of each.
      report: As of `measure`.

    Returns:
      JSON values by name.
    """
    ways = (_IN_PROCESS, _IN_RAY)
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    with runtime_subject.program(max(1, devices.cores() // 2)) as process:
        for way in ways * 2:  # Twice: examples are sent in the first.
            process.ask("round", case, way, 2)
        for _ in range(rounds):
            for way in ways:
                seconds[way].append(process.ask("round", case, way, 2))
    in_process, in_ray = (statistics.median(seconds[way]) for way in ways)
    report(f"{case}: {in_process:.3f} s in process, {in_ray:.3f} s in Ray")
    return {
        "model": case,
        "in_process_seconds_median": round(in_process, 4),
        "ray_seconds_median": round(in_ray, 4),
        "ratio": round(in_ray / in_process, 4),
        "rounds": rounds,
    }


def _growth(actors, cohorts, quick, report) -> list[dict[str, Any]]:
    command = [sys.executable, "-m", "benchmarks.shared.growing"]
    point = (_HELD, _FEW_CLIENTS, _MEGABYTES, actors, 4, "ray")
    rows = []
    with asking.Program([*command, *map(str, point)]) as program:
        for clients in cohorts:
            program.ask("round", clients)
            seconds = [program.ask("round", clients) for _ in range(_ROUNDS_OF_CLIENTS)]
            rows.append(
                {
                    "actors": actors,
                    "clients_per_round": clients,
                    "seconds_median": round(statistics.median(seconds), 4),
                    "driver_mb": round(program.ask("peak")),
                }
            )
            report(f"{actors} actors, {clients} clients: {min(seconds):.2f} s")
        if actors == _ACTORS[0]:
            before = program.ask("resident")
            for _ in range(_MANY_ROUNDS[quick]):
                program.ask("round")
            grown = program.ask("resident") - before
            rows.append({"rounds": _MANY_ROUNDS[quick], "grown_mb": round(grown, 1)})
    return rows


def table(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """The lines of two tables of what `measure` returns, and of a sentence."""
    lines = subject.to_markdown(
        [
            {
                "model": row["model"],
                "in process, 2 at a time": f"{row['in_process_seconds_median']:.3f} s",
                "Ray, 2 actors": f"{row['ray_seconds_median']:.3f} s",
                "ratio": f"{row['ratio']:.2f}",
            }
            for row in rows
            if "ratio" in row
        ]
    )
    lines.append("")
    lines += subject.to_markdown(
        [
            {
                "actors": str(row["actors"]),
                "clients a round": str(row["clients_per_round"]),
                "seconds": f"{row['seconds_median']:.3f}",
                "ms a client": _milliseconds(row),
                "driver's peak MB": str(row["driver_mb"]),
            }
            for row in rows
            if "actors" in row
        ]
    )
    for row in rows:
        if "grown_mb" in row:
            lines += [
                "",
                f"{row['rounds']} rounds of {_FEW_CLIENTS} clients: the driver has"
                f" grown by {row['grown_mb']:g} MB.",
            ]
    return lines


def _milliseconds(row: Mapping[str, Any]) -> str:
    return f"{1000 * row['seconds_median'] / row['clients_per_round']:.1f}"


def _run(given: flags.FlagValues) -> None:
    try:
        ray_cluster.check_installed()
    except WorkerError as error:
        raise subject.RefusedError(str(error)) from error
    rows = measure(given.quick, report=subject.say)
    subject.finish(given, rows, table(rows))


SUBJECT = subject.Subject(
    run=_run,
    help="""\
bin/bench scale [--quick] [--json=FILE]
  Rounds in Ray: with two actors against two clients at a time in process; of 10 to
  1,000 clients out of 10,000 with one, two and four actors, each client next to
  nothing, with the driver's memory; and 300 rounds' growth of that. Six minutes, or
  three with --quick: fewer rounds, and no thousand clients.""",
)
