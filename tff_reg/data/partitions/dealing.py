"""What all schemes do: look at the labels, refuse, hand out positions."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence

from tff_reg.lazy import np


class PartitionError(ValueError):
    """A partition that cannot be made from these labels and numbers."""


def check_labels(labels: np.ndarray) -> np.ndarray:
    """`labels` as a 1-D array of its own dtype.

    Raises:
      PartitionError: If they are empty, or not one whole number in 0 .. 2**31 - 1 an
        example.
    """
    values = np.asarray(labels)
    if values.ndim != 1:
        raise PartitionError(
            f"Labels must be one number an example, but have shape {values.shape}; "
            "pass a 1-D array of class numbers."
        )
    if not values.size:
        raise PartitionError("There are no labels to partition; pass at least one.")
    if values.dtype.kind not in "iufb":
        raise PartitionError(
            f"Labels must be class numbers, but have dtype {values.dtype}; convert "
            "them to integers first."
        )
    if values.dtype.kind == "f" and not (
        np.isfinite(values).all() and (values == np.floor(values)).all()
    ):
        raise PartitionError(
            "Labels must be whole numbers, but some are NaN, infinite or fractional; "
            "clean them first."
        )
    if values.min() < 0:
        raise PartitionError(
            f"Labels must be 0 or above, but one is {values.min()}; leave unlabelled "
            "examples out."
        )
    if values.max() >= 2**31:
        raise PartitionError(
            f"Labels must be below 2**31, but one is {values.max()}; number the "
            "classes from 0."
        )
    return values


def classes_of(labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Each example's class, numbered among those present, and the classes' sizes.

    Raises:
      PartitionError: As `check_labels`.
    """
    _, classes, sizes = np.unique(
        check_labels(labels), return_inverse=True, return_counts=True
    )
    return classes, sizes


def check_count(name: str, value: int, *, least: int) -> int:
    """A whole number that is large enough.

    Raises:
      PartitionError: If it is neither.
    """
    try:
        value = operator.index(value)
    except TypeError:
        raise PartitionError(
            f"{name} is {value!r}; give a whole number of at least {least}."
        ) from None
    if value < least:
        raise PartitionError(f"{name} is {value}; it must be at least {least}.")
    return value


def check_num_clients(num_clients: int, num_examples: int) -> int:
    """How many clients, if there is an example for each.

    Raises:
      PartitionError: If there are too many, or none.
    """
    num_clients = check_count("num_clients", num_clients, least=1)
    if num_clients > num_examples:
        raise PartitionError(
            f"{num_examples} examples cannot be dealt to {num_clients} clients; use "
            f"at most {num_examples} clients."
        )
    return num_clients


def check_positions(
    partition: Sequence[np.ndarray], num_examples: int, what: str = "The partition"
) -> tuple[np.ndarray, np.ndarray]:
    """All clients' positions, one client after the other.

    Args:
      partition: One array or list of positions a client.
      num_examples: How many examples there are.
      what: The partition, in words.

    Returns:
      The positions, and each client's number of them, both int64.

    Raises:
      PartitionError: If one is no whole number in 0 .. num_examples - 1.
    """
    parts = [np.asarray(positions) for positions in partition]
    for row, part in enumerate(parts):
        if part.dtype == bool:
            raise PartitionError(
                f"{what} has a mask (bool) for client {row}; give the positions: "
                "np.flatnonzero(mask)."
            )
        # An empty list is float64.
        if part.ndim != 1 or (part.size and part.dtype.kind not in "iu"):
            raise PartitionError(
                f"{what} has {part.dtype} {part.shape} for client {row}; give the "
                "positions of its examples, whole numbers in one row."
            )
    sizes = np.array([part.size for part in parts], np.int64)
    positions = np.empty(sizes.sum(), np.int64)
    if parts:
        np.concatenate(parts, out=positions, casting="unsafe")
    if positions.size and not 0 <= positions.min() <= positions.max() < num_examples:
        raise PartitionError(
            f"{what} has positions from {positions.min()} to {positions.max()}, but "
            f"there are {num_examples} examples; it belongs to other data."
        )
    return positions, sizes


def ascending(parts: Iterable[np.ndarray]) -> list[np.ndarray]:
    """Clients' positions as a partition has them."""
    return [np.sort(part).astype(np.int64) for part in parts]


def deal(
    classes: np.ndarray, counts: np.ndarray, generator: np.random.Generator
) -> list[np.ndarray]:
    """Random examples according to a table of counts.

    Args:
      classes: int [N], each example's class.
      counts: int64 [clients, classes]; the rest of a class stays undealt.
      generator: Where the numbers come from.

    Returns:
      One ascending int64 array of positions a client.
    """
    num_clients = counts.shape[0]
    nobody = num_clients
    owners = np.full(classes.size, nobody, dtype=np.int64)
    shuffled = generator.permutation(classes.size)
    # Ascending by class, shuffled within it.
    shuffled = shuffled[np.argsort(classes[shuffled], kind="stable")]
    start = 0
    for size, column in zip(np.bincount(classes), counts.T):
        receivers = np.repeat(np.arange(num_clients), column)
        owners[shuffled[start : start + receivers.size]] = receivers
        start += size
    positions = np.argsort(owners, kind="stable").astype(np.int64)
    ends = counts.sum(axis=1).cumsum()
    # The last part is what nobody got.
    return np.split(positions, ends)[:-1]
