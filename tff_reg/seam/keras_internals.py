"""All uses of inner parts of Keras 3 (3.15) and of Keras 2 (2.14, tf_keras to 2.21)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

# Attributes of a Keras 2 layer: its generator of random numbers, its losses.
GENERATOR = "_random_generator"
LOSSES = "_losses"
# What `keras.activations` calls in Keras 2 for a relu's options.
CALLED_FUNCTIONS = ("leaky_relu", "relu6")


def layers_of(model: Any) -> list[Any]:
    """Returns a model and all layers inside it, at any depth, each once."""
    found = model._flatten_layers(include_self=True, recursive=True)
    return list({id(layer): layer for layer in found}.values())


def seed_generators(layer: Any) -> Any:
    """Returns a Keras 3 layer's own random generators."""
    return getattr(layer, "_seed_generators", ())


def modules_of(model: Any) -> Iterator[Any]:
    """Yields a Keras 2 model and the `tf.Module`s inside it, layers among them."""
    return model._flatten_modules(include_self=True, recursive=True)


def own_weights(layer: Any) -> Any:
    """Returns a layer's own trainable weights, without those of layers inside."""
    return getattr(layer, "_trainable_variables", ())


def nodes_of(model: Any) -> dict[int, Any]:
    """Returns the nodes of a functional model's graph by the `id` of their layer."""
    graph = getattr(model, "_functional", None) or model
    nodes = [node for each in graph._nodes_by_depth.values() for node in each]
    return {id(getattr(n, "operation", None) or n.layer): n for n in nodes}


def functions_of(layer: Any) -> Iterator[tuple[Any, str]]:
    """Yields the function calls in a functional model's graph, with function names.

    They are operations in Keras 3, layers in Keras 2.
    """
    for node in nodes_of(layer).values() if hasattr(layer, "_nodes_by_depth") else ():
        called = getattr(node, "operation", None) or node.layer
        if not hasattr(called, "weights"):
            yield called, type(called).__name__
        elif type(called).__name__ == "TFOpLambda":
            yield called, called.function.__name__.removesuffix("_v2")


def softmax_of(layer: Any) -> Any:
    """Returns the softmax layer of an attention layer's weights, or None."""
    return getattr(layer, "_softmax", None)


def is_internal(name: Any) -> bool:
    """Whether an attribute is TensorFlow's own, such as its list of tracked objects."""
    return isinstance(name, str) and name.startswith("_self_")


def untracked(value: Any) -> Any:
    """Returns the plain container inside one of TensorFlow's tracking wrappers."""
    if isinstance(value, list):
        return getattr(value, "_storage", value)
    is_other = isinstance(value, (dict, tuple))
    return getattr(value, "__wrapped__", value) if is_other else value
