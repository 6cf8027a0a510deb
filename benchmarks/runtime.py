"""How long a round takes: by hand, in process, and in TFF's own runtime.

What a round is, `benchmarks.shared.rounds` says. The ways to run one take turns, so
that what else happens on the machine happens to all of them, and medians are compared.

TensorFlow's number of threads is fixed when it starts, and should be the number of
cores divided by the clients that run in parallel. So there are two processes, one for
one client at a time and one for two, which do one round each on demand.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from absl import flags

from benchmarks.shared import asking, measuring, subject
from tff_reg.runtime import devices

_CASES = ("cnn", "resnet20")
# The ways to run a round, each with the clients in parallel.
_WAYS = (
    ("hand_written", 1),
    ("in_process", 1),
    ("in_process_whole_client", 1),
    ("in_process_from_keras", 1),
    ("tff", 1),
    ("tff_iterator", 1),
    ("in_process", 2),
    ("in_process_whole_client", 2),
)
_NAMES = {
    "hand_written": "in a tf.function loop by hand, without TFF",
    "in_process": "in process",
    "in_process_whole_client": "in process, whole-client data",
    "in_process_from_keras": "a Keras model by from_keras, with our GroupNorm",
    "tff": "in TFF's worker, its default loop",
    "tff_iterator": "in TFF's worker, DATASET_ITERATOR",
}
# Rounds of each case after the first one, in full and with `--quick`.
_ROUNDS = {"cnn": (21, 7), "resnet20": (9, 3)}

# Libraries are silenced before they are imported.
_PROGRAM = """
import sys
from tff_reg import quiet
quiet.silence()
from benchmarks.shared import questions
questions.answer_questions(threads=int(sys.argv[1]))
"""


def measure(
    quick: bool = False, report: Callable[[str], None] = lambda line: None
) -> list[dict[str, Any]]:
    """Times rounds; takes about ten minutes, or three if `quick`.

    Args:
      quick: Fewer rounds.
      report: Called with a line now and then, to show progress.

    Returns:
      What `rows_of` makes of each case.
    """
    rows = []
    for case in _CASES:
        seconds, first = _time_rounds(case, _ROUNDS[case][quick], report)
        rows += rows_of(case, seconds, first)
    return rows


def _time_rounds(case, rounds, report):
    """The seconds of `rounds` rounds of each way, and of the one before them."""
    cores = devices.cores()
    with (
        program(threads=cores) as one_at_a_time,
        program(threads=max(1, cores // 2)) as two_at_a_time,
    ):

        def run_round(way):
            process = one_at_a_time if way[1] == 1 else two_at_a_time
            return process.ask("round", case, *way)

        first = {}
        for way in _WAYS:
            first[way] = run_round(way)
            report(f"{case}: first round of {_way_name(*way)}: {first[way]:.1f} s")
        seconds = {way: [] for way in _WAYS}
        for index in range(rounds):
            for way in _WAYS:
                seconds[way].append(run_round(way))
            report(f"{case}: {index + 1} of {rounds} rounds of each")
    return seconds, first


def rows_of(
    case: str,
    seconds: Mapping[tuple[str, int], Sequence[float]],
    first: Mapping[tuple[str, int], float],
) -> list[dict[str, Any]]:
    """What was found of a case: medians, and their ratios to that of the loop by hand.

    Args:
      case: The model.
      seconds: Of rounds, by the way to run them and the clients in parallel.
      first: Those of the first one, with tracing and compiling.

    Returns:
      JSON values by name, for each of `seconds`.
    """
    by_hand = statistics.median(seconds["hand_written", 1])
    return [
        {
            "case": case,
            "runtime": way,
            "clients_in_parallel": parallel,
            "seconds_median": round(statistics.median(found), 4),
            "ratio_to_hand_written": round(statistics.median(found) / by_hand, 4),
            "seconds_first": round(first[way, parallel], 2),
            "seconds_min": round(min(found), 4),
            "seconds_max": round(max(found), 4),
            "rounds": len(found),
        }
        for (way, parallel), found in seconds.items()
    ]


def table(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """The lines of a table of what `measure` returns."""
    return subject.to_markdown(
        [
            {
                "model": row["case"],
                "a round runs": _way_name(row["runtime"], row["clients_in_parallel"]),
                "seconds (median)": f"{row['seconds_median']:.3f}",
                "least - most": f"{row['seconds_min']:.3f} - {row['seconds_max']:.3f}",
                "ratio": f"{row['ratio_to_hand_written']:.2f}",
                "first": f"{row['seconds_first']:.1f}",
            }
            for row in rows
        ]
    )


def _way_name(way: str, parallel: int) -> str:
    return _NAMES[way] + (", 2 clients at a time" if parallel == 2 else "")


def measure_memory() -> dict[str, float]:
    """Peak memory of rounds of 60 clients with a model of 20 megabytes.

    The first round is given the server's model as an array of the caller's, which
    TensorFlow copies; later ones what the round before gave.

    Returns:
      By "first" or "later", the megabytes that the Python process needs at most during
      one round, or two that follow, beyond what it holds before the first (with the
      server's model). Empty where the system does not tell (elsewhere than on Linux).
    """
    found = {}
    if not measuring.forget_peak():
        return found
    with program(threads=1) as process:
        for rounds in ("first", "later"):
            found[rounds] = process.ask("memory", rounds)
    return found


def program(threads: int) -> asking.Program:
    """What runs `questions.answer_questions`."""
    return asking.Program([sys.executable, "-c", _PROGRAM, str(threads)])


def _run(given: flags.FlagValues) -> None:
    rows = measure(given.quick, report=subject.say)
    subject.finish(given, rows, table(rows))
    with program(threads=devices.cores()) as process:
        seconds = process.ask("group_norm")
        print(
            "GroupNorm, forward and backward: Keras's "
            f"{1000 * seconds['keras']:.1f} ms, ours {1000 * seconds['tff_reg']:.1f} "
            f"ms ({seconds['tff_reg'] / seconds['keras']:.2f})"
        )
        seconds = process.ask("convolutions")
        print(
            f"A round of the CNN by hand: {seconds['hand_written']:.3f} s; its "
            f"convolutions alone: {seconds['convolutions']:.3f} s "
            f"({seconds['convolutions'] / seconds['hand_written']:.2f})"
        )
        for name, seconds in process.ask("iterators").items():
            print(
                f"A loop over a data set, {name}: {1000 * statistics.mean(seconds):.0f}"
                f" ms on average, {1000 * min(seconds):.0f} to"
                f" {1000 * max(seconds):.0f}"
            )
    for rounds, megabytes in measure_memory().items():
        print(f"60 clients, a model of 20 MB, the {rounds}: {megabytes:.0f} MB at most")


SUBJECT = subject.Subject(
    run=_run,
    help="""\
bin/bench runtime [--quick] [--json=FILE]
  The same rounds by a loop written by hand, in process, and in TFF's own runtime; then
  GroupNorm, the CNN's convolutions alone, the ends of tf.data's iterators, and the
  memory that rounds of 60 clients with a model of 20 megabytes need. Ten minutes, or
  three with --quick.""",
)
