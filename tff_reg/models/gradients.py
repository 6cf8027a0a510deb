"""A `tf.custom_gradient` that does not keep its graph alive."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Any

from tff_reg import lazy
from tff_reg.lazy import tf

internals = lazy.module("tff_reg.seam.tensorflow_internals")


def custom_gradient(function: Callable[..., Any]) -> Callable[..., Any]:
    """`tf.custom_gradient` whose gradient is freed with the graph it was traced in.

    In a graph, TensorFlow's function registers each call's gradient under a unique name
    until Python ends. The gradient refers to its graph and the captured variables, so
    every process that is built would stay in memory.
    """
    decorated = tf.custom_gradient(function)

    @functools.wraps(function)
    def call(*args):
        results = decorated(*args)
        if not tf.executing_eagerly():
            _hold_by_graph(tf.nest.flatten(results)[0].op)
        return results

    return call


def _hold_by_graph(operation: tf.Operation) -> None:
    """Moves the operation's gradient from the registry to the operation's graph."""
    name = operation.get_attr("_gradient_op_type").decode()
    graph = operation.graph
    entries = internals.gradient_registry()
    gradient = entries[name]["type"]
    graph._tff_reg_gradients = [*getattr(graph, "_tff_reg_gradients", ()), gradient]
    entries[name]["type"] = functools.partial(_call, weakref.ref(gradient))
    weakref.finalize(graph, entries.pop, name, None).atexit = False


def _call(reference: Callable[[], Any], operation: tf.Operation, *upstream: Any) -> Any:
    return reference()(operation, *upstream)
