"""The roles of a network's weights: biases, scales, and kernels with filters."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from tff_reg.lazy import tf

_BIAS = re.compile(r"(.*_)?(bias(es)?|beta)(_\d+)?")
# Of norms and of PReLU; PyTorch calls them `weight`.
_OF_NORM = re.compile(r"(.*_)?(gamma|beta|moving_mean|moving_variance)(_\d+)?")
_SCALE = re.compile(r"(.*_)?(gamma|scale|alpha)(_\d+)?")


def _is_named(weight: Any, pattern: re.Pattern[str]) -> bool:
    return bool(pattern.fullmatch(weight.name.split(":")[0].split("/")[-1].lower()))


def is_scale(weight: tf.Variable) -> bool:
    """Whether a weight multiplies single channels: the scale of a norm or of PReLU."""
    return _is_named(weight, _SCALE)


def is_of_norm(weight: tf.Variable) -> bool:
    """Whether a weight is a norm's scale, shift or running statistic."""
    return _is_named(weight, _OF_NORM)


def is_bias(weight: tf.Variable) -> bool:
    """Whether a weight is added to outputs; a vector is, unless it is a scale."""
    is_vector = weight.shape.rank < 2 and not is_scale(weight)
    return is_vector or _is_named(weight, _BIAS)


def filter_axes(network: Any, weights: Sequence[Any]) -> list[tuple[int, ...]]:
    """Returns, for each weight, the axes that span the entries of one output.

    They are all axes but the last, or those that the layer of the weight says.
    """
    own: dict[Any, tuple[int, ...]] = {}
    blocks = () if network is None else network.blocks
    for layer in (each for block in blocks for each in (block, *block.submodules)):
        if axes := getattr(layer, "filter_axes", None):
            own[layer.kernel.ref()] = axes
    of_keras: Any = network
    for layer in getattr(network, "keras_layers", ()):
        for weight, axes in _of_keras_layer(layer):
            own[of_keras.standing_for(weight).ref()] = axes
    return [own.get(w.ref(), tuple(range(w.shape.rank - 1))) for w in weights]


def _of_keras_layer(layer: Any) -> Iterator[tuple[Any, tuple[int, ...]]]:
    """Yields the weights whose outputs are not the last axis, and their filters' axes.

    As in PyTorch, the outputs of an embedding are its rows' entries.
    """
    if getattr(layer, "lora_enabled", False):  # Its kernel is frozen, and a sum.
        return
    names = " ".join(kind.__name__ for kind in type(layer).__mro__)
    kernel = getattr(layer, "depthwise_kernel", None)
    is_depthwise = kernel is not None or "DepthwiseConv" in names
    kernel = getattr(layer, "kernel", None) if kernel is None else kernel
    if "Embedding" in names and hasattr(layer, "embeddings"):
        yield layer.embeddings, (1,)
    if kernel is None:
        return
    before = tuple(range(len(kernel.shape) - 2))
    if is_depthwise:
        yield kernel, before
    elif "Transpose" in names:
        yield kernel, (*before, len(kernel.shape) - 1)
    elif "EinsumDense" in names:
        _, of_kernel, outputs = re.split(",|->", layer.equation)
        summed = (n for n, letter in enumerate(of_kernel) if letter not in outputs)
        yield kernel, tuple(summed)
        if layer.bias is not None:
            yield layer.bias, ()


def facts_of(network: Any, variables: list[Any]) -> dict[str, Any]:
    """Returns the fields of `methods.Local` that the network alone says."""
    head = [id(v) for v in network.head_variables]
    filters = filter_axes(network, variables)
    output_axes = tuple(
        tuple(n for n in range(v.shape.rank) if n not in axes)
        for v, axes in zip(variables, filters)
    )
    return dict(
        in_head=tuple(id(v) in head for v in variables), output_axes=output_axes
    )
