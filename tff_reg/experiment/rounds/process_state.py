"""The state of a learning process between two rounds, and its files.

A server state, or any other structure of arrays, is one `.npz` file.
`tff.program.FileProgramStateManager` writes a SavedModel, which for the state of a
ResNet-56 (260 arrays, 2.4 MB) takes 1.25 s per save and 1.1 s per load, more than a
round of a small experiment; the same arrays as `.npz` take 0.01 s, the same state gives
the same bytes, and nothing is added to TensorFlow's graphs. The structure itself is not
stored: the reader takes it from `process.initialize()`.

The states of clients are such files, too: one for each client that took part. Only a
checkpoint waits for the disk, and only the states of a round's cohort are in memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Optional

from tff_reg import files, lazy
from tff_reg.experiment.rounds import checkpoints
from tff_reg.lazy import np, tree

if TYPE_CHECKING:
    pass

process_lib = lazy.module("tff_reg.training.process")

# The part of a checkpoint.
STATE = "server_state.npz"
NO_MODEL = "the process has no model that clients share, but one for each client."


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


def written(state: Any) -> bytes:
    """Returns the bytes of the leaves of `state`, named by their place in it."""
    leaves = tree.flatten_with_path(state)
    return files.npz({_name(parts): np.asarray(leaf) for parts, leaf in leaves})


def read_state(path: files.PathLike, like: Any, but: Sequence[str] = ()) -> Any:
    """Reads a file of the bytes of `written`, into a structure like `like`.

    Names that begin with one of `but` are not read and stay as in `like`.
    """
    expected = [(_name(parts), leaf) for parts, leaf in tree.flatten_with_path(like)]
    kept = tuple(but)
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
    """The states of all clients, in memory or in a store.

    Attributes:
      names: For each client that took part, the name of its file in the store.
    """

    def __init__(
        self, initial_state: Any, store: Optional[checkpoints.CheckpointStore] = None
    ):
        """Begins with the initial state for every client."""
        self._initial_state = initial_state
        self._store = store
        self._in_memory: dict[str, Any] = {}
        self.names: dict[str, str] = {}

    def load(self, client_ids: Sequence[str]) -> list[Any]:
        """Returns the states of some clients, in their order."""
        return [self._load_one(client_id) for client_id in client_ids]

    def _load_one(self, client_id: str) -> Any:
        if self._store is None or client_id not in self.names:
            return self._in_memory.get(client_id, self._initial_state)
        path = self._store.directory / self.names[client_id]
        return read_state(path, like=self._initial_state)

    def store(self, client_ids: Sequence[str], states: Sequence[Any]) -> None:
        """Keeps the states that clients had after a round, in the clients' order."""
        for client_id, state in zip(client_ids, states):
            if self._store is None:
                self._in_memory[client_id] = state
            else:
                self.names[client_id] = self._store.add(written(state))


class Local:
    """The process `local`: FedAvg over cohorts of one, the model a client's state.

    A client starts a round with the model after its last one; the server's model stays
    the initial one.
    """

    shares_model = False

    def __init__(self, process: Any):
        """Wraps FedAvg whose server takes the clients' mean as its next model."""
        self._process = process
        self.initial_client_state = process.get_model_weights

    def get_client_weights(self, state: Any, client_state: Any) -> Any:
        """Returns a client's model."""
        return client_state

    def __getattr__(self, name: str) -> Any:
        return getattr(self._process, name)

    def next(
        self, state: Any, client_data: Sequence[Any], client_states: Sequence[Any]
    ) -> Any:
        """Trains a cohort, one client at a time."""
        outputs = [
            self._process.next(state._replace(global_model_weights=own), [examples])
            for own, examples in zip(client_states, client_data)
        ]
        states = [self._process.get_model_weights(each.state) for each in outputs]
        metrics = [each.metrics for each in outputs]
        counts = [each["client_work"]["train"]["num_examples"] for each in metrics]

        def together(*values: Any) -> Any:
            if np.asarray(values).dtype.kind in "biu":
                return sum(values)  # Counts.
            weights = counts if sum(counts) else None
            return np.average(values, weights=weights).astype(np.float32)

        first = state.global_model_weights
        return process_lib.StatefulLearningProcessOutput(
            outputs[-1].state._replace(global_model_weights=first),
            states,
            tree.map_structure(together, *metrics),
        )
