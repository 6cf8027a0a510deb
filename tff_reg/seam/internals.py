"""All uses of inner modules of TFF 0.87.

All other modules use TFF's public names only (`tff.framework.*`, `tff.types.*`,
`tff.structure.*`). TFF's development after 0.87 moves most of these inner modules to
another package (`federated_language`), so a newer TFF should need changes only here.
Importing this module imports TFF; modules that must be quick to import do not import it
at their top.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Iterator
from typing import Any

import tensorflow as tf
import tensorflow_federated as tff
from tensorflow_federated.proto.v0 import computation_pb2
from tensorflow_federated.python.core.backends.test import (
    compiler as simulated_secure_compiler,
)
from tensorflow_federated.python.core.impl.compiler import array
from tensorflow_federated.python.core.impl.executors import (
    cardinalities_utils,
    value_serialization,
)
from tensorflow_federated.python.core.impl.types import (
    type_conversions,
    type_serialization,
)
from tensorflow_federated.python.core.impl.utils import tensorflow_utils

from tff_reg import seam

_make_type = type_serialization.deserialize_type


# --- the context stack ---------------------------------------------------------


# TFF's default contexts whose `invoke` now calls a context of ours.
_pointed: list[Any] = []


def set_default_context(context) -> None:
    """Makes `context` the default of every thread; None restores TFF's defaults.

    TFF's stack is thread-local. In the thread that imported TFF, its bottom is the
    context that TFF made; in all other threads it is one object that refuses every
    call. Both get the `invoke` of `context`, and so does the calling thread's bottom.
    """
    while _pointed:
        vars(_pointed.pop()).pop("invoke", None)
    if context is not None:
        bottom = tff.framework.get_context_stack()._stack[0]
        _pointed.extend((bottom, _context_of_a_new_thread()))
        if (made := seam.FINDER.default_context()) is not None:
            _pointed.append(made)
        for each in _pointed:
            each.invoke = context.invoke


@functools.cache  # One object for all threads; no thread can be started at exit.
def _context_of_a_new_thread():
    found = []
    stack = tff.framework.get_context_stack()
    thread = threading.Thread(target=lambda: found.append(stack.current))
    thread.start()
    thread.join()
    return found[0]


def refuse_tracing() -> None:
    """Checks that no `tf.function` is being traced."""
    if tf.inside_function():
        raise RuntimeError(
            "A TFF computation was called while TensorFlow traces a function, and its"
            " result would become a constant of that function: call it outside of"
            " tf.function and Dataset.map, or in tf.init_scope() if that is meant."
        )


# --- the secure intrinsics' simulated bodies -----------------------------------


def without_secure_intrinsics(block) -> tuple[Any, bool]:
    """Replaces secure sums and selects by plain ones; says whether there were any."""
    # TFF's public function also makes a proto of the result, which is not needed.
    replace = simulated_secure_compiler._replace_secure_intrinsics_with_insecure_bodies
    return replace(block)


# --- types and values ------------------------------------------------------------


def building_block(dumped: bytes):
    """Returns the building block of a serialised proto."""
    proto = computation_pb2.Computation.FromString(dumped)
    with _each_type_once():
        return tff.framework.ComputationBuildingBlock.from_proto(proto)


def building_block_of(comp: tff.framework.ConcreteComputation):
    """Returns the building block of a computation."""
    with _each_type_once():
        return comp.to_building_block()


@contextlib.contextmanager
def _each_type_once() -> Iterator[None]:
    """Within the context, TFF makes each type from its proto only once.

    A process has the type of its weights in hundreds of places, and TFF makes it anew
    for each: for a deep network this takes a second of the first round.
    """
    made: dict[bytes, tff.types.Type] = {}

    def make(proto: computation_pb2.Type) -> tff.types.Type:
        dumped = proto.SerializeToString(deterministic=True)
        if dumped not in made:
            made[dumped] = _make_type(proto)
        return made[dumped]

    type_serialization.deserialize_type = make
    try:
        yield
    finally:
        type_serialization.deserialize_type = _make_type


def element_structure(element_type):
    """Returns the structure of `tf.TensorSpec`s of a data set's elements."""
    return type_conversions.type_to_tf_structure(element_type)


def dataset_of_elements(elements: list, element_type):
    """Returns a data set of the listed elements, of any number and shapes."""
    return tensorflow_utils.make_data_set_from_elements(None, elements, element_type)


def with_type_order(dataset, element_type):
    """Returns `dataset` with its elements in the containers and order of the type."""
    return tensorflow_utils.coerce_dataset_elements_to_tff_type_spec(
        dataset, element_type
    )


def check_dataset(dataset, type_spec) -> None:
    """Checks that `dataset` is of the sequence type `type_spec`."""
    element_type = tff.types.tensorflow_to_type(dataset.element_spec)
    value_serialization._check_container_compat_with_tf_nest(element_type)
    if not type_spec.is_assignable_from(tff.SequenceType(element_type)):
        raise TypeError(
            f"A data set has elements {element_type}, and the computation takes"
            f" {type_spec.element}: name, cast and batch them so (Dataset.map, .batch)."
        )


def has_compatible_dtype(value, dtype) -> bool:
    """Whether TFF accepts an array as one of this dtype."""
    return array.is_compatible_dtype(value, dtype)


def has_compatible_shape(value, shape) -> bool:
    """Whether TFF accepts an array as one of this shape."""
    return array.is_compatible_shape(value, shape)


def raise_type_error(value, type_spec) -> None:
    """Lets TFF raise its error about `value`; returns if TFF finds none."""
    tff.framework.serialize_value(value, type_spec)


def number_of_clients(argument, parameter_type, default: int) -> int:
    """Returns the number of clients in `argument`; raises TFF's error if unclear."""
    if argument is None:
        return default
    cardinalities = cardinalities_utils.infer_cardinalities(argument, parameter_type)
    return cardinalities.get(tff.CLIENTS, default)
