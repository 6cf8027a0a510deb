"""The parts of the comparison with other simulators that can be wrong."""

import collections
import sys

import numpy as np
import pytest

from benchmarks import peers
from benchmarks.shared import asking, cases
from benchmarks.simulators import kernels_alone, own, serving

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


@pytest.mark.parametrize("network, examples", [("resnet56", 8), ("resnet8", 12)])
def test_weights_of_resnet56_are_compared_after_two_steps(
    network, examples, monkeypatch
):
    """Programs whose round adds how many examples there are, and one that adds 8."""
    added = "weights[0] = weights[0] + serving.read(sys.argv[1]).images.shape[1]"
    programs = {
        "pytorch": _PROGRAM.replace("weights[0] = weights[0] + 1", added),
        "tff": _PROGRAM.replace("weights[0] + 1", "weights[0] + 8"),
    }

    def command(system, pythons, path):
        name = next(n for n, known in peers.SYSTEMS.items() if known is system)
        return [sys.executable, "-c", programs[name], path]

    monkeypatch.setattr(peers, "_command", command)
    monkeypatch.setattr(cases, "write", lambda path, size: serving.write(
        path, _case(images=np.ones([2, size.examples, 8, 8, 1], np.float32))
    ))  # fmt: skip
    size = cases.Size(network, "batch", (8, 8, 1), 2, 12, 4)
    monkeypatch.setitem(peers.CASES, "case", size)
    for row in peers._measure_case("case", list(programs), {}, 1, lambda line: None):
        off = 0.0 if row["system"] == "pytorch" else abs(8 - examples) / examples
        assert row["difference"] == pytest.approx(off, rel=0.05)


def test_a_rounds_kernels_are_those_of_its_steps():
    case = _case(network="resnet8", norm="batch")
    model = own.model_fn_of(case)()
    kernels = kernels_alone.of_step(model, case, 4)
    convolutions, units = 9, 7  # Two of the convolutions are in shortcuts.
    assert collections.Counter(each.type for each in kernels) == {
        "Conv2D": convolutions,
        "Conv2DBackpropFilter": convolutions,
        "Conv2DBackpropInput": convolutions - 1,
        "FusedBatchNormV3": convolutions,
        "FusedBatchNormGradV3": convolutions,
        "Relu": units,
        "ReluGrad": units,
        "MatMul": 3,
    }
    kernels_alone.alone(kernels)()
    seconds = {"pytorch": [3.0], "kernels": [1.0], "tff_reg_2": [1.5]}
    rows = peers.rows_of("digits", "pytorch", seconds, dict.fromkeys(seconds, {}))
    assert [row["ratio_to_kernels"] for row in rows] == [3.0, 1.0, 1.5]


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
