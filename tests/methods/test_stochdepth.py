import numpy as np
import pytest
import tensorflow as tf

from tff_reg import methods, models, training
from tff_reg.models import forward

NETWORK_FN = models.build_model_fn("resnet20", image_shape=(8, 8, 1), num_classes=3)


def test_probabilities_of_the_paper_and_of_the_code():
    paper = methods.StochDepth(survival_probability=0.7, schedule="paper")
    np.testing.assert_allclose(paper.probabilities(3), [0.9, 0.8, 0.7])
    code = methods.StochDepth(survival_probability=0.7)
    np.testing.assert_allclose(code.probabilities(3), [1.0, 0.85, 0.7])
    assert code.probabilities(1) == (1.0,)


def test_branches_are_kept_as_often_as_they_should_be():
    network = NETWORK_FN().network
    term = methods.StochDepth(survival_probability=0.5)

    @tf.function
    def draw(key):
        change = term.change_pass(forward.ForwardPass(), network, key)
        return change.value.branch_scales

    draws = np.array([draw(tf.constant([i, 1], tf.int64)).numpy() for i in range(800)])
    assert set(np.unique(draws)) == {0.0, 1.0}
    expected = np.array(term.probabilities(9))
    deviation = np.sqrt(expected * (1 - expected) / len(draws))
    assert np.all(np.abs(draws.mean(0) - expected) <= 4 * deviation)
    assert draws[:, 0].all()


def test_draws_follow_from_the_key_alone():
    network = NETWORK_FN().network
    term = methods.StochDepth(survival_probability=0.5)
    key = tf.constant([4, 2], tf.int64)
    passes = [term.change_pass(forward.ForwardPass(), network, key) for _ in range(2)]
    np.testing.assert_array_equal(*(p.value.branch_scales for p in passes))
    kept = passes[0].value.branch_scales.numpy().mean()
    assert float(passes[0].measurements["kept_branches"]) == pytest.approx(kept)


def test_evaluation_scales_the_branches():
    term = methods.StochDepth(survival_probability=0.25)
    adapted = training.adapt_model_fn(NETWORK_FN, [term])()
    scales = adapted.network.evaluation_branch_scales
    assert scales == term.probabilities(9)
    x = tf.random.stateless_normal([2, 8, 8, 1], [1, 2])
    explicit = NETWORK_FN().network(
        x, forward.ForwardPass(branch_scales=tf.constant(scales))
    )
    np.testing.assert_allclose(
        adapted.predict_on_batch(x, training=False), explicit.logits, rtol=1e-6
    )


def test_raises_on_what_cannot_be():
    with pytest.raises(ValueError, match="probability=0.0: .* greater than 0"):
        methods.StochDepth(survival_probability=0.0)
    with pytest.raises(ValueError, match="probability=1.1: .* at most 1"):
        methods.StochDepth(survival_probability=1.1)
    cnn = models.build_model_fn("cnn", image_shape=(8, 8, 1), num_classes=3)()
    with pytest.raises(ValueError, match="no residual branches"):
        methods.StochDepth().check_network(cnn.network)
