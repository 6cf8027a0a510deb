"""Pooling as in PyTorch: equal padding on both ends, and no windows beyond it."""

from __future__ import annotations

from tff_reg.lazy import np, tf


def max_pool(x: tf.Tensor, size: int, stride: int, *, padding: int = 0) -> tf.Tensor:
    """Returns the largest value of each window; padding is never the largest."""
    x = pad(x, padding, tf.as_dtype(x.dtype).min)
    return tf.nn.max_pool2d(x, ksize=size, strides=stride, padding="VALID")


def average_pool(
    x: tf.Tensor, size: int, stride: int, *, padding: int = 0
) -> tf.Tensor:
    """Returns the mean of each window; zeros of the padding count. See `max_pool`."""
    x = pad(x, padding)
    return tf.nn.avg_pool2d(x, ksize=size, strides=stride, padding="VALID")


def adaptive_average_pool(x: tf.Tensor, height: int, width: int) -> tf.Tensor:
    """Averages over nearly equal windows, as PyTorch's adaptive pooling does."""
    _, rows, columns, _ = x.shape
    if rows == height and columns == width:
        return x
    if rows % height == 0 and columns % width == 0:
        window = [1, rows // height, columns // width, 1]
        return tf.nn.avg_pool2d(x, ksize=window, strides=window, padding="VALID")
    row_means = tf.constant(_window_means(rows, height), x.dtype)
    column_means = tf.constant(_window_means(columns, width), x.dtype)
    return tf.einsum("hr,brcf,wc->bhwf", row_means, x, column_means)


def _window_means(size: int, result: int) -> np.ndarray:
    """Returns a matrix [result, size] whose rows average the adaptive windows."""
    means = np.zeros([result, size])
    for i in range(result):
        start, end = i * size // result, -(-(i + 1) * size // result)
        means[i, start:end] = 1.0 / (end - start)
    return means


def pad(x: tf.Tensor, padding: int, value: float = 0) -> tf.Tensor:
    """Adds rows and columns of one value on every side."""
    if not padding:
        return x
    around = [padding, padding]
    return tf.pad(x, [[0, 0], around, around, [0, 0]], constant_values=value)
