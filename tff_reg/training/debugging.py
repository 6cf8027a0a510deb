"""Eager execution of a process's functions, so that a debugger works inside hooks.

`print`, `breakpoint()`, `if` on values and NumPy then work in hooks as in any Python
code. This is slow, and only possible in the Python process that built the TFF process.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tff_reg.runtime import python_calls

# Hooks, and a debugger in them, see one client at a time.
_one_at_a_time = threading.RLock()


def eagerly(
    function: Callable[..., Any], spec: Any, functions: list[Any]
) -> Callable[..., Any]:
    """Wraps a function so that a graph calls it eagerly."""

    def call(*arguments: Any) -> Any:
        flat = tf.nest.flatten(arguments)
        elements = [
            value.element_spec if isinstance(value, tf.data.Dataset) else None
            for value in flat
        ]

        def run(*tensors: Any) -> list[Any]:
            values = [
                tensor
                if element is None
                else tf.data.experimental.from_variant(tensor, element)
                for tensor, element in zip(tensors, elements)
            ]
            with _one_at_a_time:
                result = function(*tf.nest.pack_sequence_as(arguments, values))
            tf.nest.assert_same_structure(result, spec)
            return [tf.convert_to_tensor(value) for value in tf.nest.flatten(result)]

        inputs = [
            value if element is None else tf.data.experimental.to_variant(value)
            for value, element in zip(flat, elements)
        ]
        results, made = python_calls.add(run, inputs, tf.nest.flatten(spec))
        functions.append(made)
        return tf.nest.pack_sequence_as(spec, results)

    return call
