"""Data sets of one element, which holds all of a client's examples."""

from __future__ import annotations

import collections
import functools
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf


def whole_client(
    key: np.ndarray, told: Mapping[str, float], examples: Any
) -> tf.data.Dataset:
    """Returns a data set of the examples with a key and further numbers."""
    numbers = {name: np.float64(value) for name, value in told.items()}
    element = collections.OrderedDict(examples, key=key, **numbers)
    tensors = tf.nest.map_structure(tf.convert_to_tensor, element)
    flat = tf.nest.flatten(tensors)
    # A compiled call: `Dataset.from_tensors` takes most of a small client's time.
    shapes = [(None, *t.shape[1:]) if t.shape.rank else () for t in flat]
    make = _compiled(*zip(shapes, (t.dtype for t in flat)))
    spec = tf.nest.map_structure(tf.TensorSpec.from_tensor, tensors)
    return tf.data.experimental.from_variant(make(*flat), spec)


@functools.lru_cache(maxsize=8)
def _compiled(*kinds: tuple[Any, Any]) -> Any:
    """Returns the function from tensors to the variant of a data set of one element."""
    specs = [tf.TensorSpec(shape, dtype) for shape, dtype in kinds]

    def make(*tensors: Any) -> Any:
        shapes = [each.shape for each in specs]
        return tf.raw_ops.TensorDataset(components=tensors, output_shapes=shapes)

    with tf.init_scope():
        return tf.function(make, autograph=False).get_concrete_function(*specs)
