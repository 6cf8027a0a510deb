"""Copies and digests of a user's Keras model."""

from __future__ import annotations

import hashlib
import re
import warnings
from collections.abc import Callable, Mapping
from typing import Any, Optional

import numpy as np
import tensorflow as tf

from tff_reg.data import digests
from tff_reg.models import keras_calls, keras_parts
from tff_reg.seam import keras_internals


def digest(model: Any) -> str:
    """Returns a digest of a Keras model's architecture, own code and loss."""
    parts = [
        (type(each), digests.of_config(each), digests.values_of(each))
        for each in keras_internals.layers_of(model)
    ]
    text = digests.of_config(model) + digests.of_value(parts)
    if getattr(model, "compiled", True) and getattr(model, "loss", None) is not None:
        config = getattr(model, "get_compile_config", dict)() or {}
        text += digests.of_value((model.loss, config.get("loss_weights")))
    return hashlib.sha256(text.encode()).hexdigest()[:10]


def _finalize(copy: Any) -> None:
    """Makes layers such as `Normalization` use the weights that were set."""
    for layer in keras_internals.layers_of(copy):
        if layer is not copy and hasattr(layer, "finalize_state"):
            layer.finalize_state()


def _check_same(model: Any, copy: Any) -> None:
    """Checks that a copy and its model give equal outputs for random inputs."""
    random = np.random.default_rng(0)

    def drawn(each: Any) -> Any:
        values = random.uniform(0, 2, [3, *(size or 5 for size in each.shape[1:])])
        return values.astype(getattr(each.dtype, "name", each.dtype))

    given = tf.nest.map_structure(drawn, keras_parts.input_of(model))
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


def kind_of(layer: Any) -> str:
    """Returns the name, but for its number, that Keras gives a layer without one."""
    name = re.sub("(.)([A-Z][a-z]+)", r"\1_\2", type(layer).__name__)
    return re.sub("([a-z])([A-Z])", r"\1_\2", name).lower()


def loaded(plan: Any, path: str) -> Optional[dict[str, Any]]:
    """Returns a file's weights by a plan's names as Keras reads it, or None."""
    if not path.endswith((".keras", ".weights.h5")):
        return None  # Others have names, and an order.
    model = plan.model
    try:
        copy = keras_calls.keras_of(model).models.clone_model(model)
    except (NotImplementedError, TypeError, ValueError):
        copy = model  # Sub-classed, for example.
    with keras_parts.unchanged(model):
        try:
            copy.load_weights(path)
        except (AttributeError, LookupError, OSError, TypeError, ValueError):
            return None
        values = dict(zip(map(id, model.weights), map(np.array, copy.weights)))
    found = [values[id(variable)] for variable in plan.variables]
    if [each.shape for each in found] != [each.shape for each in plan.values]:
        return None
    return dict(zip(plan.names, found))


def described(model: Any, names: Mapping[int, str]) -> tuple[Any, ...]:
    """Returns what `weight_files.fit` asks of a model, by its variables' names.

    The shape before a flattening is None if it is not known or of no image: PyTorch may
    order it otherwise.
    """
    shapes = {names[id(v)]: tuple(v.shape) for v in model.weights if id(v) in names}
    layers = keras_internals.layers_of(model)
    flattened: dict[str, Any] = {}
    # By a tensor: the shape that was flattened to it, [1] for none and [] if it is not
    # known; and whether a layer without weights has moved its axes.
    at_inputs = tf.nest.flatten(getattr(model, "inputs", None) or [])
    origins = {id(each): [1] for each in at_inputs}
    moved: set[int] = set()
    # A sub-classed model shows no tensors: there it is that of the layers in order.
    shape = [1]
    for layer in layers:
        kernel: Any = getattr(layer, "kernel", None)
        kind, own = type(layer).__name__, [v for v in layer.weights if id(v) in names]
        is_dense = id(kernel) in names and len(kernel.shape) == 2
        try:
            given, made = map(tf.nest.flatten, (layer.input, layer.output))
        except (AttributeError, ValueError):
            given, made = [], []
            shape = [] if kind == "Flatten" else shape
        else:
            shape = _origin(given, origins)
        if own and len(shape) != 1 and (is_dense or not hasattr(layer, "kernel")):
            known = shape if len(shape) == 3 else None
            behind = [kernel] if is_dense else own
            flattened |= {names[id(v)]: known for v in behind}
        is_moved = kind in ("Reshape", "Permute")
        is_moved |= not own and any(id(each) in moved for each in given)
        if is_moved:
            moved.update(map(id, made))
        if is_dense:
            shape = [1]
        elif is_moved:
            shape = []
        elif kind == "Flatten" and given:
            shape = [*given[0].shape[1:]]
        origins.update((id(each), shape) for each in made)
    return shapes, flattened, {kind_of(layer) for layer in layers}


def _origin(given: list[Any], origins: Mapping[int, list[Any]]) -> list[Any]:
    """Returns the shape whose flattening a layer takes; as for `described`."""
    if any(len(each.shape) != 2 for each in given):
        return [1]
    found = [origins.get(id(each), []) for each in given]
    if len(found) == 1:
        return found[0]
    return [1] if all(len(each) == 1 for each in found) else []
