"""Python functions in TensorFlow computations, for debugging.

The in-process runtime calls them itself, in the thread that runs the computation:
TensorFlow would call them in a thread of its pool, and other work there may wait.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any, Optional

from tff_reg.lazy import tf

# By the call's token in its graph; the builder of the graph must keep the call.
_registered: weakref.WeakValueDictionary[str, PythonCall] = (
    weakref.WeakValueDictionary()
)
OPERATION = "EagerPyFunc"


class PythonCall:
    """A function of eager tensors that returns a list of eager tensors."""

    def __init__(self, function: Callable[..., Sequence[Any]]):
        """Keeps the function."""
        self._function = function

    def __call__(self, *tensors: Any) -> Sequence[Any]:
        return self._function(*tensors)


def add(
    function: Callable[..., Sequence[Any]], inputs: Sequence[Any], specs: Sequence[Any]
) -> tuple[list[Any], PythonCall]:
    """Adds a call of a Python function to the graph that is being built."""
    made = PythonCall(function)
    results: Any = tf.py_function(made, inputs, [spec.dtype for spec in specs])
    for result, spec in zip(results, specs):
        result.set_shape(spec.shape)
    _registered[results[0].op.get_attr("token").decode()] = made
    return list(results), made


def of(operation: Any) -> Optional[PythonCall]:
    """Returns the `PythonCall` of a graph's operation; None for other operations."""
    if operation.type != OPERATION:
        return None
    return _registered.get(operation.get_attr("token").decode())
