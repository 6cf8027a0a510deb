import numpy as np
import pytest
import tensorflow as tf

from tff_reg.models import forward, group_norm, layers, norms

TRAIN = forward.ForwardPass(training=True, update_statistics=True)
EVALUATE = forward.ForwardPass()


def _images(*shape, seed=0, dtype=np.float32):
    return np.random.default_rng(seed).normal(size=shape).astype(dtype)


@pytest.mark.parametrize(
    "channels, width, expected",
    [
        (64, 1.0, 64),
        (256, 0.25, 64),
        (64, 0.25, 16),
        (16, 0.8, 16),
        (32, 0.88, 32),
        (32, 0.87, 32),
        (32, 0.8, 24),
        (16, 0.1, 8),
        (10, 1.0, 10),
        (4, 0.5, 4),
    ],
)
def test_channels_at_width_are_multiples_of_eight(channels, width, expected):
    assert forward.channels_at_width(channels, width) == expected


@pytest.mark.parametrize("stride, padding, kernel", [(1, 1, 3), (2, 1, 3), (2, 0, 1)])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_convolution_pads_both_ends_alike(stride, padding, kernel, dtype):
    options = dict(stride=stride, padding=padding, use_bias=True, dtype=dtype)
    conv = layers.Conv2D(2, 3, kernel, layers.Seeds(0), name="conv", **options)
    x = _images(2, 6, 6, 2, dtype=dtype)
    padded = np.pad(x, [(0, 0), (padding, padding), (padding, padding), (0, 0)])
    expected = tf.nn.conv2d(padded, conv.kernel, stride, "VALID") + conv.bias
    y = conv(tf.constant(x), EVALUATE)
    np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("shape", [(3, 4, 4, 5), (6, 5)])
def test_batch_norm_is_the_formula_and_keeps_the_unbiased_variance(dtype, shape):
    norm = norms.BatchNorm(5, name="norm", dtype=dtype)
    norm.gamma.assign(_images(5, seed=1))
    norm.beta.assign(_images(5, seed=2))
    x = 2 + 3 * _images(*shape, dtype=dtype)
    axes = tuple(range(len(shape) - 1))

    def formula(mean, variance):
        return (x - mean) / np.sqrt(variance + 1e-5) * norm.gamma + norm.beta

    quiet = forward.ForwardPass(training=True)
    for settings in (quiet, TRAIN):
        y = norm(tf.constant(x), settings)
        np.testing.assert_allclose(y, formula(x.mean(axes), x.var(axes)), atol=1e-5)
        if settings is quiet:
            assert not norm.moving_mean.numpy().any()
    np.testing.assert_allclose(norm.moving_mean, 0.1 * x.mean(axes), atol=1e-6)
    np.testing.assert_allclose(
        norm.moving_variance, 0.9 + 0.1 * x.var(axes, ddof=1), rtol=1e-5
    )
    expected = formula(norm.moving_mean, norm.moving_variance)
    np.testing.assert_allclose(norm(tf.constant(x), EVALUATE), expected, atol=1e-4)


def _group_norm(x, groups, gamma, beta):
    batch, height, width, channels = x.shape
    grouped = x.reshape(batch, height * width, groups, channels // groups)
    mean = grouped.mean((1, 3), keepdims=True)
    variance = grouped.var((1, 3), keepdims=True)
    y = ((grouped - mean) / np.sqrt(variance + 1e-5)).reshape(x.shape)
    return y * gamma + beta


@pytest.mark.parametrize("dtype, tolerance", [("float32", 2e-5), ("float64", 1e-12)])
@pytest.mark.parametrize("groups", [1, 2, 4])
def test_group_norm_is_the_formula(dtype, tolerance, groups):
    norm = norms.GroupNorm(8, groups=groups, name="norm", dtype=dtype)
    norm.gamma.assign(_images(8, seed=1, dtype=dtype))
    norm.beta.assign(_images(8, seed=2, dtype=dtype))
    # A mean far from zero shows whether the variance is computed stably.
    x = 30 + _images(3, 4, 5, 8, dtype=dtype)
    y = norm(tf.constant(x), TRAIN).numpy()
    expected = _group_norm(
        x.astype(np.float64), groups, norm.gamma.numpy(), norm.beta.numpy()
    )
    np.testing.assert_allclose(y, expected, atol=tolerance * 30)


def test_group_norm_has_the_gradient_of_the_formula():
    direction = tf.constant(_images(2, 3, 3, 4, seed=1, dtype=np.float64))

    def value(x, gamma, beta):
        y = group_norm.normalize(x, gamma, beta, 2, norms.NORM_EPSILON)
        return tf.reduce_sum(y * direction + y**3)

    gamma, beta = [0.5, -1.0, 2.0, 1.5], [0.1, 0.2, 0.3, 0.4]
    arguments = [_images(2, 3, 3, 4, dtype=np.float64), np.array(gamma), np.array(beta)]
    arguments = [tf.constant(each) for each in arguments]
    found = tf.test.compute_gradient(value, arguments, delta=1e-5)
    for theoretical, numerical in zip(*found):
        np.testing.assert_allclose(theoretical, numerical, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("kind", ["group", "batch"])
@pytest.mark.parametrize("in_graph", [False, True])
def test_norms_have_second_derivatives(kind, in_graph):
    norm = norms.build_norm(kind, 4, name="norm", dtype="float64")
    x = tf.constant(_images(2, 3, 3, 4, dtype=np.float64))
    vector = tf.constant(_images(2, 3, 3, 4, seed=3, dtype=np.float64))

    norm.gamma.assign(1 + 0.3 * _images(4, dtype=np.float64))

    def gradient(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            value = tf.reduce_sum(norm(x, TRAIN) ** 3)
        return tape.gradient(value, x)

    def multiply(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            projection = tf.reduce_sum(gradient(x) * vector)
        return tape.gradient(projection, x)

    product = (tf.function(multiply) if in_graph else multiply)(x)
    step = 1e-6
    expected = (gradient(x + step * vector) - gradient(x - step * vector)) / (2 * step)
    np.testing.assert_allclose(product, expected, rtol=1e-5, atol=1e-6)


def test_layers_use_their_first_channels_below_full_width():
    half = forward.ForwardPass(width=0.5)
    conv = layers.Conv2D(16, 32, 3, layers.Seeds(0), padding=1, name="conv")
    x = tf.constant(_images(1, 4, 4, 8))
    expected = tf.nn.conv2d(x, conv.kernel[:, :, :8, :16], 1, "SAME")
    np.testing.assert_allclose(conv(x, half), expected, rtol=1e-6)
    dense = layers.Dense(16, 10, layers.Seeds(0), name="dense")
    features = tf.constant(_images(2, 8))
    expected = features @ dense.kernel[:8] + dense.bias
    np.testing.assert_allclose(dense(features, half), expected, rtol=1e-5, atol=1e-6)


def test_initial_weights_depend_on_the_seed_and_the_layer_alone():
    def kernels(seed):
        seeds = layers.Seeds(seed)
        return [
            layers.Conv2D(8, 8, 3, seeds, name="conv").kernel.numpy() for _ in range(2)
        ]

    first, again = kernels(1), kernels(1)
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first[0], first[1])
    for other in (2, 2**32 + 1, 2**53 - 1):
        assert not np.array_equal(first[0], kernels(other)[0])


@pytest.mark.parametrize("stride, padding, kernel", [(1, 1, 3), (2, 1, 3), (1, 0, 2)])
def test_depthwise_convolution_is_a_convolution_channel_by_channel(
    stride, padding, kernel
):
    layer = layers.DepthwiseConv2D(
        5,
        kernel,
        layers.Seeds(0),
        stride=stride,
        padding=padding,
        name="conv",
        dtype="float64",
    )
    x = tf.constant(_images(2, 7, 6, 5, dtype=np.float64))
    # The same as a whole convolution whose kernel is zero between channels.
    dense = layer.kernel * tf.eye(5, dtype=tf.float64)
    padded = np.pad(x, [(0, 0), (padding, padding), (padding, padding), (0, 0)])
    expected = tf.nn.conv2d(padded, dense, stride, "VALID") + layer.bias
    np.testing.assert_allclose(layer(x, TRAIN), expected, rtol=1e-12, atol=1e-14)
    # Below full width it has the channels of its input.
    narrow = layer(x[..., :3], forward.ForwardPass(training=True, width=0.5))
    np.testing.assert_allclose(narrow, expected[..., :3], rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("groups", [1, 2, 3])
def test_grouped_convolution_is_one_for_each_run_of_channels(groups):
    layer = layers.GroupedPointwiseConv2D(
        6, 12, groups, layers.Seeds(0), name="conv", dtype="float64"
    )
    x = tf.constant(_images(2, 3, 4, 6, dtype=np.float64))
    parts = [
        tf.nn.conv2d(part, kernel[tf.newaxis, tf.newaxis], 1, "VALID")
        for part, kernel in zip(tf.split(x, groups, -1), layer.kernel)
    ]
    expected = tf.concat(parts, -1) + layer.bias
    np.testing.assert_allclose(layer(x, TRAIN), expected, rtol=1e-12, atol=1e-14)

    @tf.function(input_signature=[tf.TensorSpec([None, 3, 4, 6], tf.float64)])
    def traced(x):
        y = layer(x, TRAIN)
        assert y.shape.as_list() == [None, 3, 4, 12]
        return y

    np.testing.assert_allclose(traced(x), expected, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("kind", ["depthwise", "grouped"])
def test_convolutions_in_groups_have_their_gradients_in_float64(kind):
    options = dict(name="conv", dtype="float64")
    if kind == "depthwise":
        options.update(stride=2, padding=1)
        layer = layers.DepthwiseConv2D(6, 3, layers.Seeds(0), **options)
    else:
        layer = layers.GroupedPointwiseConv2D(6, 6, 3, layers.Seeds(0), **options)

    def value(x, kernel, bias):
        layer.kernel, layer.bias = kernel, bias
        return tf.reduce_sum(layer(x, TRAIN) ** 2)

    arguments = [tf.constant(_images(2, 4, 4, 6, dtype=np.float64))]
    arguments += [tf.constant(v.numpy()) for v in (layer.kernel, layer.bias)]
    found = tf.test.compute_gradient(value, arguments, delta=1e-5)
    for theoretical, numerical in zip(*found):
        np.testing.assert_allclose(theoretical, numerical, rtol=1e-6, atol=1e-7)


def test_shuffled_channels_come_from_all_groups():
    x = tf.reshape(tf.range(12.0), [2, 1, 1, 6])
    shuffled = layers.ChannelShuffle(3)(x, forward.ForwardPass())
    np.testing.assert_array_equal(shuffled[0, 0, 0], [0, 2, 4, 1, 3, 5])
    np.testing.assert_array_equal(shuffled[1, 0, 0], [6, 8, 10, 7, 9, 11])


@pytest.mark.parametrize("stride", [1, 2, 3])
def test_1x1_convolutions_stride_before_they_multiply(stride):
    # oneDNN in TF 2.14 damages the heap in the gradient of a strided 1x1 kernel.
    layer = layers.Conv2D(8, 16, 1, layers.Seeds(0), stride=stride, name="c")
    x = tf.random.stateless_normal([2, 7, 6, 8], [1, 2])

    @tf.function
    def gradient(x):
        with tf.GradientTape() as tape:
            y = layer(x, forward.ForwardPass())
            loss = tf.reduce_sum(y**2)
        return y, tape.gradient(loss, layer.kernel)

    operations = gradient.get_concrete_function(x).graph.get_operations()
    strides = [list(op.get_attr("strides")) for op in operations if "Conv2D" in op.type]
    assert len(strides) >= 2 and all(each == [1, 1, 1, 1] for each in strides)
    kept = x.numpy()[:, ::stride, ::stride]
    expected = kept @ layer.kernel.numpy()[0, 0]
    y, slope = gradient(x)
    np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(
        slope[0, 0],
        2 * np.einsum("bhwi,bhwo->io", kept, expected),
        rtol=1e-4,
        atol=1e-4,
    )
