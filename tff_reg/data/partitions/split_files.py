"""The scheme that reads a partition from a file."""

from __future__ import annotations

import ast
import os
import reprlib
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
    of numbers, are in their order; others in the file's; `clients_in` has their names.
    The formats are

    * text: a dict as JSON, or as Python writes it, such as `{0: [3, 17], 1: [5]}` in
      the `client_data` files of the FedMLB authors' repository. It is read as a literal
      and never executed;
    * .npz: an array for each client, as `numpy.savez(path, **{"0": positions})`, or
      two, `**{"0/train": positions, "0/test": positions}`;
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
    names, train, held = _parts(split_file)
    what = f"The split file {split_file}"
    if len(train) != num_clients:
        raise dealing.PartitionError(
            f"{what} has {len(train)} clients, but num_clients is {num_clients}; use"
            f" num_clients={len(train)}."
        )
    together = np.sort(dealing.check_positions([*train, *held], size, what)[0])
    twice = together[1:][np.diff(together) == 0]
    if twice.size:
        whose = [*map(repr, names), *(f"{name!r} (test)" for name in names)]
        owners = [o for o, own in zip(whose, [*train, *held]) if twice[0] in own]
        raise dealing.PartitionError(
            f"{what} has the example {twice[0]} twice, for {' and '.join(owners)}; each"
            " may belong to one client, to train or to test."
        )
    return train


def count_in(path: str | os.PathLike) -> int:
    """Returns the number of clients of a split file."""
    return len(_parts(path)[0])


def clients_in(path: str | os.PathLike) -> list[str] | None:
    """Returns the clients' names in a split file; None if they are 0, 1, 2, ..."""
    names = _parts(path)[0]
    are_numbers = all(map(str.isdecimal, names))
    if are_numbers and [*map(int, names)] == [*range(len(names))]:
        return None
    return names


def held_out(path: str | os.PathLike) -> list[np.ndarray] | None:
    """Returns each client's test positions of a split file; None if it has none."""
    held = _parts(path)[2]
    return held if any(map(len, held)) else None


def _parts(
    path: str | os.PathLike,
) -> tuple[list[str], list[np.ndarray], list[np.ndarray]]:
    """Returns the clients' names, training and test positions in a split file."""
    what = f"The split file {path}"
    clients = _read(os.fspath(path))
    if isinstance(clients, (list, tuple)):
        clients = dict(enumerate(clients))
    if not isinstance(clients, dict) or not clients:
        raise dealing.PartitionError(
            f"{what} must hold one dict from clients to lists of positions, such as"
            ' {"0": [3, 17], "1": [5]} or {"0": {"train": [3], "test": [17]}}.'
        )
    if {"users", "user_data"} <= clients.keys():
        raise dealing.PartitionError(
            f"{what} has examples, as LEAF's JSON, and not their positions: give them"
            " as a --task with clients, such as arrays, and --partition=natural."
        )
    owners = [(str(name), own) for name, own in clients.items()]
    if all(name.isdecimal() for name, _ in owners):
        owners.sort(key=lambda each: int(each[0]))
    known: dict[str, list[np.ndarray]] = {}
    for name, own in owners:
        if name in known:
            raise dealing.PartitionError(f"{what} has two clients named {name!r}.")
        is_split = isinstance(own, dict) and own.keys() == {"train", "test"}
        parts = (own["train"], own["test"]) if is_split else (own, ())
        for each in parts:
            if (wrong := _not_positions(each)) is not None:
                raise dealing.PartitionError(
                    f"{what} has {wrong} for the client {name!r}; give whole numbers"
                    ' such as [3, 17], or {"train": [3], "test": [17]}.'
                )
        known[name] = [np.array([*each]) for each in parts]
    train, held = map(dealing.ascending, zip(*known.values()))
    return [*known], train, held


def _not_positions(given: Any) -> str | None:
    """Returns what a client has in the place of positions; None for positions."""
    if isinstance(given, dict):
        return f"a dict of {', '.join(map(str, given))}"
    if hasattr(given, "tolist"):
        if given.ndim == 1 and given.dtype.kind in "iu":
            return None
        given = given.tolist()
    if not isinstance(given, (list, set, tuple)):
        return reprlib.repr(given)
    for each in given:
        is_number = isinstance(each, (int, np.integer)) and not isinstance(each, bool)
        if not (is_number and 0 <= each < 2**63):
            return reprlib.repr(each)
    return None


def _read(path: str) -> Any:
    """Reads the examples of each client from the dict or list of a split file."""
    what = f"The split file {path}"
    try:
        if path.endswith((".pkl", ".pickle")):
            return pickles.load(path)
        if path.endswith(".npz"):
            return _by_client(files.read_npz(path))
        with open(path, encoding="utf-8") as file:
            return ast.literal_eval(file.read().strip())
    except (files.DamagedError, pickles.PickleError) as error:
        if "Object arrays" in str(error):  # NumPy has no error of its own for them.
            raise dealing.PartitionError(
                f"{what} has an array of lists: save one array per client, or a .pkl."
            ) from error
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


def _by_client(arrays: dict[str, np.ndarray]) -> dict[str, Any]:
    """Returns the arrays of a client's parts, such as a/train and a/test, as a dict."""
    split = {n.rpartition("/")[0] for n in arrays if n.endswith(("/train", "/test"))}
    found: dict[str, Any] = {}
    for name, own in arrays.items():
        client, _, part = (f"{name}/" if name in split else name).rpartition("/")
        if client in split:
            found.setdefault(client, {})[part] = own
        else:
            found[name] = own
    return found
