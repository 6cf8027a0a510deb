"""The small networks of the J and I files; their parameters as one PyTorch vector."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from tff_reg import models


def model_fn(sizes, dtype):
    """Gives a function that makes the model.

    Args:
      sizes: Features, units of the hidden layers, classes.
      dtype: Data type.

    Returns:
      A function without arguments that makes a `LearningModel`.
    """
    features, *hidden, classes = sizes

    def make():
        network = models.from_keras_blocks(
            [
                *(tf.keras.layers.Dense(h, "relu", dtype=dtype) for h in hidden),
                tf.keras.layers.Dense(classes, dtype=dtype),
            ],
            input_shape=[features],
        )
        return models.LearningModel(network)

    return make


def unflatten(flat, sizes, dtype):
    """PyTorch's flat parameters as our weights."""
    result, start = [], 0
    for inputs, units in zip(sizes, sizes[1:]):
        for shape in ([units, inputs], [units]):
            size = int(np.prod(shape))
            result.append(flat[start : start + size].reshape(shape).T.astype(dtype))
            start += size
    return result


def flatten(weights):
    """Our weights as PyTorch's flat parameters."""
    return np.concatenate([np.asarray(w).T.ravel() for w in weights])
