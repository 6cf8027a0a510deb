"""That what is compared computes the same."""

import numpy as np
import pytest
import tensorflow as tf

from benchmarks.shared import rounds


def test_the_two_group_norms_compute_the_same():
    x = 3 + 2 * tf.random.stateless_normal([4, 6, 6, 8], [1, 2])
    keras, own = rounds.keras_group_norm(), rounds.own_group_norm()
    np.testing.assert_allclose(keras(x), own(x), rtol=1e-4, atol=1e-5)
    assert [w.shape for w in keras.weights] == [w.shape for w in own.weights]


@pytest.mark.parametrize(
    "way, parallel", [("in_process", 1), ("in_process_whole_client", 2)]
)
def test_all_ways_run_the_same_round(monkeypatch, way, parallel):
    monkeypatch.setattr(rounds, "EXAMPLES", 20)  # one batch: no order to differ
    monkeypatch.setattr(rounds, "CLIENTS", 2)
    # Traced before TFF makes graphs of its own, which Keras does not forgive.
    server_weights = rounds.hand_written("cnn", 1)()
    run_round = rounds.WAYS[way]("cnn", parallel)
    run_round()
    found = run_round._process.get_model_weights(run_round._state).trainable
    for a, b in zip(server_weights, found):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
