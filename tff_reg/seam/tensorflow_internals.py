"""All uses of inner parts of TensorFlow 2.14 to 2.22, which have no public API."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf
from tensorflow.python.eager import (
    cancellation as cancellation,
    context as eager_context,
    execute as execute,
)
from tensorflow.python.framework import ops
from tensorflow.python.ops import control_flow_util

__all__ = [
    "call_flat",
    "cancellation",
    "eager_context",
    "elementwise_equality",
    "execute",
    "function_graph",
    "gradient_registry",
    "inference_function",
    "is_for_xla",
]


def inference_function(function: Any) -> Any:
    """Returns TensorFlow's runtime function of a concrete function."""
    return function._inference_function


def call_flat(function: Any, inputs: list[tf.Tensor]) -> Any:
    """Calls a concrete function that captures nothing; its inputs are not checked."""
    called = function._inference_function
    return getattr(called, "call_flat", called)(*inputs)


def gradient_registry() -> dict[str, dict[str, Any]]:
    """Returns the gradient functions by operation, each as {"type": function}."""
    return ops.gradient_registry._registry


def is_for_xla() -> bool:
    """Returns whether XLA will compile the function that is being traced."""
    return control_flow_util.GraphOrParentsInXlaContext(ops.get_default_graph())


def function_graph(operation: tf.Operation, attribute: str) -> Any:
    """Returns the graph of a function that an operation calls."""
    name = operation.get_attr(attribute).name
    return operation.graph._get_function(name).graph


# --- equality of tensors --------------------------------------------------------


_equality = threading.local()


@contextlib.contextmanager
def elementwise_equality(also_in_plain_graphs: bool = False) -> Iterator[None]:
    """Makes `==` and `!=` of tensors elementwise in functions that this thread traces.

    TFF traces in a plain graph, where they compare objects, also in a `tf.function`. In
    the plain graph itself TensorFlow relies on that when it makes variables.
    """
    before = vars(_equality).copy()
    vars(_equality).update(is_asked=True, also_in_plain_graphs=also_in_plain_graphs)
    try:
        yield
    finally:
        vars(_equality).clear()
        vars(_equality).update(before)


def _elementwise(by_identity: Callable[..., Any], operation: Callable[..., Any]) -> Any:
    def compare(self: Any, other: Any) -> Any:
        is_asked = getattr(_equality, "is_asked", False)
        if other is None or not is_asked or tf.executing_eagerly():
            return by_identity(self, other)
        is_plain = not tf.compat.v1.get_default_graph().building_function
        if is_plain and not _equality.also_in_plain_graphs:
            return by_identity(self, other)
        other = tf.convert_to_tensor(other, self.dtype)
        # As outside of graphs, shapes that do not fit are unequal.
        return operation(x=self, y=other, incompatible_shape_error=False)

    return compare


for _kind in (tf.Tensor, tf.Variable):
    _hash = _kind.__hash__
    _kind.__eq__ = _elementwise(_kind.__eq__, tf.raw_ops.Equal)
    _kind.__ne__ = _elementwise(_kind.__ne__, tf.raw_ops.NotEqual)
    _kind.__hash__ = _hash
