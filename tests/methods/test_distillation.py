import numpy as np
import pytest
import tensorflow as tf

from tff_reg import methods, models
from tff_reg.methods import distillation

LOCAL = np.array([[1.0, 2.0, 0.5], [0.0, -1.0, 3.0]])
RECEIVED = np.array([[0.5, 1.0, -0.3], [2.0, -1.0, 1.0]])
LABELS = np.array([1, 0], np.int32)


def _softmax(logits):
    exponents = np.exp(logits - logits.max(-1, keepdims=True))
    return exponents / exponents.sum(-1, keepdims=True)


def _divergence(target, logits, temperature=1.0):
    p, q = _softmax(target / temperature), _softmax(logits / temperature)
    return np.mean(np.sum(p * np.log(p / q), -1))


def _outputs(logits, features):
    blocks = [tf.constant(f) for f in features] + [tf.constant(logits)]
    return models.Outputs(blocks, None, blocks[-1], ())


def _step(**changes):
    local = _outputs(LOCAL, [np.ones([2, 3]), np.ones([2, 2])])
    received = _outputs(RECEIVED, [np.zeros([2, 3]), 3 * np.ones([2, 2])])
    settings = dict(
        network=None,
        outputs=local,
        labels=tf.constant(LABELS),
        outputs_of={"global": received}.get,
    )
    return methods.Step(**dict(settings, **changes))


@pytest.mark.parametrize("temperature", [1.0, 3.0])
def test_kd_is_the_divergence_from_the_global_predictions(temperature):
    term = methods.KD(strength=0.5, temperature=temperature).term(_step())
    expected = _divergence(RECEIVED, LOCAL, temperature)
    assert float(term.raw) == pytest.approx(expected)
    assert float(term.weighted) == pytest.approx(0.5 * expected)


def test_fedntd_compares_the_other_classes_only():
    others = [np.array([[x[0, 0], x[0, 2]], x[1, 1:]]) for x in (RECEIVED, LOCAL)]
    term = methods.FedNTD(strength=2.0, temperature=2.0).term(_step())
    assert float(term.raw) == pytest.approx(_divergence(*others, 2.0))
    logits = tf.constant(LOCAL)
    with tf.GradientTape() as tape:
        tape.watch(logits)
        step = _step(outputs=models.Outputs([logits], None, logits, ()))
        value = methods.FedNTD().term(step).raw
    gradient = tape.gradient(value, logits)
    assert gradient[0, 1] == gradient[1, 0] == 0.0
    assert np.count_nonzero(gradient) == 4


def test_fedntd_weighs_the_task_loss_and_the_divergence():
    plain = methods.FedNTD(strength=0.3, temperature=2.0).term(_step())
    step = _step(task_loss=tf.constant(5.0, tf.float64))
    term = methods.FedNTD(
        strength=0.3, temperature=2.0, cross_entropy=0.7, squared_temperature=True
    ).term(step)
    assert float(term.raw) == pytest.approx(4 * float(plain.raw))
    # What is added to the task loss: 0.7 of it stays.
    expected = 4 * float(plain.weighted) - 0.3 * 5
    assert float(term.weighted) == pytest.approx(expected)


def test_fedntd_needs_three_classes():
    network = models.build_model_fn("cnn", image_shape=(4, 4, 1), num_classes=2)()
    with pytest.raises(ValueError, match="the model has 2"):
        methods.FedNTD().check_network(network.network)


def test_fitnet_is_the_mean_over_blocks_of_squared_differences():
    term = methods.FitNet(strength=0.1).term(_step())
    assert float(term.raw) == pytest.approx((1 + 4) / 2)
    assert float(term.weighted) == pytest.approx(0.25)


def test_the_divergence_of_an_empty_batch_is_zero():
    empty = tf.zeros([0, 3])
    assert distillation.divergence(empty, empty) == 0.0
