"""Weights from a PyTorch `state_dict` to a model, and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tff_reg.models import (
    keras_calls,
    keras_copies,
    learning_model,
    weight_files,
)


def load_torch_state(model: Any, state_dict: Mapping[str, Any]) -> weight_files.Fit:
    """Sets a model's weights to those of a PyTorch network.

        print(models.load_torch_state(keras_model, torch_model.state_dict()))

    A weight is found by its name, or by the order of layers, kind by kind; see
    "Initial weights" in the documentation of models. Kernels are transposed ([out, in,
    height, width] to [height, width, in, out]; depthwise and dense ones, too), and what
    is behind a `Flatten` is reordered, as PyTorch flattens channels first. What does
    not fit keeps its values.

    Args:
      model: A Keras model, or a network of this package (`model_fn()`); changed in
        place.
      state_dict: Tensors or arrays by name.

    Returns:
      What fitted, what did not; `print` shows it as a line.

    Raises:
      TypeError: If these are no such model and tensors.
      ValueError: If no kernel fits.
    """
    variables = named(model)
    found = weight_files.fit(_arrays(state_dict), *described(model))
    for name, value in found.values.items():
        variables[name].assign(value)
    return found


def torch_state(model: Any, like: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a model's weights as the `state_dict` of a PyTorch network.

        torch_model.load_state_dict(
            models.torch_state(keras_model, torch_model.state_dict()))

    It is the inverse of `load_torch_state`.

    Args:
      model: As for `load_torch_state`.
      like: A `state_dict` of the PyTorch network, for names, shapes and types.

    Returns:
      Values of the kind of `like` (tensors or arrays), by its names and in its order.
      `num_batches_tracked` is as there.

    Raises:
      TypeError: As for `load_torch_state`.
      ValueError: If a weight has no place there, or gets no value.
    """
    variables, arrays = named(model), _arrays(like)
    # Where the fit puts a number of the state, that number is to come from.
    places = {n: np.arange(x.size).reshape(x.shape) for n, x in arrays.items()}
    found = weight_files.fit(places, *described(model))
    if wrong := [*found.missing, *found.unused]:
        raise ValueError(
            f"the model and the state_dict have other layers: {', '.join(wrong[:6])}"
            f"{' ...' * (len(wrong) > 6)} are only in one of them."
        )
    made = dict(like)
    for own, theirs in found.pairs.items():
        flat = np.empty(arrays[theirs].size, arrays[theirs].dtype)
        flat[found.values[own].ravel()] = np.ravel(variables[own])
        value, old = flat.reshape(arrays[theirs].shape), like[theirs]
        made[theirs] = old.new_tensor(value) if hasattr(old, "new_tensor") else value
    return made


def named(model: Any) -> dict[str, Any]:
    """Returns a model's variables by name, in order."""
    network = getattr(model, "network", None)
    if hasattr(network, "plan") or getattr(network, "frozen", None):
        raise TypeError(
            "the weights of a model of from_keras, and frozen ones, are copies: give"
            " the Keras model itself, or a model_fn() that freezes nothing."
        )
    if isinstance(model, learning_model.LearningModel):
        variables = [*model.trainable_variables, *model.non_trainable_variables]
    elif keras_calls.is_keras_3(model) or keras_calls.is_keras_2(model):
        variables = model.weights
    else:
        raise TypeError(
            f"the model is a {type(model).__name__}; give a Keras model, or what a"
            " model_fn of this package returns, model_fn()."
        )
    return dict(zip(keras_calls.names_of(variables), variables))


def described(model: Any) -> tuple[Any, ...]:
    """Returns what `weight_files.fit` asks of a model."""
    variables = named(model)
    name_of = {id(variable): name for name, variable in variables.items()}
    if not isinstance(model, learning_model.LearningModel):
        return keras_copies.described(model, name_of)
    layers = (x for block in model.network.blocks for x in block.submodules)
    flattened = {
        name_of[id(layer.kernel)]: layer.flattened
        for layer in layers
        if hasattr(layer, "flattened")
    }
    return {name: tuple(v.shape) for name, v in variables.items()}, flattened


def _arrays(state_dict: Any) -> dict[str, np.ndarray]:
    """Returns a state's arrays; tensors of PyTorch may be on any device."""
    if not isinstance(state_dict, Mapping) or any(
        not hasattr(value, "shape") for value in state_dict.values()
    ):
        raise TypeError(
            "the state_dict must be tensors or arrays by name, as"
            " torch_model.state_dict() returns them; a checkpoint often has it under"
            " 'state_dict' or 'model'."
        )
    return {
        name: np.asarray(value.detach().cpu() if hasattr(value, "detach") else value)
        for name, value in state_dict.items()
    }
