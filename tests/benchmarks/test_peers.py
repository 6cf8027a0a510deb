"""The parts of the comparison with other simulators that can be wrong."""

import json
import sys

import numpy as np
import pytest

from benchmarks import peers
from benchmarks.shared import asking, cases
from benchmarks.simulators import serving

_SIZE = cases.Size("resnet8", "batch", (8, 8, 1), 2, 6, 4)
# A program that is no simulator: a round adds 1 to the first weight.
_PROGRAM = """
import sys
from benchmarks.simulators import serving
weights = list(serving.read(sys.argv[1]).weights)
def one_round():
    weights[0] = weights[0] + 1
serving.serve(one_round, lambda: weights)
"""


def _case(**changes):
    return serving.Case(
        network="cnn",
        norm="none",
        method="fedavg",
        batch_size=4,
        learning_rate=0.1,
        momentum=0.9,
        max_gradient_norm=None,
        weights=[np.full([2, 3], i, np.float32) for i in range(12)],
        images=np.ones([2, 6, 8, 8, 1], np.float32),
        labels=np.arange(12, dtype=np.int32).reshape(2, 6),
    )._replace(**changes)


def test_a_program_is_asked_for_rounds_and_weights(tmp_path):
    path = str(tmp_path / "case.npz")
    serving.write(path, _case(max_gradient_norm=10.0))
    read = serving.read(path)
    assert read.max_gradient_norm == 10.0 and read.network == "cnn"
    np.testing.assert_array_equal(read.labels, _case().labels)
    with asking.Program([sys.executable, "-c", _PROGRAM, path]) as program:
        with peers.peak_memory(program.pid) as peak:
            assert 0 < program.ask("round") < 10
        assert 1e6 < peak[0] < 1e9
        weights = cases.weights_of(program, str(tmp_path))
    assert [w[0, 0] for w in weights] == [1, *range(1, 12)]


def test_a_program_that_ends_is_not_waited_for(tmp_path):
    command = [sys.executable, "-c", _PROGRAM, str(tmp_path / "none")]
    with (
        pytest.raises(RuntimeError, match="with status 1"),
        asking.Program(command),
    ):
        pass


def test_differences_are_in_units_of_the_way_that_was_gone():
    before, expected = [np.zeros(3)], [np.array([0.0, 4.0, 0.0])]
    assert peers.difference([np.array([3.0, 4.0, 0.0])], expected, before) == 0.75


def test_rows_have_medians_and_their_ratios_to_pytorch():
    more = {"seconds_start": 1.0, "seconds_first": 2.0, "peak_mb": 300}
    rows = peers.rows_of(
        "cnn",
        {"pytorch": [2.0, 1.0, 9.0], "tff_reg_2": [1.0, 0.5, 7.0]},
        {name: {**more, "difference": 1e-6} for name in ("pytorch", "tff_reg_2")},
    )
    assert json.loads(json.dumps(rows)) == rows
    assert rows[1] == {
        "case": "cnn",
        "system": "tff_reg_2",
        "clients_in_parallel": 2,
        "seconds_median": 1.0,
        "ratio_to_pytorch": 0.5,
        "seconds_min": 0.5,
        "seconds_max": 7.0,
        "rounds": 3,
        **more,
        "difference": 1e-6,
    }
    cells = [cell.strip() for cell in peers.table(rows)[-1].split("|")]
    assert cells[1:6] == ["cnn", "tff_reg", "2", "1.000", "0.50"]


@pytest.mark.slow
@pytest.mark.parametrize("kind, parallel", [("in_process", 2), ("tff", 1)])
def test_our_program_trains_the_case(tmp_path, kind, parallel):
    path = str(tmp_path / "case.npz")
    cases.write(path, _SIZE)
    with asking.Program(cases.own_program(path, kind, parallel)) as program:
        before = cases.weights_of(program, str(tmp_path))
        program.ask("round")
        after = cases.weights_of(program, str(tmp_path))
    initial = serving.read(path).weights
    assert len(initial) == len(before)
    assert all(map(np.array_equal, initial, before))
    assert all(np.abs(a - b).max() > 0 for a, b in zip(after, before))
