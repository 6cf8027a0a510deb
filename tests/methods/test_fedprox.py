import numpy as np
import pytest
import tensorflow as tf

from tff_reg import methods


def _step(weights, start):
    return methods.Step(
        network=None,
        outputs=None,
        weights=weights,
        start=start,
    )


def test_is_half_the_strength_times_the_squared_distance():
    weights = [tf.constant([1.0, 2.0]), tf.constant([[3.0]])]
    received = [tf.constant([0.0, 4.0]), tf.constant([[0.0]])]
    term = methods.FedProx(strength=0.5).term(_step(weights, received))
    assert float(term.raw) == pytest.approx(1 + 4 + 9)
    assert float(term.weighted) == pytest.approx(0.25 * 14)


def test_its_gradient_points_from_the_global_weights_and_is_zero_there():
    weights = tf.Variable([1.0, 2.0])
    for received, expected in (([0.0, 4.0], [0.1, -0.2]), ([1.0, 2.0], [0.0, 0.0])):
        with tf.GradientTape() as tape:
            step = _step([weights], [tf.constant(received)])
            value = methods.FedProx(strength=0.1).term(step).weighted
        np.testing.assert_allclose(tape.gradient(value, weights), expected, rtol=1e-6)
