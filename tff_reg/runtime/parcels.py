"""Serialisation of values between two processes.

Packed tensors are NumPy arrays, which Ray puts into shared memory and reads without a
copy. The sender chooses the packed form of data sets.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from tff_reg.lazy import np, tf


@dataclasses.dataclass(frozen=True)
class _Texts:
    """A tensor of strings."""

    serialized: bytes


@dataclasses.dataclass(frozen=True)
class Graph:
    """A data set, packed as its graph."""

    serialized: bytes
    element_spec: Any

    @classmethod
    def of(cls, dataset: tf.data.Dataset) -> Graph:
        """Returns the graph of a data set, with its data in memory."""
        graph = tf.raw_ops.DatasetToGraphV2(
            input_dataset=tf.data.experimental.to_variant(dataset),
            strip_device_assignment=True,
        )
        return cls(graph.numpy(), dataset.element_spec)

    def dataset(self) -> tf.data.Dataset:
        """Returns the data set."""
        variant = tf.raw_ops.DatasetFromGraph(graph_def=self.serialized)
        return tf.data.experimental.from_variant(variant, self.element_spec)


@dataclasses.dataclass(frozen=True)
class Held:
    """A data set whose examples the receiver has already.

    Attributes:
        place: Place of the examples among those that are sent beside the values.
        make: Builds the data set from the examples.
    """

    place: int
    make: Callable[[Any], tf.data.Dataset]


def pack(value: Any, dataset: Callable[[tf.data.Dataset], Any] = Graph.of) -> Any:
    """Packs a value for another process."""
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
            "A function cannot be sent to another process as an argument; use the "
            "in_process runtime."
        )
    return value


def unpack(value: Any, examples: Sequence[Any] = ()) -> Any:
    """Unpacks a value, with the examples of its data sets; the inverse of `pack`."""
    if isinstance(value, list):
        return type(value)(unpack(element, examples) for element in value)
    if isinstance(value, np.ndarray):
        return tf.convert_to_tensor(value)
    if isinstance(value, _Texts):
        return tf.io.parse_tensor(value.serialized, tf.string)
    if isinstance(value, Graph):
        return value.dataset()
    if isinstance(value, Held):
        return value.make(examples[value.place])
    return value
