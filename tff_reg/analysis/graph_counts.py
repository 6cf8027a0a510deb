"""Counts of multiply-adds in a TensorFlow graph."""

from __future__ import annotations

import collections
import math
from collections.abc import Sequence, Set
from typing import Any, Optional

from tff_reg import lazy
from tff_reg.lazy import tf

internals = lazy.module("tff_reg.seam.tensorflow_internals")

_TAPE = "gradient_tape/"
_CALLS = ("PartitionedCall", "StatefulPartitionedCall")
_LAYERS, _REST, _BACKWARD = "layers", "rest", "backward"


class UncountableError(ValueError):
    """Raised if an operation's multiply-adds are not known; names it."""


def operations_behind(tensors) -> dict[Any, set]:
    """Returns the operations that tensors depend on, each with its used outputs."""
    outputs, pending = {}, list(tensors)
    while pending:
        tensor = pending.pop()
        if tensor.op not in outputs:
            outputs[tensor.op] = set()
            pending.extend(tensor.op.inputs)
        outputs[tensor.op].add(tensor.value_index)
    return outputs


def multiply_adds(tensors, frozen: Sequence[Any] = ()) -> dict[str, Any]:
    """Counts the multiply-adds that tensors of a graph depend on, by kind.

    `frozen` are tensors of the graph that are weights, too, beside its variables.

    >>> import tensorflow as tf
    >>> with tf.Graph().as_default():
    ...     product = tf.linalg.matmul(tf.zeros([2, 3]), tf.zeros([3, 5]))
    ...     multiply_adds([product])
    {'layers': 0, 'rest': 30, 'backward': 0}
    """
    return _count(tensors, False, {id(tensor) for tensor in frozen})


def _count(tensors, is_backward: bool, weights: Set[int]) -> dict[str, Any]:
    """Counts; `weights` are the `id`s of a function's parameters that are weights."""
    totals = collections.Counter({_LAYERS: 0, _REST: 0, _BACKWARD: 0})
    for op, indices in operations_behind(tensors).items():
        # Gradient tapes add this scope to the names of their operations.
        in_backward = is_backward or _TAPE in op.name
        if op.type in _CALLS:  # Its gradient is another call, outside of the scope.
            in_backward |= any(_TAPE in tensor.op.name for tensor in op.inputs)

        def inside(attribute: str, arguments, op=op, indices=indices, back=in_backward):
            graph = internals.function_graph(op, attribute)
            pairs = zip(graph.inputs, arguments)
            known = {id(p) for p, a in pairs if _is_weight(a, weights)}
            return _count([graph.outputs[i] for i in indices], back, known)

        if op.type in ("If", "StatelessIf"):
            counts = [
                inside(branch, op.inputs[1:])
                for branch in ("then_branch", "else_branch")
            ]
            for kind in totals:
                kept, left_out = (tf.constant(c[kind], tf.float64) for c in counts)
                if any(c[kind] for c in counts):
                    totals[kind] += tf.where(op.inputs[0], kept, left_out)
        elif op.type in _CALLS:
            totals.update(inside("f", op.inputs))
        elif op.type in ("While", "StatelessWhile"):
            if any(inside("body", op.inputs).values()):
                raise UncountableError(
                    f"The multiply-adds of {op.name!r}, a loop (of a recurrent layer,"
                    " for example), cannot be counted."
                )
        elif op.type in _COUNTS:
            is_layer = any(_is_weight(tensor, weights) for tensor in op.inputs)
            kind = _LAYERS if is_layer else _REST
            totals[_BACKWARD if in_backward else kind] += _COUNTS[op.type](op)
        elif op.type.startswith(_UNCOUNTED):
            raise UncountableError(
                f"The multiply-adds of {op.name!r} ({op.type}) cannot be counted."
            )
    return dict(totals)


def _is_weight(tensor, weights: Set[int]) -> bool:
    """Whether a tensor is a variable's value, or a view of that value."""
    while tensor.op.type in _VIEWS:
        tensor = tensor.op.inputs[0]
    return tensor.op.type == "ReadVariableOp" or id(tensor) in weights


def size(tensor, start: int = 0, end: Optional[int] = None):
    """Returns the product of the axes' sizes, as a Python int if they are known."""
    shape = tensor.shape[start:end]
    if shape.is_fully_defined():
        return math.prod(shape)
    return tf.reduce_prod(tf.cast(tf.shape(tensor)[start:end], tf.float64))


def _product(a, b):
    if tf.is_tensor(a) or tf.is_tensor(b):
        return tf.cast(a, tf.float64) * tf.cast(b, tf.float64)
    return a * b


def _matrix_product(op):
    is_turned = op.get_attr("transpose_a" if op.type == "MatMul" else "adj_x")
    axis = op.inputs[0].shape.rank - (2 if is_turned else 1)
    return _product(size(op.outputs[0]), size(op.inputs[0], axis, axis + 1))


def _einsum(op):
    """Counts an einsum: the product of the sizes of all axes in the equation."""
    terms = op.get_attr("equation").decode().split("->")[0].split(",")
    sizes = {}
    for term, tensor in zip(terms, op.inputs):
        for axis, label in enumerate(term):
            sizes[label] = size(tensor, axis, axis + 1)
    total = 1
    for each in sizes.values():
        total = _product(total, each)
    return total


# Multiply-adds by operation. A convolution needs one product per output entry and
# kernel entry of an output channel, forward and in both parts of the gradient; a
# depthwise convolution one per output entry and kernel position. A sum of squares
# needs one product per entry.
_COUNTS = {
    "Conv2D": lambda op: _product(size(op.outputs[0]), size(op.inputs[1], 0, 3)),
    "Conv2DBackpropInput": lambda op: _product(
        size(op.inputs[2]), size(op.inputs[1], 0, 3)
    ),
    "Conv2DBackpropFilter": lambda op: _product(
        size(op.inputs[2]), size(op.outputs[0], 0, 3)
    ),
    "Conv3D": lambda op: _product(size(op.outputs[0]), size(op.inputs[1], 0, 4)),
    "Conv3DBackpropInputV2": lambda op: _product(
        size(op.inputs[2]), size(op.inputs[1], 0, 4)
    ),
    "Conv3DBackpropFilterV2": lambda op: _product(
        size(op.inputs[2]), size(op.outputs[0], 0, 4)
    ),
    "DepthwiseConv2dNative": lambda op: _product(
        size(op.outputs[0]), size(op.inputs[1], 0, 2)
    ),
    "DepthwiseConv2dNativeBackpropInput": lambda op: _product(
        size(op.inputs[2]), size(op.inputs[1], 0, 2)
    ),
    "DepthwiseConv2dNativeBackpropFilter": lambda op: _product(
        size(op.inputs[2]), size(op.outputs[0], 0, 2)
    ),
    "MatMul": _matrix_product,
    "BatchMatMulV2": _matrix_product,
    "Einsum": _einsum,
    "L2Loss": lambda op: size(op.inputs[0]),
}
# Operations that may stand between a variable and the product that uses it.
_VIEWS = (
    *("Identity", "StridedSlice", "Slice", "Reshape", "Transpose", "Cast"),
    *("ExpandDims", "Squeeze"),
)
# Other operations of many multiply-adds, by the beginning of their types.
_UNCOUNTED = ("Conv", "SparseMatMul", "SparseTensorDenseMatMul", "CudnnRNN")
