import numpy as np
import pytest
import tensorflow as tf

from tff_reg import models


def _images(*shape, dtype="float64"):
    return np.random.default_rng(0).normal(size=shape).astype(dtype)


def _interpolated(line, size):
    """The definition, along one axis."""
    positions = np.linspace(0, len(line) - 1, size) if size > 1 else np.zeros(1)
    return np.interp(positions, np.arange(len(line)), line)


@pytest.mark.parametrize(
    "height, width", [(3, 4), (5, 7), (11, 1), (1, 1), (2, 13), (1, 5)]
)
@pytest.mark.parametrize("shape", [(2, 5, 7, 3), (1, 1, 1, 2), (3, 1, 4, 1)])
def test_interpolates_linearly_between_aligned_corners(shape, height, width):
    x = _images(*shape)
    expected = np.apply_along_axis(_interpolated, 1, x, height)
    expected = np.apply_along_axis(_interpolated, 2, expected, width)
    resized = models.resize_bilinear(tf.constant(x), height, width)
    assert resized.shape == expected.shape
    np.testing.assert_allclose(resized, expected, rtol=1e-12, atol=1e-13)


def test_sizes_may_be_known_at_run_time():
    @tf.function(
        input_signature=[
            tf.TensorSpec([None, None, None, 3], tf.float64),
            tf.TensorSpec([], tf.int32),
        ]
    )
    def resize(x, size):
        resized = models.resize_bilinear(x, size, 2 * size)
        assert resized.shape.as_list() == [None, None, None, 3]
        return resized

    for images, size in (((2, 6, 5, 3), 4), ((1, 4, 4, 3), 1), ((3, 1, 8, 3), 7)):
        x = tf.constant(_images(*images))
        expected = models.resize_bilinear(x, size, 2 * size)
        np.testing.assert_array_equal(resize(x, size), expected)
    assert resize.experimental_get_tracing_count() == 1


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32", "float64"])
def test_the_same_size_changes_nothing_in_any_type(dtype):
    x = tf.cast(_images(2, 20, 28, 3), dtype)
    resized = models.resize_bilinear(x, 20, 28)
    assert resized.dtype == dtype
    np.testing.assert_array_equal(resized, x)


def test_float64_is_not_computed_in_float32():
    x = 1 + 1e-12 * _images(1, 4, 4, 1)
    resized = models.resize_bilinear(tf.constant(x), 7, 7).numpy()
    np.testing.assert_allclose(resized[:, ::2, ::2], x, rtol=0, atol=1e-15)
    assert np.ptp(resized) > 1e-12


def test_gradients_are_those_of_a_linear_map():
    x = tf.constant(_images(1, 3, 4, 2))
    direction = tf.constant(_images(1, 5, 2, 2))
    with tf.GradientTape() as tape:
        tape.watch(x)
        value = tf.reduce_sum(models.resize_bilinear(x, 5, 2) * direction)
    gradient = tape.gradient(value, x)
    # A linear function is its gradient times its argument.
    np.testing.assert_allclose(tf.reduce_sum(gradient * x), value, rtol=1e-12)
