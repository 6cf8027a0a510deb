"""Mini-batches of fixed examples for the analysis of a model."""

from __future__ import annotations

import collections.abc
import dataclasses
from typing import Any

from tff_reg.lazy import tf


class UnsuitableDataError(ValueError):
    """There are no examples, or they have an unsupported form."""


@dataclasses.dataclass(frozen=True)
class Batch:
    """A mini-batch.

    Attributes:
      values: Tensors in the caller's structure, or (x, y) for a model.
      size: Number of examples.
    """

    values: Any
    size: int


def fixed_batches(data, batch_size: int, *, for_model: bool) -> list[Batch]:
    """Converts a caller's data into mini-batches that stay the same."""
    if isinstance(data, tf.data.Dataset):
        if data.cardinality() == tf.data.INFINITE_CARDINALITY:
            raise UnsuitableDataError(
                "The data set repeats for ever: pass one that ends, for example by "
                "leaving its repeat() out."
            )
        batches = [_batch(element, for_model) for element in data]
    elif isinstance(data, list):
        batches = [_batch(element, for_model) for element in data]
    elif isinstance(data, (tuple, collections.abc.Mapping)):
        batches = _cut(_batch(data, for_model), batch_size)
    else:
        raise UnsuitableDataError(
            "Examples must be a tuple of arrays (x, y), a tf.data.Dataset of batches "
            f"or a list of batches, not a {type(data).__name__}."
        )
    batches = [batch for batch in batches if batch.size]
    if not batches:
        raise UnsuitableDataError("There are no examples in the data.")
    return batches


def _batch(values, for_model: bool) -> Batch:
    """Converts a batch to tensors; checks that all have equally many examples."""
    if for_model:
        values = _features_and_labels(values)
    try:
        values = tf.nest.map_structure(tf.convert_to_tensor, values)
    except (TypeError, ValueError) as error:
        raise UnsuitableDataError(
            f"A batch cannot be converted to tensors: {' '.join(str(error).split())}"
        ) from error
    shapes = [tensor.shape for tensor in tf.nest.flatten(values)]
    sizes = {shape[0] for shape in shapes if shape.rank}
    if len(sizes) != 1 or any(shape.rank == 0 for shape in shapes):
        raise UnsuitableDataError(
            "The parts of a batch must have one row for each example, but their shapes "
            f"are {', '.join(str(shape) for shape in shapes)}: is the data batched?"
        )
    return Batch(values, sizes.pop())


def _features_and_labels(values):
    if isinstance(values, collections.abc.Mapping):
        if "x" in values and "y" in values:
            return values["x"], values["y"]
    elif isinstance(values, (tuple, list)) and len(values) == 2:
        return tuple(values)
    raise UnsuitableDataError(
        "A model takes batches of features and labels, a tuple (x, y) or a mapping "
        f"with 'x' and 'y', but got a {type(values).__name__}."
    )


def _cut(batch: Batch, batch_size: int) -> list[Batch]:
    result = []
    for begin in range(0, batch.size, batch_size):
        rows = slice(begin, min(begin + batch_size, batch.size))
        values = tf.nest.map_structure(lambda t, rows=rows: t[rows], batch.values)
        result.append(Batch(values, rows.stop - rows.start))
    return result
