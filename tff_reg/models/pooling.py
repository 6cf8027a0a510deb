"""Pooling as in PyTorch: equal padding on both ends, and no windows beyond it."""

from __future__ import annotations

from tff_reg.lazy import np, tf


def max_pool(x: tf.Tensor, size: int, stride: int, *, padding: int = 0) -> tf.Tensor:
    """Returns the largest value of each window; padding is never the largest.

    Args:
      x: float [batch, height, width, channels].
      size: Height and width of the window.
      stride: Stride of both axes.
      padding: Rows and columns added on every side.

    Returns:
      float [batch, (height + 2 padding - size) // stride + 1, ..., channels].
    """
    x = pad(x, padding, tf.as_dtype(x.dtype).min)
    return tf.nn.max_pool2d(x, ksize=size, strides=stride, padding="VALID")


def average_pool(
    x: tf.Tensor, size: int, stride: int, *, padding: int = 0
) -> tf.Tensor:
    """Returns the mean of each window; zeros of the padding count. See `max_pool`."""
    x = pad(x, padding)
    return tf.nn.avg_pool2d(x, ksize=size, strides=stride, padding="VALID")


def adaptive_average_pool(x: tf.Tensor, height: int, width: int) -> tf.Tensor:
    """Averages over nearly equal windows, as PyTorch's adaptive pooling does.

    Args:
      x: float [batch, rows, columns, channels], the rows and columns known.
      height: Rows of the result. If `x` has fewer rows, rows are repeated.
      width: Columns of the result. If `x` has fewer columns, columns are repeated.

    Returns:
      float [batch, height, width, channels].
    """
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
    """Adds rows and columns of one value on every side.

    Args:
      x: float [batch, height, width, channels].
      padding: Number of rows and columns on each side.
      value: The value of their entries.

    Returns:
      float [batch, height + 2 padding, width + 2 padding, channels].
    """
    if not padding:
        return x
    around = [padding, padding]
    return tf.pad(x, [[0, 0], around, around, [0, 0]], constant_values=value)
