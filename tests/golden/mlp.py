"""The small networks of the I, J and M files; parameters as one PyTorch vector."""

from __future__ import annotations

import functools

import numpy as np
import tensorflow as tf

from tff_reg import models


def model_fn(sizes, dtype, has_bias=True):
    """Gives a function that makes the model."""
    features, *hidden, classes = sizes
    dense = functools.partial(tf.keras.layers.Dense, dtype=dtype, use_bias=has_bias)

    def make():
        blocks = [dense(units, activation="relu") for units in hidden]
        blocks = blocks or [tf.keras.layers.Flatten(dtype=dtype)]
        network = models.from_keras_blocks(
            [*blocks, dense(classes)], input_shape=[features]
        )
        return models.LearningModel(network)

    return make


def unflatten(flat, sizes, dtype, has_bias=True):
    """PyTorch's flat parameters as our weights."""
    result, start = [], 0
    for inputs, units in zip(sizes, sizes[1:]):
        for shape in ([units, inputs], [units])[: 1 + has_bias]:
            size = int(np.prod(shape))
            result.append(flat[start : start + size].reshape(shape).T.astype(dtype))
            start += size
    return result


def flatten(weights):
    """Our weights as PyTorch's flat parameters."""
    return np.concatenate([np.asarray(w).T.ravel() for w in weights])
