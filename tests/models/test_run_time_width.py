"""Passes whose width is a tensor: the channels are known only at run time."""

import functools

import numpy as np
import pytest
import tensorflow as tf

from tff_reg import models
from tff_reg.models import forward, resnet


def _bottleneck_network(**options):
    def bottleneck(planes, stride):
        return [(1, planes, 1), (3, planes, stride), (1, 4 * planes, 1)]

    return resnet.build_resnet(bottleneck, (2, 1), planes=(16, 32), **options)


def _small_network(**options):
    def basic(planes, stride):
        return [(3, planes, stride), (3, planes, 1)]

    return resnet.build_resnet(basic, (1, 1), planes=(16, 32), **options)


NETWORKS = {
    "small": _small_network,
    "bottlenecks": _bottleneck_network,
    "resnet8": resnet.resnet8,
    "resnet20": resnet.resnet20,
}


def _images(*shape, dtype="float32"):
    return np.random.default_rng(0).normal(size=shape).astype(dtype)


def _compute(network, training, x, width):
    """Every output of a pass and the gradient of a number made of its logits."""
    settings = forward.ForwardPass(
        training=training, width=width, record_activations=True
    )
    with tf.GradientTape() as tape:
        tape.watch(x)
        outputs = network(x, settings)
        value = tf.reduce_sum(tf.math.sin(outputs.logits))
    gradients = tape.gradient(value, [x, *network.trainable_variables])
    return (
        outputs.logits,
        outputs.embedding,
        *outputs.block_outputs,
        *outputs.activations,
        *(tf.convert_to_tensor(g) for g in gradients),
    )


def _traced(network, training, images, width=None):
    """`_compute` as a graph: at a static width, or as a function of the width."""
    compute = functools.partial(_compute, network, training)
    if width is not None:
        return tf.function(functools.partial(compute, width=width), [images])
    return tf.function(compute, [images, tf.TensorSpec([], tf.float64)])


def _assert_equal(got, expected, norm, dtype="float32", **options):
    """To the bit, but for what the fused kernel of BatchNorm rounds otherwise.

    Static passes in float32 use that kernel; passes of run-time widths must not.
    """
    tolerance = 1e-4 if (norm, dtype) == ("batch", "float32") else 0
    scale = tolerance * np.abs(expected).max()
    np.testing.assert_allclose(got, expected, rtol=0, atol=scale, **options)


@pytest.fixture
def graphs_as_written():
    """Keeps TensorFlow from reordering sums and products where it knows shapes."""
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
    yield
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": False})


@pytest.mark.parametrize(
    "dtype", [pytest.param("float32", marks=pytest.mark.slow), "float64"]
)
@pytest.mark.parametrize("norm", models.norms_of("resnet8"))
@pytest.mark.parametrize(
    "name",
    [
        "small",
        *(
            pytest.param(name, marks=pytest.mark.slow)
            for name in NETWORKS
            if name != "small"
        ),
    ],
)
def test_one_trace_computes_what_static_passes_compute(
    name, norm, dtype, graphs_as_written
):
    network = NETWORKS[name](
        input_shape=(8, 8, 3), num_classes=5, norm=norm, dtype=dtype
    )
    x = tf.constant(_images(4, 8, 8, 3, dtype=dtype))
    for training in (True, False) if name in ("small", "resnet8") else (True,):
        dynamic = _traced(network, training, tf.TensorSpec([None, 8, 8, 3], dtype))
        # Only in training is BatchNorm at the tensor 1.0 what it is at the float.
        for width in (0.25, 0.5, 0.8, 0.93, 1.0)[: 5 if training else 4]:
            got = dynamic(x, tf.constant(width, tf.float64))
            for one, other in zip(got, _compute(network, training, x, width)):
                _assert_equal(one, other, norm, dtype, err_msg=f"width {width}")
        assert dynamic.experimental_get_tracing_count() == 1


@pytest.mark.parametrize("norm", models.norms_of("resnet8"))
def test_optimized_graphs_compute_the_same_in_float32(norm):
    network = _small_network(input_shape=(8, 8, 3), num_classes=5, norm=norm)
    images = tf.TensorSpec([None, 8, 8, 3])
    x = tf.constant(_images(4, 8, 8, 3))
    dynamic = _traced(network, True, images)
    # 24 channels make groups of 12, by which a division is not exact.
    got = dynamic(x, tf.constant(0.8, tf.float64))
    for one, other in zip(got, _traced(network, True, images, 0.8)(x)):
        _assert_equal(one, other, norm)


def test_run_time_widths_keep_off_the_fused_batch_norm():
    # Its kernel for CPUs keeps the number of channels in the operation: two clients
    # that run one at two widths at a time write beyond each other's buffers.
    network = resnet.resnet8(input_shape=(8, 8, 3), num_classes=5, norm="batch")
    images = tf.TensorSpec([None, 8, 8, 3])

    def fused(width=None):
        graph = _traced(network, True, images, width).get_concrete_function().graph
        return [op for op in graph.get_operations() if "FusedBatchNorm" in op.type]

    assert fused(0.5)
    assert not fused()


@pytest.mark.parametrize("norm", models.norms_of("resnet8"))
def test_images_may_have_a_size_known_at_run_time(norm):
    network = _small_network(input_shape=(8, 8, 3), num_classes=5, norm=norm)
    dynamic = _traced(network, True, tf.TensorSpec([None, None, None, 3]))
    for size, width in ((8, 0.5), (5, 0.25)):
        x = tf.constant(_images(3, size, size, 3))
        images = tf.TensorSpec([None, size, size, 3])
        expected = _traced(network, True, images, width)(x)
        for got, value in zip(dynamic(x, tf.constant(width, tf.float64)), expected):
            _assert_equal(got, value, norm)


def test_one_block_runs_on_channels_cut_at_run_time_and_branches_are_dropped():
    network = resnet.resnet8(input_shape=(8, 8, 3), num_classes=5)
    feature = tf.constant(_images(2, 4, 4, 32))

    def run(feature, width):
        channels = forward.channels_at_width(feature.shape[-1], width)
        scales = tf.constant([1.0, 1.0, 0.5])
        settings = forward.ForwardPass(training=True, width=width, branch_scales=scales)
        return network.run_block(-2, feature[..., :channels], settings)

    traced = tf.function(run)
    for width in (0.25, 0.5, 0.8):
        got = traced(feature, tf.constant(width, tf.float64))
        np.testing.assert_allclose(got, run(feature, width), rtol=1e-6, atol=1e-6)


def test_channels_at_a_tensor_width_follow_the_python_rule():
    rng = np.random.default_rng(1)
    widths = [*np.round(np.arange(1, 101) / 100, 2), *rng.uniform(1e-3, 1, 50), 1.0]
    at_width = tf.function(
        lambda width: [forward.channels_at_width(c, width) for c in channels]
    )
    channels = (1, 4, 8, 9, 10, 16, 17, 24, 32, 64, 100, 256, 512)
    for width in widths:
        got = at_width(tf.constant(width, tf.float64))
        assert all(value.dtype == tf.int32 for value in got)
        expected = [forward.channels_at_width(c, float(width)) for c in channels]
        np.testing.assert_array_equal(got, expected, err_msg=str(width))


def test_models_without_width_say_so_without_printing_the_tensor():
    model_fn = models.build_model_fn("cnn", image_shape=(8, 8, 3), num_classes=3)
    width = tf.constant(0.5, tf.float64)
    with pytest.raises(models.MissingCapabilityError) as error:
        model_fn().network(_images(1, 8, 8, 3), forward.ForwardPass(width=width))
    assert "width that is drawn at run time" in str(error.value)
    assert "tf.Tensor" not in str(error.value)


def test_a_model_that_flattens_says_that_it_takes_one_size():
    model_fn = models.build_model_fn("cnn", image_shape=(8, 8, 3), num_classes=3)
    network = model_fn().network
    with pytest.raises(models.MissingCapabilityError, match="images of one size"):
        network(tf.constant(_images(1, 4, 4, 3)), models.ForwardPass())
    with pytest.raises(models.MissingCapabilityError, match="images of one size"):
        run = tf.function(lambda x: network(x, models.ForwardPass()), autograph=False)
        run.get_concrete_function(tf.TensorSpec([None, None, None, 3]))
