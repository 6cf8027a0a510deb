"""The scheme that reads a partition from a file."""

from __future__ import annotations

import ast
import os
from typing import Any

from tff_reg import files
from tff_reg.data import pickles
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

    The file has a dict from clients to the positions of their examples, or a list with
    one entry per client. An entry may also be a dict `{"train": ..., "test": ...}`; the
    positions of both count in the training examples. Clients that are numbers, or texts
    of numbers, are in their order; others in the file's. The formats are

    * text: a dict as JSON, or as Python writes it, such as `{0: [3, 17], 1: [5]}` in
      the `client_data` files of the FedMLB authors' repository. It is read as a literal
      and never executed;
    * .npz: an array for each client, as `numpy.savez(path, **{"0": positions})`;
    * .pkl, .pickle: a pickle of arrays and containers alone (see `pickles`), as the
      scripts write that draw Dirichlet splits.

    >>> import pathlib, tempfile
    >>> from tff_reg.data import partitions
    >>> path = pathlib.Path(tempfile.mkdtemp(), "split.json")
    >>> _ = path.write_text('{"0": [0, 2], "1": [1]}')
    >>> partitions.split_file([5, 6, 5, 6], 2, split_file=path)
    [array([0, 2]), array([1])]

    Guaranteed: disjoint. Examples that are not in the file belong to no client.

    Raises:
      PartitionError: Also if the file cannot be read, has another format or another
        number of clients, or has a position twice or beyond the labels.
    """
    del seed
    size = dealing.check_labels(labels).size
    num_clients = dealing.check_num_clients(num_clients, size)
    train, held = _parts(split_file)
    if len(train) != num_clients:
        raise dealing.PartitionError(
            f"The split file {split_file} has {len(train)} clients, but num_clients "
            f"is {num_clients}; use num_clients={len(train)}."
        )
    what = f"The split file {split_file}"
    together = np.sort(dealing.check_positions([*train, *held], size, what)[0])
    twice = together[1:][np.diff(together) == 0]
    if twice.size:
        raise dealing.PartitionError(
            f"The split file {split_file} has the example {twice[0]} twice; each may "
            "belong to one client, to train or to test."
        )
    return train


def count_in(path: str | os.PathLike) -> int:
    """Returns the number of clients of a split file."""
    return len(_parts(path)[0])


def held_out(path: str | os.PathLike) -> list[np.ndarray] | None:
    """Returns each client's test positions of a split file; None if it has none."""
    held = _parts(path)[1]
    return held if any(map(len, held)) else None


def _parts(path: str | os.PathLike) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Returns each client's training and test positions in a split file."""
    clients = _read(os.fspath(path))
    if isinstance(clients, (list, tuple)):
        clients = dict(enumerate(clients))
    wrong = dealing.PartitionError(
        f"The split file {path} must hold one dict from clients to lists of positions, "
        'such as {"0": [3, 17], "1": [5]} or {"0": {"train": [3], "test": [17]}}.'
    )
    if not isinstance(clients, dict) or not clients:
        raise wrong
    names = [str(name) for name in clients]
    if all(map(str.isdecimal, names)):
        numbers = {int(name): own for name, own in zip(names, clients.values())}
        if len(numbers) < len(names):
            raise wrong
        clients = {number: numbers[number] for number in sorted(numbers)}

    def positions(given: Any) -> np.ndarray:
        if isinstance(given, (list, set, tuple)):
            given = np.array([*given]) if given else np.zeros(0, np.int64)
        if getattr(given, "ndim", 0) != 1 or given.dtype.kind not in "iu":
            raise wrong
        return given

    pairs = [
        (own["train"], own["test"])
        if isinstance(own, dict) and own.keys() == {"train", "test"}
        else (own, ())
        for own in clients.values()
    ]
    train, held = ([*map(positions, each)] for each in zip(*pairs))
    return dealing.ascending(train), dealing.ascending(held)


def _read(path: str) -> Any:
    """Reads the examples of each client from the dict or list of a split file."""
    what = f"The split file {path}"
    try:
        if path.endswith((".pkl", ".pickle")):
            return pickles.load(path)
        if path.endswith(".npz"):
            return files.read_npz(path, lambda _: True)
        with open(path, encoding="utf-8") as file:
            return ast.literal_eval(file.read().strip())
    except (files.DamagedError, pickles.PickleError) as error:
        raise dealing.PartitionError(f"{what} cannot be read: {error}") from error
    except OSError as error:
        raise dealing.PartitionError(
            f"{what} cannot be read ({error.strerror})."
        ) from error
    # Errors of literal_eval for malformed, binary or very deeply nested text.
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError) as error:
        raise dealing.PartitionError(
            f"{what} is not a Python dict of lists such as {{0: [3, 17], 1: [5]}}, nor"
            " .npz, .pkl or .pickle."
        ) from error
