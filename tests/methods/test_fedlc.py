import numpy as np
import pytest
import tensorflow as tf

from tff_reg import methods
from tff_reg.models import learning_model

LOGITS = tf.constant([[1.0, 2.0, 3.0], [4.0, 0.0, 1.0]], tf.float64)


def _loss_and_gradient(method, labels, counts):
    with tf.GradientTape() as tape:
        tape.watch(LOGITS)
        changed = method.change_logits(LOGITS, tf.constant(counts))
        loss = learning_model.sparse_cross_entropy(tf.constant(labels), changed)
    return float(loss), tape.gradient(loss, LOGITS).numpy()


def test_a_class_that_the_client_lacks_leaves_the_softmax():
    loss, gradient = _loss_and_gradient(methods.FedLC(strength=1.0), [0, 2], [1, 0, 1])
    # Of the others 1 against 3 and 4 against 1, both less 1.
    expected = np.mean(np.log1p(np.exp([3 - 1, 4 - 1])))
    assert loss == pytest.approx(expected, rel=1e-14)
    np.testing.assert_array_equal(gradient[:, 1], 0.0)
    assert np.abs(gradient[:, [0, 2]]).min() > 0.01


def test_a_client_with_one_class_has_nothing_to_learn():
    loss, gradient = _loss_and_gradient(methods.FedLC(strength=0.1), [2, 2], [0, 0, 5])
    assert loss == 0
    np.testing.assert_array_equal(gradient, 0.0)


def test_strength_0_leaves_the_logits_of_absent_classes():
    counts = tf.constant([3, 0, 1])
    assert methods.FedLC(strength=0.0).change_logits(LOGITS, counts) is LOGITS
