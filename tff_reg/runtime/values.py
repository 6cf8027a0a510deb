"""Conversion of a computation's arguments and results to internal values and back.

Internal values are eager tensors, `tf.data.Dataset`s, lists for structures, and
`ClientValues` for values placed at clients. Arguments and results have the forms of
TFF's native context, and wrong types raise its errors.
"""

from __future__ import annotations

import collections
import functools
import weakref
from collections.abc import Callable, Mapping
from typing import Any, Optional

from tff_reg.lazy import np, tf, tff
from tff_reg.seam import internals

# Number of (type, element spec) pairs that are remembered as checked.
_REMEMBERED_ELEMENT_SPECS = 64
_PYTHON_SCALARS = (bool, int, float, complex, str, bytes)


class ClientValues:
    """A value at every client, in the clients' order."""

    def __init__(self, members: list[Any]):
        self.members = members


# Tensors that share their memory with returned arrays, by the arrays' ids: a round's
# result is not copied for the next round. An entry is removed with its array.
_shared: dict[int, tuple[weakref.ref, tf.Tensor]] = {}

# Pairs (type, element spec) for which a data set was found to fit the type.
_checked: dict[tuple[str, str], None] = collections.OrderedDict()


def argument(value: Any, type_spec: tff.Type, function: Callable[[Any], Any]) -> Any:
    """Converts the argument of a computation to an internal value."""
    with tf.device("CPU:0"):
        if isinstance(value, tff.structure.Struct) and isinstance(
            type_spec, tff.StructType
        ):
            _check_names(value, type_spec)
        found = _argument(value, type_spec, function)
        # TensorFlow copies an array twice, and frees the first copy only when it
        # converts other arrays. For a large model that is a third of a round's memory.
        for _ in range(2):
            tf.convert_to_tensor(np.zeros(1))
        return found


def _argument(value, type_spec, function):
    if isinstance(type_spec, tff.TensorType):
        return _tensor(value, type_spec)
    if isinstance(type_spec, tff.SequenceType):
        return _sequence(value, type_spec)
    if isinstance(type_spec, tff.StructType):
        if isinstance(value, Mapping):
            value = _by_names(value, type_spec)
        elements = tff.structure.from_container(value)
        if len(elements) != len(type_spec):
            _raise_type_error(value, type_spec)
        return [
            _argument(element, element_type, function)
            for element, (_, element_type) in zip(
                elements, tff.structure.iter_elements(type_spec)
            )
        ]
    if isinstance(type_spec, tff.FederatedType):
        if type_spec.all_equal or type_spec.placement is tff.SERVER:
            return _argument(value, type_spec.member, function)
        if not isinstance(value, list):
            _raise_type_error(value, type_spec)
        members = [_argument(member, type_spec.member, function) for member in value]
        return ClientValues(members)
    if isinstance(type_spec, tff.FunctionType):
        return function(value)
    raise NotImplementedError(
        f"An argument of type {type_spec} cannot be given to a computation that runs"
        " in process."
    )


def _sequence(value: Any, type_spec: tff.SequenceType) -> tf.data.Dataset:
    if isinstance(value, list):
        return internals.dataset_of_elements(
            [to_numpy(element) for element in value], type_spec.element
        )
    if not isinstance(value, tf.data.Dataset):
        _raise_type_error(value, type_spec)
    key = (repr(type_spec), repr(value.element_spec))
    if key not in _checked:
        internals.check_dataset(value, type_spec)
        _checked[key] = None
        while len(_checked) > _REMEMBERED_ELEMENT_SPECS:
            _checked.pop(next(iter(_checked)), None)
    return value


def _check_names(value, type_spec) -> None:
    names = tff.structure.name_list_with_nones(value)
    type_names = tff.structure.name_list_with_nones(type_spec)
    if len(names) != len(type_names):
        raise TypeError(
            f"Value {value} does not match type {type_spec}: mismatching tuple length."
        )
    for name, type_name in zip(names, type_names):
        if name not in (type_name, None):
            raise TypeError(
                f"Value {value} does not match type {type_spec}: mismatching tuple "
                f"element names {name} vs. {type_name}."
            )


def _by_names(value: Mapping[str, Any], type_spec: tff.StructType) -> Mapping[str, Any]:
    """Sorts a mapping by the type's names, if it has names: TFF goes by position."""
    names = tff.structure.name_list(type_spec)
    if not names:
        return value
    for name in [*value, *names]:
        if name not in names or name not in value:
            what = "is missing" if name in names else "is not one of the names"
            raise TypeError(f"{name!r} {what}; these are {', '.join(names)}.")
    return collections.OrderedDict((name, value[name]) for name in names)


def _tensor(value: Any, type_spec: tff.TensorType) -> tf.Tensor:
    if isinstance(value, tf.Variable):
        value = value.read_value()
    reference, tensor = _shared.get(id(value), (None, None))
    if reference is not None and reference() is value:
        value = tensor
    if tf.is_tensor(value):
        shape = tf.TensorShape(type_spec.shape)
        if value.dtype == tf_dtype(type_spec) and shape.is_compatible_with(value.shape):
            return value
        value = value.numpy()
    if (
        isinstance(value, (list, tuple))
        or not isinstance(value, (*_PYTHON_SCALARS, np.generic, np.ndarray))
        or not (
            internals.has_compatible_shape(value, type_spec.shape)
            and internals.has_compatible_dtype(value, type_spec.dtype.type)
        )
    ):
        _raise_type_error(value, type_spec)
    return tf.convert_to_tensor(value, tf_dtype(type_spec))


def tf_dtype(type_spec: tff.TensorType) -> tf.DType:
    """Returns TensorFlow's dtype of a TFF type."""
    dtype = type_spec.dtype.type
    return tf.string if dtype is np.str_ else tf.dtypes.as_dtype(dtype)


def _raise_type_error(value: Any, type_spec: tff.Type) -> None:
    """Raises the native context's error; returns if it would accept the value."""
    internals.raise_type_error(to_numpy(value), type_spec)


def to_numpy(value: Any) -> Any:
    """Returns `value` with its tensors as arrays, in the same containers."""
    return tf.nest.map_structure(
        lambda leaf: leaf.numpy() if tf.is_tensor(leaf) else leaf, value
    )


def result(value: Any, type_spec: tff.Type) -> Any:
    """Converts an internal value to arrays and data sets in the type's containers."""
    return tff.types.type_to_py_container(_result(value, type_spec), type_spec)


def _result(value: Any, type_spec: tff.Type) -> Any:
    if isinstance(type_spec, tff.TensorType):
        return _array(value)
    if isinstance(type_spec, tff.SequenceType):
        return internals.with_type_order(value, type_spec.element)
    if isinstance(type_spec, tff.StructType):
        return tff.structure.Struct(
            (name, _result(element, element_type))
            for element, (name, element_type) in zip(
                value, tff.structure.iter_elements(type_spec)
            )
        )
    if isinstance(type_spec, tff.FederatedType):
        if not isinstance(value, ClientValues):
            return _result(value, type_spec.member)
        members = value.members
        if not type_spec.all_equal:
            return [_result(member, type_spec.member) for member in members]
        if not members:
            raise ValueError(
                "A value that is the same at all clients has no value when there are "
                "no clients: call the computation with at least one client."
            )
        return _result(members[0], type_spec.member)
    raise NotImplementedError(
        f"A result of type {type_spec} cannot be returned from a computation."
    )


def _array(value: Any) -> Any:
    """Returns a tensor as a read-only array that shares its memory, or as a scalar."""
    if not tf.is_tensor(value):
        return value
    if value.shape.rank == 0 or value.dtype == tf.string:
        return value.numpy()
    found = np.asarray(value)
    found.flags.writeable = False
    if "CPU" in value.device:
        # `dict.pop` itself, with the reference as default: inside a Python function,
        # an interrupt that comes while the array is freed would be lost.
        forget = functools.partial(_shared.pop, id(found))
        _shared[id(found)] = weakref.ref(found, forget), value
    return found


def filled(type_spec: tff.Type, value_of: Callable[[tf.DType], Any]) -> Any:
    """Returns tensors of a type, filled with values; unknown dimensions are 0."""
    if isinstance(type_spec, tff.TensorType):
        shape = [0 if n is None else n for n in type_spec.shape or ()]
        dtype = tf_dtype(type_spec)
        return tf.fill(shape, tf.constant(value_of(dtype), dtype))
    return [
        filled(element_type, value_of)
        for _, element_type in tff.structure.iter_elements(type_spec)
    ]


def map_tensors(fn: Callable[..., Any], *structures: Any) -> Any:
    """Applies `fn` to the tensors at the same place of equal structures."""
    if isinstance(structures[0], list):
        return [map_tensors(fn, *elements) for elements in zip(*structures)]
    return fn(*structures)


def num_bytes(value: Any) -> int:
    """Returns the bytes of a value's tensors and of data sets with a `Origin`."""
    if isinstance(value, (list, tuple)):
        return sum(num_bytes(element) for element in value)
    if tf.is_tensor(value) and value.dtype.size:
        return value.dtype.size * value.shape.num_elements()
    return getattr(getattr(value, "origin", None), "num_bytes", 0)


def client_id(value: Any, index: int) -> Optional[str]:
    """Returns the attribute `client_id` of client `index`'s data sets, or None."""
    if isinstance(value, ClientValues):
        return client_id(value.members[index], index)
    if isinstance(value, list):
        found = (client_id(element, index) for element in value)
        return next((name for name in found if name is not None), None)
    name = getattr(value, "client_id", None)
    return None if name is None else str(name)
