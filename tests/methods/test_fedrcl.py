import numpy as np
import pytest
import tensorflow as tf

from tff_reg import methods, models, settings
from tff_reg.models import forward


@pytest.mark.parametrize("features", [[[0.0, 0.0]] * 3, [[1.0, 2.0]] * 3])
def test_equal_features_have_a_finite_gradient(features):
    features = tf.constant(features)
    with tf.GradientTape() as tape:
        tape.watch(features)
        outputs = models.Outputs([features, features], None, features, (), [features])
        step = methods.Step(None, outputs, labels=tf.constant([0, 0, 1]))
        value = methods.FedRCL().term(step).raw
    assert np.isfinite(value)
    assert np.isfinite(tape.gradient(value, features)).all()


def test_levels_beyond_the_logits_are_refused():
    network = models.build_model_fn("cnn", image_shape=(8, 8, 1), num_classes=3)()
    methods.FedRCL(levels=(3,)).check_network(network.network)
    with pytest.raises(settings.SettingError, match="only 3 blocks"):
        methods.FedRCL(levels=(4,)).check_network(network.network)


@pytest.mark.parametrize("name", ["resnet18", "shufflenet", "cnn", "vgg9"])
def test_the_blocks_of_networks_show_what_is_before_their_relu(name):
    model_fn = models.build_model_fn(name, image_shape=(8, 8, 3), num_classes=4)
    x = np.random.default_rng(0).normal(size=(2, 8, 8, 3))
    outputs = model_fn().network(x, forward.ForwardPass(record_activations=True))
    for before, after in zip(outputs.preactivations, outputs.block_outputs[:-1]):
        assert np.min(before) < 0 <= np.min(after)
        if before.shape == after.shape:
            np.testing.assert_array_equal(np.maximum(before, 0), after)
    assert len(outputs.preactivations) == len(outputs.block_outputs) - 1


@pytest.mark.parametrize("name", ["mobilenet", "squeezenet"])
def test_a_block_that_ends_in_no_relu_shows_its_output(name):
    model_fn = models.build_model_fn(name, image_shape=(8, 8, 3), num_classes=4)
    outputs = model_fn().network(
        np.ones((2, 8, 8, 3)), forward.ForwardPass(record_activations=True)
    )
    pairs = zip(outputs.preactivations[1:], outputs.block_outputs[1:-1])
    assert all(before is after for before, after in pairs)
