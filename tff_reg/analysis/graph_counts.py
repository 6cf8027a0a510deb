"""Counts of multiply-adds in a TensorFlow graph."""

from __future__ import annotations

import collections
import math
from typing import Any, Optional

from tff_reg.lazy import tf

_LAYERS, _REST, _BACKWARD = "layers", "rest", "backward"


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


def multiply_adds(tensors, is_backward: bool = False) -> dict[str, Any]:
    """Counts the multiply-adds that tensors of a graph depend on, by kind.

    >>> import tensorflow as tf
    >>> with tf.Graph().as_default():
    ...     product = tf.linalg.matmul(tf.zeros([2, 3]), tf.zeros([3, 5]))
    ...     multiply_adds([product])
    {'layers': 0, 'rest': 30, 'backward': 0}
    """
    totals = collections.Counter({_LAYERS: 0, _REST: 0, _BACKWARD: 0})
    for op, indices in operations_behind(tensors).items():
        # Gradient tapes add this scope to the names of their operations.
        in_backward = is_backward or "gradient_tape/" in op.name
        if op.type in ("If", "StatelessIf"):
            counts = []
            for branch in ("then_branch", "else_branch"):
                # TensorFlow has no public way from a branch's name to its graph.
                function = op.graph._get_function(op.get_attr(branch).name)
                counts.append(
                    multiply_adds(
                        [function.graph.outputs[i] for i in indices], in_backward
                    )
                )
            for kind in totals:
                kept, left_out = (tf.constant(c[kind], tf.float64) for c in counts)
                if any(c[kind] for c in counts):
                    totals[kind] += tf.where(op.inputs[0], kept, left_out)
        elif op.type in _COUNTS:
            kind = _LAYERS if any(map(_is_weight, op.inputs)) else _REST
            totals[_BACKWARD if in_backward else kind] += _COUNTS[op.type](op)
    return dict(totals)


def _is_weight(tensor) -> bool:
    """Whether a tensor is a variable's value, or a view of that value."""
    op = tensor.op
    while op.type in _VIEWS:
        op = op.inputs[0].op
    return op.type == "ReadVariableOp"


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
_VIEWS = ("Identity", "StridedSlice", "Slice", "Reshape", "Transpose", "Cast")
