"""Maps side by side: TensorFlow's convolution to the bit, with all its derivatives."""

import numpy as np
import pytest
import tensorflow as tf

from tff_reg.models import forward as forward_lib, layers, narrow_maps


def plain(x, kernel):
    return tf.nn.conv2d(x, kernel, 1, "SAME")


def derivatives(convolve, x, kernel):
    """The value, the gradients of its squares' sum, and those of their squares' sum."""
    with tf.GradientTape() as outer:
        outer.watch([x, kernel])
        with tf.GradientTape() as inner:
            inner.watch([x, kernel])
            y = convolve(x, kernel)
            squares = tf.reduce_sum(y * y)
        first = inner.gradient(squares, [x, kernel])
        both = sum(tf.reduce_sum(each * each) for each in first)
    return y, *first, *outer.gradient(both, [x, kernel])


def case(batch, height, width, channels, dtype=np.float32):
    random = np.random.default_rng(0)
    x = random.normal(size=(batch, height, width, channels[0])).astype(dtype)
    kernel = random.normal(size=(3, 3, *channels)).astype(dtype)
    return tf.constant(x), tf.constant(kernel)


@pytest.mark.parametrize("in_graph", [False, True])
@pytest.mark.parametrize("batch, height, width", [(1, 4, 4), (5, 2, 3), (3, 4, 2)])
def test_all_derivatives_are_those_of_tensorflow(batch, height, width, in_graph):
    x, kernel = case(batch, height, width, (6, 10), np.float64)

    def all_of(x, kernel):
        return derivatives(narrow_maps.convolve, x, kernel)

    found = (tf.function(all_of) if in_graph else all_of)(x, kernel)
    expected = derivatives(plain, x, kernel)
    for a, b in zip(found, expected):
        np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-9)


def test_many_channels_have_the_same_bits():
    x, kernel = case(9, 4, 4, (512, 512))
    found = derivatives(narrow_maps.convolve, x, kernel)
    expected = derivatives(plain, x, kernel)
    for a, b in zip(found[:3], expected[:3]):  # All but the second derivatives.
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(
    "shape, channels, kernel_size, stride, is_beside",
    [
        ((None, 4, 4), 512, 3, 1, True),
        ((None, 5, 2), 512, 3, 1, True),
        ((None, 4, 5), 512, 3, 1, False),
        ((None, 1, 1), 512, 3, 1, False),
        ((None, None, None), 512, 3, 1, False),
        ((7, 4, 4), 512, 3, 1, False),
        ((None, 4, 4), 256, 3, 1, False),
        ((None, 4, 4), 512, 1, 1, False),
        ((None, 4, 4), 512, 3, 2, False),
    ],
)
def test_a_convolution_takes_it_where_it_pays(
    shape, channels, kernel_size, stride, is_beside
):
    layer = layers.Conv2D(
        channels,
        512,
        kernel_size,
        layers.Seeds(0),
        stride=stride,
        padding=kernel_size // 2,
        name="convolution",
    )

    @tf.function(input_signature=[tf.TensorSpec([*shape, channels])])
    def convolve(x):
        return layer(x, forward_lib.ForwardPass())

    graph = convolve.get_concrete_function().graph
    operations = [op.type for op in graph.get_operations()]
    assert ("Transpose" in operations) == is_beside
    assert operations.count("Conv2D") == 1


def test_below_full_width_a_convolution_may_have_too_few_channels():
    layer = layers.Conv2D(512, 512, 3, layers.Seeds(0), padding=1, name="convolution")
    x = tf.TensorSpec([None, 4, 4, 512])
    for width, is_beside in ((1.0, True), (0.75, False)):
        forward = forward_lib.ForwardPass(width=width)
        function = tf.function(lambda x, forward=forward: layer(x, forward))
        operations = function.get_concrete_function(x).graph.get_operations()
        assert any(op.type == "Transpose" for op in operations) == is_beside
