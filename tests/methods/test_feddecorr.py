import numpy as np
import pytest
import tensorflow as tf

from tff_reg.methods import feddecorr


def _correlation(features):
    return float(feddecorr.correlation(tf.constant(features, tf.float64)))


def test_is_the_squared_correlation_by_the_scale_of_the_code():
    # Of three examples, M's entry off the diagonal is 2 r.
    line = [[0.0, 0.0], [1.0, 2.0], [2.0, 4.0]]
    assert _correlation(line) == pytest.approx(2**2 / 3, rel=1e-7)
    assert _correlation([[0.0, 1.0], [1.0, 3.0], [2.0, 1.0]]) == pytest.approx(0.0)
    rng = np.random.default_rng(0)
    features = rng.normal(size=(64, 4))
    correlations = np.corrcoef(features.T)
    off_diagonal = correlations[~np.eye(4, dtype=bool)]
    expected = 63**2 / 64 * np.mean(off_diagonal**2)
    assert _correlation(features) == pytest.approx(expected, rel=1e-6)


def test_does_not_know_scale_and_mean_of_a_dimension():
    features = np.random.default_rng(1).normal(size=(6, 3))
    moved = features * [1.0, 5.0, 20.0] + [3.0, 0.0, -7.0]
    assert _correlation(moved) == pytest.approx(_correlation(features), rel=1e-6)


@pytest.mark.parametrize("shape", [(1, 4), (5, 1), (0, 4)])
def test_what_cannot_be_correlated_is_0_with_a_gradient_of_0(shape):
    features = tf.ones(shape, tf.float64)
    with tf.GradientTape() as tape:
        tape.watch(features)
        value = feddecorr.correlation(features)
    assert float(value) == 0
    np.testing.assert_array_equal(tape.gradient(value, features), np.zeros(shape))
