"""The parts of the benchmark that can be wrong without being slow."""

import json

import numpy as np
import pytest
import tensorflow as tf

from tff_reg.runtime import benchmark


def _measurement(runtime, seconds, parallel=1):
    return benchmark.Measurement("cnn", runtime, parallel, tuple(seconds), 9.0)


def test_json_has_medians_and_their_ratios_to_the_loop_by_hand():
    rows = benchmark.as_json([
        _measurement("hand_written", [2.0, 1.0, 9.0]),
        _measurement("in_process", [1.0, 0.5, 7.0], parallel=2),
    ])
    assert json.loads(json.dumps(rows)) == rows
    assert rows[1]["case"] == "cnn"
    assert rows[1]["runtime"] == "in_process"
    assert rows[1]["clients_in_parallel"] == 2
    assert rows[1]["seconds_median"] == 1.0
    assert rows[1]["ratio_to_hand_written"] == 0.5
    table = benchmark.table(rows)
    assert "| cnn | in process, 2 clients at a time | 1.000 |" in table[-1]


def test_the_two_group_norms_compute_the_same():
    x = 3 + 2 * tf.random.stateless_normal([4, 6, 6, 8], [1, 2])
    keras, own = benchmark._keras_group_norm(), benchmark._own_group_norm()
    np.testing.assert_allclose(keras(x), own(x), rtol=1e-4, atol=1e-5)
    assert [w.shape for w in keras.weights] == [w.shape for w in own.weights]


@pytest.mark.parametrize(
    "way, parallel", [("in_process", 1), ("in_process_whole_client", 2)]
)
def test_all_ways_run_the_same_round(monkeypatch, way, parallel):
    monkeypatch.setattr(benchmark, "_EXAMPLES", 20)  # one batch: no order to differ
    monkeypatch.setattr(benchmark, "_CLIENTS", 2)
    # Traced before TFF makes graphs of its own, which Keras does not forgive.
    server_weights = benchmark._hand_written("cnn", 1)()
    rounds = benchmark._WAYS[way]("cnn", parallel)
    rounds()
    found = rounds._process.get_model_weights(rounds._state).trainable
    for a, b in zip(server_weights, found):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
