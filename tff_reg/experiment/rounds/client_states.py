"""The states of clients between rounds, kept by the driver.

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
from collections.abc import Iterable, Sequence
from typing import Any, Optional

from tff_reg import files
from tff_reg.experiment.rounds import checkpoints, state_file


class ClientStates:
    """The states of all clients, in memory or in a directory."""

    def __init__(self, initial_state: Any, directory: Optional[files.PathLike] = None):
        """Begins with the initial state for every client.

        Args:
          initial_state: The state of a client that never took part.
          directory: Where the states are kept, made when first needed; None keeps them
            in memory.
        """
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
        return state_file.read_state(path, like=self._initial_state)

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
                state_file.write_state(temporary, state)
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
        """Compares all files that an index names with their checksums.

        Raises:
          checkpoints.CheckpointDamagedError: If one is missing or different.
        """
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
