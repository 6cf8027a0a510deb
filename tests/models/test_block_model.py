import numpy as np
import pytest
import tensorflow as tf

from tff_reg import models
from tff_reg.models import forward


def _network(name, image_shape=(12, 12, 3), num_classes=10, **options):
    model_fn = models.build_model_fn(
        name, image_shape=image_shape, num_classes=num_classes, **options
    )
    return model_fn().network


def _images(*shape):
    return tf.constant(np.random.default_rng(0).normal(size=shape), tf.float32)


@pytest.mark.parametrize(
    "name, count", [("cnn", 3), ("resnet8", 7), ("resnet20", 19), ("resnet56", 55)]
)
def test_records_every_activation_and_not_the_logits(name, count):
    network = _network(name)
    x = _images(2, 12, 12, 3)
    outputs = network(x, forward.ForwardPass(record_activations=True))
    assert len(outputs.activations) == count
    assert all(np.min(a) >= 0 for a in outputs.activations)
    again = network(x, forward.ForwardPass(record_activations=True))
    assert (
        len(again.activations) == count
        and not network(x, models.ForwardPass()).activations
    )


@pytest.mark.parametrize("norm", models.norms_of("resnet8"))
def test_a_block_runs_at_a_fraction_of_its_width(norm):
    network = _network("resnet8", norm=norm)
    feature = network(_images(2, 12, 12, 3), models.ForwardPass()).block_outputs[-3]
    narrow = network.run_block(
        -2, feature[..., :8], forward.ForwardPass(training=True, width=0.25)
    )
    assert narrow.shape == [2, 3, 3, 16]
    whole = network(
        _images(2, 12, 12, 3), forward.ForwardPass(training=True, width=0.5)
    )
    assert [o.shape[-1] for o in whole.block_outputs] == [8, 8, 16, 32, 10]


def test_a_dropped_branch_leaves_the_shortcut_and_its_statistics():
    network = _network("resnet8", norm="batch")
    x = _images(4, 12, 12, 3)
    stem = network.run_block(0, x, forward.ForwardPass(training=True))
    before = {v.name: v.numpy() for v in network.non_trainable_variables}
    dropped = network.run_block(
        1, stem, forward.ForwardPass(training=True, branch_scales=[0.0, 1.0, 1.0])
    )
    # Stage 1 has one unit without a strided shortcut: it becomes the identity.
    np.testing.assert_allclose(dropped, stem, atol=1e-6)
    for variable in network.non_trainable_variables:
        np.testing.assert_array_equal(variable, before[variable.name])


def test_evaluations_use_the_models_own_branch_scales():
    network = _network("resnet8", dtype="float64")
    x = tf.cast(_images(2, 12, 12, 3), tf.float64)
    stem = network.run_block(0, x, forward.ForwardPass())
    scales = (0.9, 0.3, 1.0)
    unit = network.blocks[1].units[0]
    plain = forward.ForwardPass()
    branch = tf.nn.relu(unit.norms[0](unit.convs[0](stem, plain), plain))
    branch = unit.norms[1](unit.convs[1](branch, plain), plain)
    network.evaluation_branch_scales = scales
    scaled = network.run_block(1, stem, forward.ForwardPass())
    # In float64: 0.9 has not been through float32.
    expected = np.maximum(stem + 0.9 * branch, 0)
    np.testing.assert_allclose(scaled, expected, rtol=1e-14, atol=1e-15)

    given = forward.ForwardPass(branch_scales=tf.constant(scales, tf.float64))
    whole = network(x, models.ForwardPass())
    np.testing.assert_array_equal(whole.block_outputs[1], scaled)
    np.testing.assert_array_equal(whole.logits, network(x, given).logits)
    rest = network.run_from(1, stem, forward.ForwardPass())
    np.testing.assert_array_equal(rest.logits, whole.logits)
    model = models.LearningModel(network)
    np.testing.assert_array_equal(model.predict_on_batch(x, False), whole.logits)
    # Training, and evaluations with scales of their own, do without them.
    ones = network(x, forward.ForwardPass(branch_scales=tf.ones([3]))).logits
    np.testing.assert_allclose(
        ones, network(x, forward.ForwardPass(training=True)).logits, rtol=1e-12
    )
    assert np.abs(ones - whole.logits).max() > 1e-3
    network.evaluation_branch_scales = None
    np.testing.assert_allclose(
        network(x, models.ForwardPass()).logits, ones, rtol=1e-12
    )


@pytest.mark.parametrize(
    "name, options, words",
    [
        ("vgg", {}, "Unknown model 'vgg'.*resnet8"),
        ("cnn", {"norm": "layer"}, "Unknown norm 'layer'.*group"),
        ("resnet8", {"norm": "none"}, "'resnet8' cannot have the norm 'none'.*group"),
        ("feddyn_cnn", {"norm": "batch"}, "'feddyn_cnn' cannot have the norm 'batch'"),
    ],
)
def test_unknown_models_and_norms_are_named(name, options, words):
    with pytest.raises(ValueError, match=words):
        _network(name, **options)


def test_a_model_needs_a_classifier_at_its_end_and_different_names():
    blocks = _network("resnet8").blocks
    of_model = dict(input_shape=(8, 8, 1), num_classes=10, num_branches=0)
    of_model.update(has_independent_examples=True, supports_width=False)
    for chosen, words in (
        (blocks[:-1], "last block is its classifier"),
        ([blocks[0], blocks[0], blocks[-1]], "names must be different"),
    ):
        with pytest.raises(ValueError, match=words):
            models.BlockModel(chosen, **of_model)


@pytest.mark.parametrize("norm", models.norms_of("resnet8"))
@pytest.mark.parametrize("chosen", [[1, 2, 3, 4], [2, 4], [4], [3]])
def test_classifying_features_of_several_blocks_is_running_from_each(norm, chosen):
    network = _network("resnet8", (8, 8, 1), 3, norm=norm, dtype="float64")
    x = tf.random.stateless_normal([3, 8, 8, 1], [1, 2], dtype=tf.float64)
    settings = forward.ForwardPass(training=True)
    blocks = network(x, settings).block_outputs
    features = [(m, blocks[m - 1] * (1 + 0.1 * m)) for m in chosen]
    joined = network.classify_from(features, settings)
    assert network.has_independent_examples == (norm == "group")
    for (first, feature), logits in zip(features, joined):
        alone = network.run_from(first, feature, settings).logits
        np.testing.assert_allclose(logits, alone, rtol=1e-12)
