import numpy as np
import pytest
import tensorflow as tf

from tff_reg.methods import feduv


def _value_and_gradient(function, values):
    values = tf.constant(values, tf.float64)
    with tf.GradientTape() as tape:
        tape.watch(values)
        value = function(values)
    return float(value), tape.gradient(value, values).numpy()


def test_the_missing_deviation_of_varied_predictions_is_zero():
    value, gradient = _value_and_gradient(feduv.missing_deviation, np.eye(2))
    assert value == 0
    np.testing.assert_array_equal(gradient, 0.0)


def test_features_that_are_equal_do_not_count_for_the_median_distance():
    points = np.array([0.0, 0.0, 1.0, 3.0])
    squares = [(a - b) ** 2 for i, a in enumerate(points) for b in points[:i]]
    value, _ = _value_and_gradient(feduv.uniformity, points[:, np.newaxis])
    # Of 1, 1, 4, 9, 9, without the 0: the third.
    assert value == pytest.approx(np.mean(np.exp(-np.array(squares) / 4)))


@pytest.mark.parametrize("count, expected", [(4, 1.0), (1, 0.0), (0, 0.0)])
def test_features_that_are_all_equal_have_a_value_and_no_gradient(count, expected):
    features = np.full((count, 3), 0.7)
    value, gradient = _value_and_gradient(feduv.uniformity, features)
    assert value == expected
    np.testing.assert_array_equal(gradient, np.zeros_like(features))
