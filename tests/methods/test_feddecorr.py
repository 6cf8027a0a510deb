import numpy as np
import pytest
import tensorflow as tf

from tff_reg.methods import feddecorr


@pytest.mark.parametrize("shape", [(1, 4), (5, 1), (0, 4)])
def test_degenerate_features_have_value_and_gradient_0(shape):
    features = tf.ones(shape, tf.float64)
    with tf.GradientTape() as tape:
        tape.watch(features)
        value = feddecorr.correlation(features)
    assert float(value) == 0
    np.testing.assert_array_equal(tape.gradient(value, features), np.zeros(shape))
