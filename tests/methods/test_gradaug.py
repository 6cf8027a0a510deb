import numpy as np
import pytest
import tensorflow as tf

from tff_reg import methods, models
from tff_reg.methods import distillation
from tff_reg.models import forward

MODEL_FN = models.build_model_fn("resnet8", image_shape=(16, 16, 1), num_classes=3)


def _draws(term, count=60):
    draw = tf.function(lambda key: term.draw((16, 8), key))
    return [
        [
            [np.asarray(value) for value in one]
            for one in draw(tf.constant([i, 5], tf.int64))
        ]
        for i in range(count)
    ]


def test_the_codes_widths_include_the_narrowest():
    draws = _draws(methods.GradAug(subnetworks=3, minimum_width=0.5))
    widths = np.array([[width for width, _, _ in step] for step in draws])
    assert np.all(widths[:, 0] == np.float32(0.5))
    assert np.all((widths[:, 1:] >= 0.5) & (widths[:, 1:] < 1))
    assert len(np.unique(widths[:, 1:])) == 2 * len(draws)


def test_the_paper_draws_all_widths():
    draws = _draws(methods.GradAug(width_choice="paper"))
    widths = np.array([[width for width, _, _ in step] for step in draws])
    assert len(np.unique(widths)) == widths.size
    assert abs(widths.mean() - 0.9) < 0.02


def test_resolutions_are_fractions_of_both_sides():
    sizes = {(int(h), int(w)) for step in _draws(methods.GradAug()) for _, h, w in step}
    assert sizes == {(16, 8), (14, 7), (12, 6), (10, 5)}


def test_adds_up_the_divergences_of_its_subnetworks():
    model = MODEL_FN()
    x = tf.random.stateless_normal([4, 16, 16, 1], [1, 2])
    outputs = model.network(x, forward.ForwardPass(training=True))
    step = methods.Step(
        network=model.network,
        outputs=outputs,
        features=x,
        key=tf.constant([2, 3], tf.int64),
    )
    term = methods.GradAug(strength=0.5)
    expected = 0.0
    for width, height, image_width in term.draw((16, 16), step.key):
        resized = models.resize_bilinear(x, height, image_width)
        settings = forward.ForwardPass(training=True, width=float(width))
        logits = model.network(resized, settings).logits
        expected += float(distillation.divergence(outputs.logits, logits))
    value = term.term(step)
    assert float(value.raw) == pytest.approx(expected, rel=1e-5)
    assert float(value.weighted) == pytest.approx(0.5 * expected, rel=1e-5)


def test_the_whole_networks_predictions_are_constants():
    model = MODEL_FN()
    x = tf.random.stateless_normal([4, 16, 16, 1], [1, 2])
    key = tf.constant([2, 3], tf.int64)
    term = methods.GradAug()
    with tf.GradientTape() as tape:
        outputs = model.network(x, forward.ForwardPass(training=True))
        step = methods.Step(model.network, outputs, features=x, key=key)
        value = term.term(step).weighted
    assert tape.gradient(value, outputs.logits) is None


def test_a_model_of_fixed_image_size_is_refused():
    flattening = models.build_model_fn("cnn", image_shape=(8, 8, 1), num_classes=3)
    with pytest.raises(models.MissingCapabilityError, match="images of one size"):
        methods.GradAug(minimum_width=1.0).check_network(flattening().network)
