"""Checks and steps that all partition schemes share."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence

from tff_reg.lazy import np


class PartitionError(ValueError):
    """Raised if labels or arguments allow no partition."""


def check_labels(labels: np.ndarray) -> np.ndarray:
    """Returns `labels` as a 1-D array of their own dtype."""
    values = np.asarray(labels)
    if values.ndim != 1:
        raise PartitionError(
            f"Labels must be one number per example, but have shape {values.shape}; "
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
            f"Labels must be 0 or above, but one is {values.min()}; remove unlabelled "
            "examples."
        )
    if values.max() >= 2**31:
        raise PartitionError(
            f"Labels must be below 2**31, but one is {values.max()}; number the "
            "classes from 0."
        )
    return values


def classes_of(labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns each example's class, renumbered without gaps, and the classes' sizes."""
    _, classes, sizes = np.unique(
        check_labels(labels), return_inverse=True, return_counts=True
    )
    return classes, sizes


def check_count(name: str, value: int, *, least: int) -> int:
    """Returns `value` as an int."""
    try:
        value = operator.index(value)
    except TypeError:
        raise PartitionError(
            f"{name} is {value!r}; pass a whole number of at least {least}."
        ) from None
    if value < least:
        raise PartitionError(f"{name} is {value}; it must be at least {least}.")
    return value


def check_num_clients(num_clients: int, num_examples: int) -> int:
    """Returns the number of clients as an int."""
    num_clients = check_count("num_clients", num_clients, least=1)
    if num_clients > num_examples:
        raise PartitionError(
            f"{num_examples} examples are too few for {num_clients} clients; use at "
            f"most {num_examples} clients."
        )
    return num_clients


def check_positions(
    partition: Sequence[np.ndarray], num_examples: int, what: str = "The partition"
) -> tuple[np.ndarray, np.ndarray]:
    """Joins the positions of all clients, one client after the other."""
    parts = [np.asarray(positions) for positions in partition]
    for row, part in enumerate(parts):
        if part.dtype == bool:
            raise PartitionError(
                f"{what} has a mask (bool) for client {row}; pass the positions: "
                "np.flatnonzero(mask)."
            )
        # An empty list is float64.
        if part.ndim != 1 or (part.size and part.dtype.kind not in "iu"):
            raise PartitionError(
                f"{what} has {part.dtype} {part.shape} for client {row}; pass the "
                "positions of its examples, a list of whole numbers."
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
    """Returns positions in the form of a partition: ascending int64 arrays."""
    return [np.sort(part).astype(np.int64) for part in parts]


def deal(
    classes: np.ndarray, counts: np.ndarray, generator: np.random.Generator
) -> list[np.ndarray]:
    """Draws each client's examples at random, given the numbers of each class."""
    num_clients = counts.shape[0]
    nobody = num_clients
    owners = np.full(classes.size, nobody, dtype=np.int64)
    shuffled = generator.permutation(classes.size)
    # Ascending by class, shuffled within each class.
    shuffled = shuffled[np.argsort(classes[shuffled], kind="stable")]
    start = 0
    for size, column in zip(np.bincount(classes), counts.T):
        receivers = np.repeat(np.arange(num_clients), column)
        owners[shuffled[start : start + receivers.size]] = receivers
        start += size
    positions = np.argsort(owners, kind="stable").astype(np.int64)
    ends = counts.sum(axis=1).cumsum()
    # The last part holds the examples of no client.
    return np.split(positions, ends)[:-1]
