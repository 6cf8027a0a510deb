"""Copies and digests of a user's Keras model."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from tff_reg.data import digests
from tff_reg.models import keras_calls
from tff_reg.seam import keras_internals


def digest(model: Any) -> str:
    """Returns a digest of a Keras model's architecture, own code and loss."""
    parts = [
        (type(each), digests.of_config(each), digests.values_of(each))
        for each in keras_internals.layers_of(model)
    ]
    text = digests.of_config(model) + digests.of_function(parts)
    if getattr(model, "compiled", True) and getattr(model, "loss", None) is not None:
        config = getattr(model, "get_compile_config", dict)() or {}
        text += digests.of_function((model.loss, config.get("loss_weights")))
    return hashlib.sha256(text.encode()).hexdigest()[:10]


def _finalize(copy: Any) -> None:
    """Makes layers such as `Normalization` use the weights that were set."""
    for layer in keras_internals.layers_of(copy):
        if layer is not copy and hasattr(layer, "finalize_state"):
            layer.finalize_state()


def _check_same(model: Any, copy: Any) -> None:
    """Checks that a copy and its model give equal outputs for random inputs."""
    random = np.random.default_rng(0)
    inputs = [
        random.uniform(0, 2, [3, *(size or 5 for size in each.shape[1:])]).astype(
            getattr(each.dtype, "name", each.dtype)
        )
        for each in model.inputs
    ]
    given = inputs[0] if len(inputs) == 1 else inputs
    outputs = [tf.nest.flatten(each(given, training=False)) for each in (model, copy)]
    for one, other in zip(*outputs, strict=True):
        if not np.allclose(one, other, rtol=1e-4, atol=1e-5, equal_nan=True):
            raise ValueError("The copy computes something else.")


def copy_of(model: Any, build_model: Callable[[], Any]) -> Any:
    """Returns the trained model as a copy; the user's own weights do not change.

    Keras cannot copy some models, such as sub-classed ones. For these the function
    returns the user's own model, with the trained weights. `build_model` sets them in
    `model`, or returns another kind of model, which is returned.
    """
    keras = keras_calls.keras_of(model)
    before = model.get_weights()
    built = build_model()
    if built is not model:
        return built
    try:
        copy = keras.models.clone_model(built)
        copy.set_weights(built.get_weights())
        _finalize(copy)
        _check_same(built, copy)
        if (compiled := built.get_compile_config()) is not None:
            copy.compile_from_config(compiled)
    except (NotImplementedError, TypeError, ValueError):
        warnings.warn(
            f"Keras cannot copy the model {model.name!r}: it has the trained weights"
            " itself now, and another run of it would begin with them; make the model"
            " anew for one.",
            stacklevel=2,
        )
        return built
    model.set_weights(before)
    return copy
