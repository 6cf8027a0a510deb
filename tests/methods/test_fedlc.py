import numpy as np
import tensorflow as tf

from tff_reg import methods
from tff_reg.models import learning_model

LOGITS = tf.constant([[1.0, 2.0, 3.0], [4.0, 0.0, 1.0]], tf.float64)


def test_a_client_with_one_class_has_nothing_to_learn():
    with tf.GradientTape() as tape:
        tape.watch(LOGITS)
        changed = methods.FedLC(strength=0.1).change_logits(
            LOGITS, tf.constant([0, 0, 5])
        )
        loss = learning_model.sparse_cross_entropy(tf.constant([2, 2]), changed)
    assert float(loss) == 0
    np.testing.assert_array_equal(tape.gradient(loss, LOGITS), tf.zeros([2, 3]))


def test_strength_0_leaves_the_logits_of_absent_classes():
    counts = tf.constant([3, 0, 1])
    assert methods.FedLC(strength=0.0).change_logits(LOGITS, counts) is LOGITS
