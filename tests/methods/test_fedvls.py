import numpy as np
import pytest
import tensorflow as tf

from tff_reg import methods, testing

LOGITS = np.array([[1.0, 0.0, -1.0, 2.0], [0.5, 2.0, 0.0, -1.0]])
TARGET = np.array([[0.0, 3.0, 0.0, 1.0], [1.0, 1.0, -1.0, 0.0]])


def _term(counts, labels, method=None):
    # The received model in training mode; another one is not known.
    step = testing.step(
        logits=LOGITS,
        labels=labels,
        class_counts=counts,
        of_models={"global": TARGET},
    )
    return (method or methods.FedVLS()).term(step)


def _log_softmax(z):
    return z - np.log(np.exp(z).sum(axis=1, keepdims=True))


def test_the_parts_by_hand():
    found = _term([3, 0, 1, 0], [0, 2], methods.FedVLS(distillation=2, suppression=3))
    p, q = (_log_softmax(z[:, [1, 3]]) for z in (TARGET, LOGITS))
    divergence = np.mean(np.sum(np.exp(p) * (p - q), axis=1))
    assert float(found.measurements["divergence"]) == pytest.approx(divergence)
    # Classes 0 and 2 have shares; the true classes' logits count as 0.
    shifted = LOGITS - np.log([0.75, 1, 0.25, 1]) + np.log(0.25)
    shifted[[0, 1], [0, 2]] = 0
    means = np.log(np.mean(np.exp(shifted), axis=0))
    suppressed = 0.75 * means[0] + 0.25 * means[2]
    assert float(found.measurements["suppression"]) == pytest.approx(suppressed)
    assert float(found.raw) == pytest.approx(2 * divergence + 3 * suppressed)


@pytest.mark.parametrize("counts", [[1, 1, 1, 1], [1, 0, 2, 1]])
def test_fewer_than_two_missing_classes_have_nothing_to_distil(counts):
    assert float(_term(counts, [0, 2]).measurements["divergence"]) == 0


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
