"""Bilinear resizing of images, in any floating-point type and to any size.

TensorFlow's own function always returns float32 and does not align corners.
"""

from __future__ import annotations

from typing import Union

import tensorflow as tf


def resize_bilinear(
    x: tf.Tensor, height: Union[int, tf.Tensor], width: Union[int, tf.Tensor]
) -> tf.Tensor:
    """Resizes images with fixed centres of the corner pixels (align_corners).

    >>> import numpy as np
    >>> from tff_reg import models
    >>> models.resize_bilinear(np.array([[[[0.0], [2.0]]]]), 1, 3).numpy().ravel()
    array([0., 1., 2.])

    Equals PyTorch's `interpolate(mode="bilinear", align_corners=True)`: among n pixels,
    new pixel i of m lies at position i (n - 1) / (m - 1), a single new pixel at 0. An
    axis that keeps its size keeps its values to the bit.

    Args:
      x: float [batch, h, w, channels]; any of the sizes may be known only when the
        graph runs.
      height: The new h, at least 1: a Python int or an int32 scalar.
      width: The new w, at least 1: a Python int or an int32 scalar.

    Returns:
      A tensor [batch, height, width, channels], computed in the type of `x`.
    """
    x = tf.convert_to_tensor(x)
    rows = _interpolation(x, 1, height)
    columns = _interpolation(x, 2, width)
    x = tf.einsum("ph,bhwc->bpwc", rows, x)
    return tf.einsum("qw,bpwc->bpqc", columns, x)


def _interpolation(x, axis: int, new_size):
    """Returns a matrix [new size, size] of `x`'s type that resizes one axis of `x`."""
    size = tf.shape(x)[axis] if x.shape[axis] is None else x.shape[axis]
    # Integer products, so that an axis that keeps its size gets whole positions.
    numerators = tf.range(new_size) * (size - 1)
    positions = tf.cast(numerators, tf.float64) / tf.cast(
        tf.maximum(new_size - 1, 1), tf.float64
    )
    distances = tf.abs(positions[:, tf.newaxis] - tf.range(size, dtype=tf.float64))
    return tf.cast(tf.maximum(1 - distances, 0), x.dtype)
