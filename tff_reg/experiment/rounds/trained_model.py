"""A trained model that predicts examples as they are stored, and its SavedModel."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Optional, Union

import numpy as np
import tensorflow as tf

from tff_reg.data import dtypes
from tff_reg.models import keras_copies

_BATCH_SIZE = 256


class TrainedModel(tf.Module):
    """A model with its weights and the preprocessing of its examples."""

    def __init__(
        self,
        model: Any,
        preprocess_fn: Optional[Callable] = None,
        input_spec: Any = None,
    ):
        super().__init__()
        # TensorFlow saves the variables that are an attribute.
        self.weights = [*model.trainable_variables, *model.non_trainable_variables]

        spec = model.input_spec["x"] if input_spec is None else input_spec
        if isinstance(preprocess_fn, dtypes.Standardized):
            # float32 does not hold each raw number, such as a time stamp.
            preprocess_fn = preprocess_fn.of_raw
            spec = tf.TensorSpec(spec.shape, tf.float64)

        def serve(x):
            x = dtypes.converted(preprocess_fn)(x) if preprocess_fn else x
            return model.predict_on_batch(x, training=False)

        self.input_spec = spec
        self._serve = tf.function(serve, input_signature=[spec], autograph=False)

    def predict(self, x: Any) -> Any:
        """Returns the outputs for all examples; of our own networks logits."""
        starts = range(0, len(tf.nest.flatten(x)[0]), _BATCH_SIZE)
        rows = [slice(start, start + _BATCH_SIZE) for start in starts]
        batches = [tf.nest.map_structure(lambda a, r=r: a[r], x) for r in rows]
        found = [self._serve(batch) for batch in batches]
        return tf.nest.map_structure(lambda *parts: np.concatenate(parts), *found)

    def save(self, path: Union[str, os.PathLike]) -> None:
        """Writes a SavedModel, which needs TensorFlow alone."""
        signatures = {"serving_default": self._serve.get_concrete_function()}
        tf.saved_model.save(self, os.fspath(path), signatures=signatures)


def of_process(
    process: Any,
    weights: Any,
    preprocess_fn: Optional[Callable] = None,
    input_spec: Any = None,
) -> Any:
    """Returns the Keras model that a process trains, else a `TrainedModel`.

    A Keras model comes back as a copy if it takes the examples as they are stored.
    """
    model = process.model_fn()
    weights.assign_weights_to(model)
    network: Any = getattr(model, "network", None)
    # Keras models convert data types themselves.
    takes_them = preprocess_fn is None or isinstance(preprocess_fn, dtypes.Cast)
    if hasattr(network, "keras_model") and takes_them:
        return keras_copies.copy_of(network.source, network.keras_model)
    return TrainedModel(model, preprocess_fn, input_spec)
