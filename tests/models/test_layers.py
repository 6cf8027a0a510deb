import numpy as np
import pytest
import tensorflow as tf

from tff_reg.models import forward, group_norm, layers, norms

TRAIN = forward.ForwardPass(training=True)
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
    conv = layers.Conv2D(
        2,
        3,
        kernel,
        layers.Seeds(0),
        stride=stride,
        padding=padding,
        use_bias=True,
        name="conv",
        dtype=dtype,
    )
    x = _images(2, 6, 6, 2, dtype=dtype)
    y = conv(tf.constant(x), EVALUATE).numpy()
    padded = np.pad(x, [(0, 0), (padding, padding), (padding, padding), (0, 0)])
    weights = conv.kernel.numpy()
    size = (6 + 2 * padding - kernel) // stride + 1
    expected = np.zeros([2, size, size, 3])
    for i in range(size):
        for j in range(size):
            window = padded[
                :,
                i * stride : i * stride + kernel,
                j * stride : j * stride + kernel,
            ]
            expected[:, i, j] = np.einsum("bhwc,hwco->bo", window, weights)
    np.testing.assert_allclose(y, expected + conv.bias.numpy(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("shape", [(3, 4, 4, 5), (6, 5)])
def test_batch_norm_keeps_the_unbiased_variance(dtype, shape):
    norm = norms.BatchNorm(5, name="norm", dtype=dtype)
    x = 2 + 3 * _images(*shape, dtype=dtype)
    axes = tuple(range(len(shape) - 1))
    y = norm(tf.constant(x), TRAIN).numpy()
    expected = (x - x.mean(axes)) / np.sqrt(x.var(axes) + 1e-5)
    np.testing.assert_allclose(y, expected, atol=1e-5)
    np.testing.assert_allclose(norm.moving_mean, 0.1 * x.mean(axes), atol=1e-6)
    np.testing.assert_allclose(
        norm.moving_variance, 0.9 + 0.1 * x.var(axes, ddof=1), rtol=1e-5
    )


def test_batch_norm_evaluates_with_its_running_statistics():
    norm = norms.BatchNorm(2, name="norm")
    norm.moving_mean.assign([1.0, -1.0])
    norm.moving_variance.assign([4.0, 9.0])
    norm.gamma.assign([2.0, 3.0])
    norm.beta.assign([0.5, 0.0])
    x = _images(2, 3, 3, 2)
    expected = (x - [1.0, -1.0]) / np.sqrt(np.array([4.0, 9.0]) + 1e-5)
    y = norm(tf.constant(x), EVALUATE)
    np.testing.assert_allclose(y, expected * [2.0, 3.0] + [0.5, 0.0], atol=1e-5)


@pytest.mark.parametrize(
    "settings",
    [dict(width=0.5), dict(update_statistics=False)],
    ids=["below full width", "when told not to"],
)
def test_batch_norm_stores_nothing(settings):
    norm = norms.BatchNorm(16, name="norm")
    x = tf.constant(_images(4, 2, 2, 8 if "width" in settings else 16))
    norm(x, forward.ForwardPass(training=True, **settings))
    np.testing.assert_array_equal(norm.moving_mean, np.zeros(16))
    np.testing.assert_array_equal(norm.moving_variance, np.ones(16))


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
    built = norms.build_norm("group", 8, groups=groups, name="norm", dtype=dtype)
    built.gamma.assign(norm.gamma)
    built.beta.assign(norm.beta)
    np.testing.assert_array_equal(built(tf.constant(x), TRAIN), y)


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


@pytest.mark.parametrize(
    "build, words",
    [
        (lambda: norms.GroupNorm(6, groups=4, name="n"), "its 6 channels.*groups=4"),
        (
            lambda: norms.build_norm("layer", 4, name="norm", dtype="float32"),
            "Unknown norm 'layer'",
        ),
        *(
            (
                lambda channels=channels: layers.GroupedPointwiseConv2D(
                    *channels, 3, layers.Seeds(0), name="conv"
                ),
                "divides its . input and . output.*=3",
            )
            for channels in ((4, 6), (6, 4))
        ),
    ],
)
def test_raises_on_what_makes_no_layer(build, words):
    with pytest.raises(ValueError, match=words):
        build()


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


@pytest.mark.parametrize("dtype, step", [("float32", 1e-2), ("float64", 1e-5)])
@pytest.mark.parametrize("kind", ["depthwise", "grouped"])
def test_convolutions_in_groups_have_their_gradients(kind, dtype, step):
    if kind == "depthwise":
        layer = layers.DepthwiseConv2D(
            6, 3, layers.Seeds(0), stride=2, padding=1, name="conv", dtype=dtype
        )
    else:
        layer = layers.GroupedPointwiseConv2D(
            6, 6, 3, layers.Seeds(0), name="conv", dtype=dtype
        )
    x = tf.constant(_images(2, 4, 4, 6, dtype=dtype))

    def value(x):
        return tf.reduce_sum(layer(x, TRAIN) ** 2)

    variables = [layer.kernel, layer.bias]
    with tf.GradientTape() as tape:
        tape.watch(x)
        total = value(x)
    by_x, *by_variables = tape.gradient(total, [x, *variables])
    # Quadratic in all of them: central differences are exact but for rounding.
    direction = tf.constant(_images(*x.shape, seed=1, dtype=dtype))
    slope = (value(x + step * direction) - value(x - step * direction)) / (2 * step)
    rtol = 1e-2 if dtype == "float32" else 1e-8
    np.testing.assert_allclose(slope, tf.reduce_sum(by_x * direction), rtol=rtol)
    for variable, gradient in zip(variables, by_variables):
        direction = tf.constant(_images(*variable.shape, seed=2, dtype=dtype))
        variable.assign_add(step * direction)
        above = value(x)
        variable.assign_sub(2 * step * direction)
        slope = (above - value(x)) / (2 * step)
        variable.assign_add(step * direction)
        np.testing.assert_allclose(
            slope, tf.reduce_sum(gradient * direction), rtol=rtol
        )


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
