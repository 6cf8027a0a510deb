"""The state of a learning process between two rounds, and its files.

A server state, or any other structure of arrays, is one `.npz` file.
`tff.program.FileProgramStateManager` writes a SavedModel, which for the state of a
ResNet-56 (260 arrays, 2.4 MB) takes 1.25 s per save and 1.1 s per load, more than a
round of a small experiment; the same arrays as `.npz` take 0.01 s, the same state gives
the same bytes, and nothing is added to TensorFlow's graphs. The structure itself is not
stored: the reader takes it from `process.initialize()`.

    client_states/
        <client>-<round>.npz    the state that a client had after a round

A client's file is never changed: a later state is a new file. A checkpoint holds an
index of the current files with their checksums, so the server state and all clients'
states are committed together, whatever their size. After a crash there may be files,
also incomplete ones, that no index names: only a checkpoint waits for the disk. Only
the states of a round's cohort are in memory.
"""

from __future__ import annotations

import hashlib
import json
import pathlib
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Optional

from tff_reg import files
from tff_reg.experiment.rounds import checkpoints
from tff_reg.lazy import np, tree

if TYPE_CHECKING:
    from tff_reg.training.composition import Process

# The parts of a checkpoint.
STATE, CLIENT_STATES = "server_state.npz", "client_states.json"


class StateMismatchError(ValueError):
    """Raised when a stored state does not fit the process that reads it."""


def _name(path: tuple) -> str:
    return "/".join(str(part) for part in path) or "value"


def _from_array(name: str, array: Any, like: Any):
    """Returns a stored array as a leaf of the type of `like`."""
    expected = np.asarray(like)
    if array.dtype.kind == "V":  # bfloat16 and its like come back as raw bytes.
        array = array.view(expected.dtype)
    if array.dtype != expected.dtype or array.shape != expected.shape:
        raise StateMismatchError(
            f"The stored `{name}` is {array.dtype} {list(array.shape)}, but this"
            f" process has {expected.dtype} {list(expected.shape)} there."
        )
    if isinstance(like, (bool, int, float)):
        return type(like)(array[()])
    return array[()] if array.ndim == 0 else array


def write_state(path: files.PathLike, state: Any) -> None:
    """Writes the leaves of `state` to `path`, named by their place in it."""
    leaves = tree.flatten_with_path(state)
    arrays = {_name(parts): np.asarray(leaf) for parts, leaf in leaves}
    pathlib.Path(path).write_bytes(files.npz(arrays))


def read_state(path: files.PathLike, like: Any, keep: Sequence[str] = ()) -> Any:
    """Reads a state that `write_state` wrote, into a structure like `like`.

    Names that begin with one of `keep` are not read and stay as in `like`.
    """
    expected = [(_name(parts), leaf) for parts, leaf in tree.flatten_with_path(like)]
    kept = tuple(keep)
    stored = files.read_npz(path, lambda name: not name.startswith(kept))
    names = {name for name, _ in expected if not name.startswith(kept)}
    different = sorted(names ^ stored.keys())
    if different:
        raise StateMismatchError(
            f"The stored state and this process's state differ in `{different[0]}`"
            f" and {len(different) - 1} more; it was written by another process"
            " or model."
        )
    leaves = [
        _from_array(name, stored[name], leaf) if name in names else leaf
        for name, leaf in expected
    ]
    return tree.unflatten_as(like, leaves)


class ClientStates:
    """The states of all clients, in memory or in a directory."""

    def __init__(self, initial_state: Any, directory: Optional[files.PathLike] = None):
        """Begins with the initial state for every client."""
        self._initial_state = initial_state
        self._directory = None if directory is None else pathlib.Path(directory)
        self._in_memory: dict[str, Any] = {}
        # For each client, the name and the checksum of its file.
        self._index: dict[str, list[str]] = {}
        # Names of files that may not be on the disk yet.
        self._unsynced: set[str] = set()

    def load(self, client_ids: Sequence[str]) -> list[Any]:
        """Returns the states of some clients, in their order."""
        return [self._load_one(client_id) for client_id in client_ids]

    def _load_one(self, client_id: str) -> Any:
        if self._directory is None:
            return self._in_memory.get(client_id, self._initial_state)
        if client_id not in self._index:
            return self._initial_state
        path = self._directory / self._index[client_id][0]
        return read_state(path, like=self._initial_state)

    def store(self, client_ids: Sequence[str], states: Sequence[Any], round_num: int):
        """Keeps the states that clients had after a round, in the clients' order."""
        if self._directory is None:
            self._in_memory.update(zip(client_ids, states))
            return
        self._directory.mkdir(parents=True, exist_ok=True)
        for client_id, state in zip(client_ids, states):
            name = f"{_short_name(client_id)}-{round_num:06d}.npz"
            path = self._directory / name
            with files.atomic_path(path, is_waited_for=False) as temporary:
                write_state(temporary, state)
                digest = files.sha256(temporary)
            self._index[client_id] = [name, digest]
            self._unsynced.add(name)

    def write_index(self, path: pathlib.Path) -> None:
        """Writes a checkpoint's index of current files, after flushing these files."""
        if self._directory is not None and self._unsynced:
            for name, _ in self._index.values():
                if name in self._unsynced:
                    files.sync(self._directory / name)
            files.sync(self._directory)
            self._unsynced.clear()
        text = json.dumps(self._index, indent=1, sort_keys=True)
        path.write_text(text + "\n", "utf-8")

    def verify(self, index_path: pathlib.Path) -> None:
        """Compares all files that an index names with their checksums."""
        if self._directory is None:
            return
        for name, digest in _read_index(index_path).values():
            path = self._directory / name
            if not path.is_file():
                raise checkpoints.CheckpointDamagedError(
                    f"{path.parent.name}/{name} is missing"
                )
            if files.sha256(path) != digest:
                raise checkpoints.CheckpointDamagedError(
                    f"{path.parent.name}/{name} has changed since it was written"
                )

    def restore(self, index_path: pathlib.Path) -> None:
        """Restores the states that an index names."""
        self._index = _read_index(index_path)

    def delete_unnamed(self, index_paths: Iterable[pathlib.Path]) -> None:
        """Deletes the files that neither the given indices nor this object name."""
        if self._directory is None or not self._directory.is_dir():
            return
        named = {name for name, _ in self._index.values()}
        try:
            for path in index_paths:
                named.update(name for name, _ in _read_index(path).values())
        except checkpoints.CheckpointDamagedError:
            return  # The files that it names are not known; a resumption deletes it.
        for path in self._directory.iterdir():
            if path.name not in named:
                files.delete(path)


def _read_index(path: pathlib.Path) -> dict[str, list[str]]:
    try:
        index = files.read_json(path)
        return {client: [name, digest] for client, (name, digest) in index.items()}
    except (ValueError, TypeError):
        why = f"{path.name} is missing or no index"
        raise checkpoints.CheckpointDamagedError(why) from None


def _short_name(client_id: str) -> str:
    """Returns a file name for a client, whose id may have any characters."""
    return hashlib.sha256(client_id.encode("utf-8")).hexdigest()[:20]


class ProcessState:
    """The state of a process between two rounds.

    Attributes:
      server: What `process.next` takes and returns as its state.
    """

    def __init__(self, process: Process, directory: Optional[pathlib.Path]):
        """Begins with the initial state."""
        self._process = process
        self.server: Any = process.initialize()
        self._clients: Optional[ClientStates] = None
        if hasattr(process, "initial_client_state"):
            self._clients = ClientStates(
                process.initial_client_state(self.server), directory
            )
        # Not every process has it, and it may be None.
        self._get_all_clients_weights = getattr(
            process, "get_all_clients_weights", None
        )

    @property
    def weights_of(self) -> Optional[Callable[[str], Any]]:
        """A function to a client's own weights, if clients share no model."""
        states = self._clients
        if states is None or not hasattr(self._process, "is_local"):
            return None
        return lambda client_id: states.load([client_id])[0]

    @property
    def has_all_clients_weights(self) -> bool:
        """Whether the server keeps the mean of all clients' last models."""
        return self._get_all_clients_weights is not None

    def weights(self) -> Any:
        """Returns the server's model weights."""
        return self._process.get_model_weights(self.server)

    def all_clients_weights(self) -> Any:
        """Returns the mean of all clients' last models; None if there is none."""
        if self._get_all_clients_weights is None:
            return None
        return self._get_all_clients_weights(self.server)

    def train(
        self, cohort: Sequence[str], datasets: Sequence[Any], round_num: int
    ) -> Any:
        """Trains a round; returns the metrics of the process."""
        arguments = [self.server, datasets]
        if self._clients is not None:
            arguments.append(self._clients.load(cohort))
        output = self._process.next(*arguments)
        self.server = output.state
        if self._clients is not None:
            self._clients.store(cohort, output.client_states, round_num)
        return output.metrics

    def parts(self) -> dict[str, checkpoints.PartWriter]:
        """Returns the parts of a checkpoint of this state."""
        parts: dict[str, checkpoints.PartWriter] = {
            STATE: lambda path: write_state(path, self.server)
        }
        if self._clients is not None:
            parts[CLIENT_STATES] = self._clients.write_index
        return parts

    def verify(self, checkpoint: checkpoints.Checkpoint) -> None:
        """Checks the clients' states that a checkpoint names."""
        if self._clients is not None:
            self._clients.verify(checkpoint.part(CLIENT_STATES))

    def restore(self, checkpoint: checkpoints.Checkpoint) -> None:
        """Restores a checkpoint's state."""
        if self._clients is not None:
            self._clients.restore(checkpoint.part(CLIENT_STATES))
        self.server = read_state(checkpoint.part(STATE), like=self.server)

    def delete_unnamed(self, kept: Iterable[checkpoints.Checkpoint]) -> None:
        """Deletes clients' states that no kept checkpoint and not this state needs."""
        if self._clients is not None:
            self._clients.delete_unnamed(each.part(CLIENT_STATES) for each in kept)
