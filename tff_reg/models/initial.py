"""Initial values of variables: functions of a shape and a data type.

The draws are stateless: the same seed gives the same values in graphs and eagerly. They
equal the values of Keras 2's initialisers of the same name and seed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

Initializer = Callable[[Sequence[int], tf.DType], tf.Tensor]


def uniform(limit: float, seed: int) -> Initializer:
    """U(-limit, limit)."""
    return lambda shape, dtype: tf.random.stateless_uniform(
        shape, [seed, 0], -limit, limit, dtype
    )


def uniform_fan_in(seed: int) -> Initializer:
    """U(-1/sqrt(fan_in), 1/sqrt(fan_in)), PyTorch's default for weights."""

    def draw(shape: Sequence[int], dtype: tf.DType) -> tf.Tensor:
        # Rounded as in Keras.
        limit = math.sqrt(3 * (1 / 3 / math.prod(shape[:-1])))
        return uniform(limit, seed)(shape, dtype)

    return draw


def normal_fan_out(seed: int) -> Initializer:
    """Kaiming normal over the fan-out, N(0, 2 / fan_out), as torchvision's ResNets."""

    def draw(shape: Sequence[int], dtype: tf.DType) -> tf.Tensor:
        fan_out = math.prod(shape[:-2]) * shape[-1]
        deviation = math.sqrt(2 / fan_out)
        return tf.random.stateless_normal(shape, [seed, 0], 0.0, deviation, dtype)

    return draw


def orthogonal(seed: int) -> Initializer:
    """Orthonormal columns; orthonormal rows if there are fewer rows than columns."""

    def draw(shape: Sequence[int], dtype: tf.DType) -> tf.Tensor:
        rows, columns = shape
        tall = max(rows, columns), min(rows, columns)
        q, r = tf.linalg.qr(tf.random.stateless_normal(tall, [seed, 0], dtype=dtype))
        q *= tf.sign(tf.linalg.diag_part(r))
        return tf.linalg.matrix_transpose(q) if rows < columns else q

    return draw


def constant(value: Any) -> Initializer:
    """The given array, or the given number for all entries."""
    return lambda shape, dtype: tf.constant(value, dtype, shape)
