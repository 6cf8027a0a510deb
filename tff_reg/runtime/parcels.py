"""Values of this package on their way between two processes.

Packed, tensors are NumPy arrays (which Ray puts into shared memory and reads without a
copy), and data sets are what the sender makes of them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from tff_reg.lazy import np, tf


@dataclasses.dataclass(frozen=True)
class _Texts:
    """A tensor of strings."""

    serialized: bytes


@dataclasses.dataclass(frozen=True)
class Graph:
    """A data set that travels as the graph which makes it."""

    serialized: bytes
    element_spec: Any

    @classmethod
    def of(cls, dataset: tf.data.Dataset) -> Graph:
        """The graph of a data set, with the data that it holds in memory."""
        graph = tf.raw_ops.DatasetToGraphV2(
            input_dataset=tf.data.experimental.to_variant(dataset),
            strip_device_assignment=True,
        )
        return cls(graph.numpy(), dataset.element_spec)

    def dataset(self) -> tf.data.Dataset:
        """The data set."""
        variant = tf.raw_ops.DatasetFromGraph(graph_def=self.serialized)
        return tf.data.experimental.from_variant(variant, self.element_spec)


@dataclasses.dataclass(frozen=True)
class Held:
    """A data set of whose examples the receiver has the larger part, by a name.

    Attributes:
        name: Of that part.
        make: Makes the data set of it.
    """

    name: Any
    make: Callable[[Any], tf.data.Dataset]


def pack(value: Any, dataset: Callable[[tf.data.Dataset], Any] = Graph.of) -> Any:
    """What is sent for a value.

    Args:
        value: The value; marks of `visits` stay what they are.
        dataset: What is sent for a data set.

    Returns:
        What `pickle` can take.

    Raises:
        TypeError: If it is, or has in it, what cannot travel.
    """
    if isinstance(value, list):
        return type(value)(pack(element, dataset) for element in value)
    if isinstance(value, tf.data.Dataset):
        return dataset(value)
    if isinstance(value, tf.Variable):
        value = value.read_value()
    if tf.is_tensor(value):
        if value.dtype == tf.string:
            return _Texts(tf.io.serialize_tensor(value).numpy())
        return np.asarray(value)
    if callable(value):
        raise TypeError(
            "A function as an argument cannot be sent to another process; use the "
            "in_process runtime for it."
        )
    return value


def unpack(value: Any, dataset: Callable[[Held], tf.data.Dataset]) -> Any:
    """The inverse of `pack`.

    Args:
        value: What `pack` gave.
        dataset: What a `Held` stands for.

    Returns:
        The value.
    """
    if isinstance(value, list):
        return type(value)(unpack(element, dataset) for element in value)
    if isinstance(value, np.ndarray):
        return tf.convert_to_tensor(value)
    if isinstance(value, _Texts):
        return tf.io.parse_tensor(value.serialized, tf.string)
    if isinstance(value, Graph):
        return value.dataset()
    if isinstance(value, Held):
        return dataset(value)
    return value
