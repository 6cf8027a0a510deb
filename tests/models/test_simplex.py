import numpy as np
import pytest
import tensorflow as tf

from tff_reg import models
from tff_reg.models import simplex


@pytest.mark.parametrize("dimensions, classes", [(4, 4), (9, 4), (2, 2)])
def test_directions_have_length_1_and_the_same_angles(dimensions, classes):
    matrix = np.random.default_rng(0).random((dimensions, classes))
    directions = simplex.frame(matrix)
    cosines = directions.T @ directions
    expected = np.where(np.eye(classes, dtype=bool), 1.0, -1 / (classes - 1))
    np.testing.assert_allclose(cosines, expected, atol=1e-12)


def test_outputs_of_zero_have_logits_and_gradients():
    outputs = tf.zeros([2, 3], tf.float32)
    directions = tf.constant(simplex.frame(np.eye(3)), tf.float32)
    with tf.GradientTape() as tape:
        tape.watch(outputs)
        logits = simplex.logits(outputs, directions, 10.0)
    np.testing.assert_array_equal(logits, tf.zeros_like(logits))
    assert np.isfinite(tape.gradient(logits, outputs)).all()


def test_takes_the_place_of_a_keras_layer():
    network = models.from_keras_blocks(
        [
            tf.keras.layers.Dense(5, "relu"),
            [tf.keras.layers.Dropout(0.5), tf.keras.layers.Dense(3)],
        ],
        input_shape=[4],
    )
    network.use_simplex_classifier(None, 2.0)
    shapes = [tuple(v.shape) for v in network.trainable_variables]
    assert shapes == [(4, 5), (5,), (1,), (5, 3), (3,)]
    assert [tuple(v.shape) for v in network.non_trainable_variables] == [(3, 3)]
    outputs = network(tf.ones([2, 4]), models.ForwardPass())
    assert outputs.logits.shape == [2, 3]
    assert float(tf.reduce_max(tf.abs(outputs.logits))) <= 2.0001
    with pytest.raises(models.MissingCapabilityError, match="cannot be replaced"):
        network.use_simplex_classifier(None, 2.0)
