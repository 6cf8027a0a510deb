"""The parts of the benchmark that can be wrong without being slow."""

import json

import pytest

from benchmarks import runtime


def test_json_has_medians_and_their_ratios_to_the_loop_by_hand():
    by_hand, in_process = ("hand_written", 1), ("in_process", 2)
    rows = runtime.rows_of(
        "cnn",
        {by_hand: [2.0, 1.0, 9.0], in_process: [1.0, 0.5, 7.0]},
        {by_hand: 9.0, in_process: 9.5},
    )
    assert json.loads(json.dumps(rows)) == rows
    assert rows[1] == {
        "case": "cnn",
        "runtime": "in_process",
        "clients_in_parallel": 2,
        "seconds_median": 1.0,
        "ratio_to_hand_written": 0.5,
        "seconds_first": 9.5,
        "seconds_min": 0.5,
        "seconds_max": 7.0,
        "rounds": 3,
    }
    cells = [cell.strip() for cell in runtime.table(rows)[-1].split("|")]
    assert cells[1:-1] == [
        "cnn",
        "in process, 2 clients at a time",
        "1.000",
        "0.500 - 7.000",
        "0.50",
        "9.5",
    ]


@pytest.mark.slow
def test_the_processes_answer_and_say_when_they_have_ended():
    with runtime.program(threads=1) as process:
        assert process.ask("round", "cnn", "hand_written", 1) > 0
        with pytest.raises(RuntimeError, match="before its time, with status 1"):
            process.ask("nothing")
