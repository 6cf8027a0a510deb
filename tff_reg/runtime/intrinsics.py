"""TFF's intrinsics on internal values.

Three tables by the intrinsics' names: intrinsics that are evaluated once, intrinsics
that are evaluated at every client, and intrinsics that fold the clients' values into
one at the server. `tff_reg.seam.internals` replaces the secure intrinsics before.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from tff_reg.lazy import np, tf, tff
from tff_reg.runtime import values
from tff_reg.seam import internals

# Function values take one argument, None if they have no parameter.


# --- evaluated once ----------------------------------------------------------------


def _identity(argument, type_spec):
    del type_spec
    return argument


def _apply(argument, type_spec):
    del type_spec
    function, value = argument
    return function(value)


def _evaluate(function, type_spec):
    del type_spec
    return function(None)


def _sequence_map(argument, type_spec):
    function, dataset = argument
    element_type = type_spec.parameter[1].element
    result_type = type_spec.result.element

    @tf.autograph.experimental.do_not_convert
    def map_element(*components):
        element = components[0] if len(components) == 1 else components
        mapped = function(_from_element(element, element_type))
        return _to_element(mapped, result_type)

    return dataset.map(map_element)


def _sequence_reduce(argument, type_spec):
    dataset, state, function = argument
    element_type = type_spec.parameter[0].element
    for element in dataset:
        state = function([state, _from_element(element, element_type)])
    return state


def _sequence_sum(dataset, type_spec):
    element_type = type_spec.parameter.element
    total = values.filled(element_type, lambda dtype: 0)
    for element in dataset:
        total = values.map_tensors(tf.add, total, _from_element(element, element_type))
    return total


def _from_element(element, type_spec):
    """Converts an element of a data set to an internal value."""
    if isinstance(type_spec, tff.StructType):
        if isinstance(element, dict):
            parts = [element[name] for name in tff.structure.name_list(type_spec)]
        else:
            parts = list(tff.structure.from_container(element))
        return [
            _from_element(part, part_type)
            for part, (_, part_type) in zip(
                parts, tff.structure.iter_elements(type_spec)
            )
        ]
    return element


def _to_element(value, type_spec):
    """Converts an internal value to an element of a data set."""
    structure = internals.element_structure(type_spec)
    return _in_containers(value, structure)


def _in_containers(value, structure):
    if isinstance(structure, dict):
        parts = zip(structure, value, structure.values())
        return type(structure)((k, _in_containers(v, s)) for k, v, s in parts)
    if isinstance(structure, (tuple, list)):
        parts = [_in_containers(v, s) for v, s in zip(value, structure)]
        if hasattr(structure, "_fields"):
            return type(structure)(*parts)
        return type(structure)(parts)
    return value


ONCE: dict[str, Callable[[Any, tff.FunctionType], Any]] = {
    "federated_apply": _apply,
    "federated_eval_at_server": _evaluate,
    "federated_value_at_server": _identity,
    "federated_zip_at_server": _identity,
    "sequence_map": _sequence_map,
    "sequence_reduce": _sequence_reduce,
    "sequence_sum": _sequence_sum,
}


# --- evaluated at every client -------------------------------------------------------


def _select(argument, type_spec):
    """Returns the data set of `select_fn(server_value, key)` for the client's keys."""
    keys, _, server_value, select_fn = argument
    element_type = type_spec.result.member.element
    elements = [select_fn([server_value, key]) for key in tf.unstack(keys)]
    return internals.dataset_of_elements(
        [_arrays(element, element_type) for element in elements], element_type
    )


def _arrays(value, type_spec):
    if isinstance(type_spec, tff.StructType):
        return tff.structure.Struct(
            (name, _arrays(part, part_type))
            for part, (name, part_type) in zip(
                value, tff.structure.iter_elements(type_spec)
            )
        )
    return value.numpy()


AT_CLIENTS: dict[str, Callable[[Any, tff.FunctionType], Any]] = {
    "federated_broadcast": _identity,
    "federated_eval_at_clients": _evaluate,
    "federated_map": _apply,
    "federated_map_all_equal": _apply,
    "federated_select": _select,
    "federated_value_at_clients": _identity,
    "federated_zip_at_clients": _identity,
}


# --- folded into one value -----------------------------------------------------------


class Aggregation:
    """Folds the clients' values, in their order, into one at the server."""

    def __init__(self, settings: list, type_spec: tff.FunctionType):
        self._settings = settings
        self._type = type_spec

    def accumulate(self, value: Any) -> None:
        """Adds the next client's value."""
        raise NotImplementedError

    def result(self) -> Any:
        """Returns the value at the server, after the last client."""
        raise NotImplementedError


class _Reduction(Aggregation):
    """Folds by TensorFlow's `operation`; without clients it is `empty(dtype)`."""

    def __init__(self, settings, type_spec, *, operation, empty):
        super().__init__(settings, type_spec)
        self._operation = operation
        self._empty = empty
        self._total = None

    def accumulate(self, value):
        if self._total is None:
            self._total = value
        else:
            # Called for each tensor of each client: `tf.add` takes three times as long.
            raw = getattr(tf.raw_ops, self._operation)
            operation = lambda x, y: raw(x=x, y=y)  # noqa: E731
            self._total = values.map_tensors(operation, self._total, value)

    def result(self):
        if self._total is None:
            return values.filled(self._type.parameter.member, self._empty)
        return self._total


class _Mean(Aggregation):
    """The mean of values of equal weight."""

    def __init__(self, settings, type_spec):
        super().__init__(settings, type_spec)
        self._total = None
        self._weight = None

    def accumulate(self, value):
        self._add(value, tf.constant(1.0))

    def _add(self, value, weight):
        if self._total is None:
            # Variables, so that later values are added in place.
            self._total = values.map_tensors(
                lambda v: tf.Variable(v * tf.cast(weight, v.dtype)), value
            )
            self._weight = weight
        else:
            values.map_tensors(
                functools.partial(_add_weighted, weight), self._total, value
            )
            self._weight = tf.add(self._weight, weight)

    def result(self):
        if self._total is None:
            self._total = values.filled(self._type.result.member, lambda dtype: 0)
            self._weight = tf.constant(0.0)
        return values.map_tensors(
            lambda v: v / tf.cast(self._weight, v.dtype), self._total
        )


class _WeightedMean(_Mean):
    """The weighted mean of <value, weight> pairs."""

    def accumulate(self, value):
        self._add(*value)


def _add_weighted(weight, total, value):
    """`total += weight * value` in one pass: the product is never in memory."""
    tf.raw_ops.ResourceApplyGradientDescent(
        var=total.handle, alpha=-tf.cast(weight, total.dtype), delta=value
    )


class _Aggregate(Aggregation):
    """TFF's <value, zero, accumulate, merge, report>; `merge` is not needed here."""

    def __init__(self, settings, type_spec):
        super().__init__(settings, type_spec)
        self._state, self._function, _, self._report = settings

    def accumulate(self, value):
        self._state = self._function([self._state, value])

    def result(self):
        return self._report(self._state)


def _largest(dtype):
    return np.iinfo(dtype.as_numpy_dtype).max if dtype.is_integer else dtype.max


def _smallest(dtype):
    return np.iinfo(dtype.as_numpy_dtype).min if dtype.is_integer else dtype.min


# Intrinsics whose argument is <clients' values, settings...>, not the values alone.
WITH_SETTINGS = frozenset(("federated_aggregate",))

AGGREGATIONS: dict[str, Callable[[list, tff.FunctionType], Aggregation]] = {
    "federated_aggregate": _Aggregate,
    "federated_max": functools.partial(
        _Reduction, operation="Maximum", empty=_smallest
    ),
    "federated_mean": _Mean,
    "federated_min": functools.partial(_Reduction, operation="Minimum", empty=_largest),
    "federated_sum": functools.partial(
        _Reduction, operation="AddV2", empty=lambda dtype: 0
    ),
    "federated_weighted_mean": _WeightedMean,
}
