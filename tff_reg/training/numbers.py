"""Checks for finite numbers, selection of tensors, and clipping by norm."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

# Added to the norm in the clipping factor, as PyTorch's clip_grad_norm_ does.
_CLIP_EPSILON = 1e-6


def clip_by_global_norm(gradients: Sequence[tf.Tensor], max_norm: float):
    """Scales gradients down so that their joint norm is at most `max_norm`."""
    norm = tf.sqrt(tf.add_n([tf.reduce_sum(tf.square(g)) for g in gradients]))
    factor = tf.minimum(max_norm / (norm + _CLIP_EPSILON), 1.0)
    return [g * factor for g in gradients], norm


def floats(values: Sequence[Any]) -> list[Any]:
    """Returns the floating-point values of variables, tensors or their types.

    Other values, such as counters, are not averaged: every client receives the server's
    value in every round, as in TFF's own processes.
    """
    return [v for v in values if tf.as_dtype(v.dtype).is_floating]


def all_finite(structure: Any) -> tf.Tensor:
    """Returns whether all floats of a structure are finite, a bool scalar."""
    tensors = floats(tf.nest.flatten(structure))
    if not tensors:
        return tf.constant(True)
    # Shared constants of axes; reductions without them would make hundreds.
    axes = {rank: tf.range(rank) for rank in {u.shape.rank for u in tensors}}
    return tf.reduce_all(
        [tf.reduce_all(tf.math.is_finite(u), axes[u.shape.rank]) for u in tensors]
    )


def where(condition: tf.Tensor, new: Any, old: Any) -> Any:
    """Returns the structure `new` of tensors if the bool scalar is true, else `old`."""

    def one(new: tf.Tensor, old: tf.Tensor) -> tf.Tensor:
        return tf.where(condition, new, old)

    return tf.nest.map_structure(one, new, old)


def zero_unless(condition: tf.Tensor, structure: Any) -> Any:
    """Returns a structure of tensors if the bool scalar is true, else zeros."""

    def one(value: tf.Tensor) -> tf.Tensor:
        return tf.where(condition, value, tf.zeros([], value.dtype))

    return tf.nest.map_structure(one, structure)
