import numpy as np
import pytest
import tensorflow as tf

from tff_reg.models import pooling


def _images(rows, columns):
    return np.random.default_rng(0).normal(size=(2, rows, columns, 3))


def _windows(x, size, stride, padding, fill):
    around = (padding, padding)
    x = np.pad(x, [(0, 0), around, around, (0, 0)], constant_values=fill)
    rows, columns = ((side - size) // stride + 1 for side in x.shape[1:3])
    cut = [
        [
            x[:, i * stride : i * stride + size, j * stride : j * stride + size]
            for j in range(columns)
        ]
        for i in range(rows)
    ]
    return np.array(cut).transpose(2, 0, 1, 3, 4, 5)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("rows, columns", [(8, 8), (7, 6), (3, 5)])
@pytest.mark.parametrize("size, stride, padding", [(2, 2, 0), (3, 2, 1)])
def test_pools_as_pytorch_does(size, stride, padding, rows, columns, dtype):
    # All below zero, so that zeros added around would show.
    x = (_images(rows, columns) - 10).astype(dtype)
    largest = pooling.max_pool(tf.constant(x), size, stride, padding=padding)
    expected = _windows(x, size, stride, padding, -np.inf).max((3, 4))
    np.testing.assert_array_equal(largest, expected)
    mean = pooling.average_pool(tf.constant(x), size, stride, padding=padding)
    expected = _windows(x, size, stride, padding, 0).mean((3, 4))
    np.testing.assert_allclose(mean, expected, rtol=1e-5)
    assert mean.dtype == largest.dtype == dtype


@pytest.mark.parametrize("rows, columns", [(8, 8), (7, 5), (4, 3), (2, 1), (1, 9)])
def test_adaptive_pooling_averages_or_repeats(rows, columns):
    x = _images(rows, columns)
    pooled = pooling.adaptive_average_pool(tf.constant(x), 4, 3)
    assert pooled.shape == [2, 4, 3, 3]
    for i in range(4):
        for j in range(3):
            window = x[
                :,
                i * rows // 4 : -(-(i + 1) * rows // 4),
                j * columns // 3 : -(-(j + 1) * columns // 3),
            ]
            np.testing.assert_allclose(
                pooled[:, i, j], window.mean((1, 2)), rtol=1e-9, atol=1e-12
            )
    assert (rows, columns) != (4, 3) or np.array_equal(pooled, x)
