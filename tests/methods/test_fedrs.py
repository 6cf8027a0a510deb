import numpy as np
import pytest
import tensorflow as tf

from tff_reg import methods

LOGITS = tf.constant([[1.0, 2.0, 3.0], [4.0, -1.0, 1.0]], tf.float64)


@pytest.mark.parametrize(
    "scaling, counts, scales",
    [
        ("binary", [0, 4, 0], [0.3, 1.0, 0.3]),
        ("frequency", [0, 4, 0], [0.3, 1.0, 0.3]),
        # A client without examples, whose logits nobody sees.
        ("binary", [0, 0, 0], [0.3] * 3),
        ("frequency", [0, 0, 0], [0.3] * 3),
    ],
)
def test_scales_logits_by_the_counts(scaling, counts, scales):
    method = methods.FedRS(factor=0.3, scaling=scaling)
    changed = method.change_logits(LOGITS, tf.constant(counts))
    np.testing.assert_allclose(changed, LOGITS * np.array(scales), rtol=1e-14)


@pytest.mark.parametrize("scaling", ["binary", "frequency"])
def test_factor_1_leaves_the_logits(scaling):
    method = methods.FedRS(factor=1.0, scaling=scaling)
    assert method.change_logits(LOGITS, tf.constant([1, 0, 2])) is LOGITS
