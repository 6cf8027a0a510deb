import numpy as np
import tensorflow as tf

from tff_reg import methods, testing

LOGITS = np.array([[1.0, 0.0, -1.0, 2.0], [0.5, 2.0, 0.0, -1.0]])
TARGET = np.array([[0.0, 3.0, 0.0, 1.0], [1.0, 1.0, -1.0, 0.0]])


def _term(counts, labels):
    # The received model in training mode; another one is not known.
    step = testing.step(
        logits=LOGITS,
        labels=labels,
        class_counts=counts,
        of_models={"global": TARGET},
    )
    return methods.FedVLS().term(step)


def test_a_client_with_one_class_distils_the_others():
    term = _term([0, 7, 0, 0], [1, 1])
    assert float(term.measurements["divergence"]) > 0
    # All its examples' logits of the class count as 0.
    assert float(term.measurements["suppression"]) == 0
    changed = methods.FedVLS().change_logits(
        tf.constant(LOGITS), tf.constant([0, 7, 0, 0])
    )
    assert np.isfinite(changed).all()
    np.testing.assert_allclose(changed[:, 1], LOGITS[:, 1], atol=2e-9)


def test_without_the_prior_logits_stay():
    logits = tf.constant(LOGITS)
    method = methods.FedVLS(prior=False)
    assert method.change_logits(logits, tf.constant([1, 0, 2, 1])) is logits
