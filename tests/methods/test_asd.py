import numpy as np
import pytest

from tff_reg import methods, models, settings, testing

LOGITS = np.array([[1.0, 0.0, -1.0], [0.5, 2.0, 0.0]])
TARGET = np.array([[0.0, 3.0, 0.0], [1.0, 1.0, 1.0]])


def _softmax(z):
    return np.exp(z) / np.exp(z).sum(axis=1, keepdims=True)


@pytest.mark.parametrize("uniform", [False, True])
def test_examples_weigh_by_their_class_and_the_entropy_of_the_target(uniform):
    # The received model in evaluation mode; another one is not known.
    step = testing.step(
        logits=LOGITS,
        labels=[1, 2],
        class_counts=[5, 4, 1],
        of_models={"evaluated": TARGET},
    )
    p, q = _softmax(TARGET / 2), _softmax(LOGITS / 2)
    divergences = np.sum(p * np.log(p / q), axis=1)
    sharp = _softmax(TARGET)
    entropy = -np.sum(sharp * np.log(sharp), axis=1)
    weights = np.ones(2) if uniform else np.exp(-entropy) / [0.4, 0.1]
    expected = np.average(divergences, weights=weights)
    found = methods.ASD(strength=0.5, uniform=uniform).term(step)
    assert float(found.raw) == pytest.approx(expected, rel=1e-14)
    assert float(found.weighted) == pytest.approx(0.5 * expected, rel=1e-14)


def test_without_the_true_class_two_classes_are_too_few():
    network = models.build_model_fn("cnn", image_shape=(8, 8, 1), num_classes=2)()
    methods.ASD().check_network(network.network)
    with pytest.raises(settings.SettingError, match="asd_not_true=true"):
        methods.ASD(not_true=True).check_network(network.network)
