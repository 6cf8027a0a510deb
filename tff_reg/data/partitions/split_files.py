"""The scheme that reads a partition from a file."""

from __future__ import annotations

import ast
import os

from tff_reg.data.partitions import dealing
from tff_reg.lazy import np


def split_file(
    labels: np.ndarray,
    num_clients: int,
    *,
    split_file: str | os.PathLike,
    seed: int | None = None,
) -> list[np.ndarray]:
    """Reads the partition from a file, without random draws.

    The format is that of the `client_data` files in the FedMLB authors' repository:
    one Python dict from client numbers to lists (or sets, or tuples) of positions,
    such as `{0: [3, 17], 1: [5]}`, or JSON, whose keys are strings. It is read as a
    literal and never executed.

    >>> import pathlib
    >>> from tff_reg.data import partitions
    >>> _ = pathlib.Path("split.txt").write_text("{0: [0, 2], 1: [1]}")
    >>> partitions.split_file([5, 6, 5, 6], 2, split_file="split.txt")
    [array([0, 2]), array([1])]

    Guaranteed: disjoint. Examples that are not in the file belong to no client.

    Raises:
      PartitionError: Also if the file cannot be read, has another format or another
        number of clients, or has a position twice or beyond the labels.
    """
    del seed
    size = dealing.check_labels(labels).size
    num_clients = dealing.check_num_clients(num_clients, size)
    clients = _read_split_file(split_file)
    if len(clients) != num_clients:
        raise dealing.PartitionError(
            f"The split file {split_file} has {len(clients)} clients, but num_clients "
            f"is {num_clients}; use num_clients={len(clients)}."
        )
    dealt = dealing.ascending(
        np.array([*clients[one]], np.int64) for one in sorted(clients)
    )
    what = f"The split file {split_file}"
    together = np.sort(dealing.check_positions(dealt, size, what)[0])
    twice = together[1:][np.diff(together) == 0]
    if twice.size:
        raise dealing.PartitionError(
            f"The split file {split_file} has the example {twice[0]} twice; each may "
            "belong to one client."
        )
    return dealt


def _read_split_file(path: str | os.PathLike) -> dict:
    """Reads a split file's dict from client numbers to collections of positions."""
    try:
        with open(path, encoding="utf-8") as file:
            clients = ast.literal_eval(file.read().strip())
    except OSError as error:
        raise dealing.PartitionError(
            f"The split file {path} cannot be read ({error.strerror})."
        ) from error
    # Errors of literal_eval for malformed, binary or very deeply nested text.
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError) as error:
        raise dealing.PartitionError(
            f"The split file {path} is not a Python dict of lists such as "
            "{0: [3, 17], 1: [5]}."
        ) from error
    if isinstance(clients, dict):
        numbers = [int(k) if str(k).isdecimal() else None for k in clients]
        is_sound = clients and None not in numbers and len(set(numbers)) == len(numbers)
        clients = dict(zip(numbers, clients.values())) if is_sound else None
    if (
        not isinstance(clients, dict)
        or not all(isinstance(own, (list, set, tuple)) for own in clients.values())
        or not all(type(one) is int for own in clients.values() for one in own)
    ):
        raise dealing.PartitionError(
            f"The split file {path} must hold one dict from client numbers to lists of "
            "positions, such as {0: [3, 17], 1: [5]}."
        )
    return clients
