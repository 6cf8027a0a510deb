"""Checkpoints: manifests of files that are named by the SHA-256 of their bytes.

    checkpoints/
        round_000012.json    the round; of its parts and clients, the files' names
        0f3a... .npz         a part, such as the server's state, or a client's state

A file is never changed, and what two checkpoints have in common is there once. A
manifest is written under a temporary name and renamed when every byte that it names is
on the disk, so all that it names was there once. Later damage, by the disk or by
copying, is found by the names, and the previous checkpoint is used. After a crash there
may be files, also incomplete ones, that no manifest names: they are deleted before
anything else is written.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import pathlib
import re
from collections.abc import Callable, Mapping
from typing import Optional

from tff_reg import files

_NAME = re.compile(r"round_(\d{6,})\.json$")
_SUFFIX = r"(\.\w+)?$"
_FILE = re.compile(r"[0-9a-f]{64}" + _SUFFIX)


class CheckpointDamagedError(ValueError):
    """Raised when a checkpoint's files are not what its manifest says."""


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """A checkpoint on the disk: the state of a run after `round_num` rounds."""

    path: pathlib.Path
    round_num: int

    @functools.cached_property
    def _manifest(self) -> dict[str, dict[str, str]]:
        try:
            found = files.read_json(self.path)
            manifest = {name: {**found[name]} for name in ("parts", "clients")}
            for names in manifest.values():
                if not all(map(_FILE.match, names.values())):
                    raise ValueError(names)
        except (ValueError, KeyError, TypeError) as error:
            what = f"{self.path.name} cannot be read"
            raise CheckpointDamagedError(what) from error
        if found.get("round_num") != self.round_num:
            what = f"{self.path.name} is of round {found.get('round_num')}"
            raise CheckpointDamagedError(what)
        return manifest

    @property
    def parts(self) -> Mapping[str, str]:
        """The names of the parts' files, by part; raises a CheckpointDamagedError."""
        return self._manifest["parts"]

    @property
    def clients(self) -> Mapping[str, str]:
        """The names of the files of the clients' states, by client, likewise."""
        return self._manifest["clients"]

    def part(self, name: str) -> pathlib.Path:
        """Returns the path of the part called `name`, which it must have."""
        return self.path.parent / self.parts[name]

    def verify(self, *, with_clients: bool = True) -> None:
        """Compares every file with its name; raises a CheckpointDamagedError."""
        named = {**self.parts}
        if with_clients:
            named |= {f"the state of {n}": each for n, each in self.clients.items()}
        for name, file in named.items():
            path = self.path.parent / file
            if not path.is_file():
                raise CheckpointDamagedError(f"{name} is missing")
            if files.sha256(path) != path.stem:
                raise CheckpointDamagedError(f"{name} has changed since it was written")


def _suffix(name: str) -> str:
    found = re.search(_SUFFIX, name)
    return found[0] if found else ""


class CheckpointStore:
    """The checkpoints of one run."""

    def __init__(self, directory: files.PathLike, *, keep: int = 3):
        """Initialises the store; nothing is read or written yet."""
        self.directory = pathlib.Path(directory)
        self._keep = keep
        # Names of files that may not be on the disk yet.
        self._unsynced: set[str] = set()

    def all(self) -> list[Checkpoint]:
        """Returns all checkpoints, oldest first, without verifying them."""
        if not self.directory.is_dir():
            return []
        found = []
        for path in self.directory.iterdir():
            if match := _NAME.match(path.name):
                found.append(Checkpoint(path, int(match.group(1))))
        return sorted(found, key=lambda checkpoint: checkpoint.round_num)

    def has_folders(self) -> bool:
        """Whether there are checkpoints as earlier versions wrote them, folders."""
        return any(path.is_dir() for path in self.directory.glob("round_*"))

    def latest(
        self, report: Callable[[str], None] = lambda line: None
    ) -> Optional[Checkpoint]:
        """Returns the newest checkpoint that is whole; damaged ones are deleted.

        So is what no checkpoint names. `report` gets a sentence for each damaged one.
        """
        found = None
        for checkpoint in reversed(self.all()):
            try:
                checkpoint.verify()
            except CheckpointDamagedError as error:
                then = "using the one before it" if found is None else "it is deleted"
                report(
                    f"The checkpoint of round {checkpoint.round_num} is damaged"
                    f" ({error}): {then}."
                )
                files.delete(checkpoint.path)
            else:
                found = found or checkpoint
        self._delete_unnamed()
        return found

    def add(self, content: bytes, suffix: str = ".npz") -> str:
        """Writes a file, which the disk may not have yet; returns its name."""
        name = hashlib.sha256(content).hexdigest() + suffix
        path = self.directory / name
        self.directory.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            with files.atomic_path(path, is_waited_for=False) as temporary:
                temporary.write_bytes(content)
            self._unsynced.add(name)
        return name

    def save(
        self,
        round_num: int,
        parts: Mapping[str, bytes],
        clients: Mapping[str, str] = {},
    ) -> Checkpoint:
        """Commits a checkpoint at once, and deletes old ones.

        Checkpoints of this or a later round go, since the run was continued from an
        earlier one.

        Args:
          round_num: The round.
          parts: The bytes of each part.
          clients: The name of the file of each client's state, from `add`.

        Returns:
          The checkpoint.
        """
        self.directory.mkdir(parents=True, exist_ok=True)
        names = {
            name: self.add(content, _suffix(name)) for name, content in parts.items()
        }
        for name in {*names.values(), *clients.values()} & self._unsynced:
            files.sync(self.directory / name)
        files.sync(self.directory)
        self._unsynced.clear()
        for checkpoint in self.all():
            if checkpoint.round_num >= round_num:
                files.delete(checkpoint.path)
        manifest = {"round_num": round_num, "parts": names, "clients": {**clients}}
        path = self.directory / f"round_{round_num:06d}.json"
        text = json.dumps(manifest, indent=1, sort_keys=True)
        files.write_text(path, text + "\n")
        for checkpoint in self.all()[: -self._keep]:
            files.delete(checkpoint.path)
        self._delete_unnamed()
        return Checkpoint(path, round_num)

    def _delete_unnamed(self) -> None:
        """Deletes what no checkpoint names, as a crash may have left it."""
        if not self.directory.is_dir():
            return
        found = self.all()
        kept = {each.path.name for each in found}
        try:
            for each in found:
                kept |= {*each.parts.values(), *each.clients.values()}
        except CheckpointDamagedError:
            return  # What it names is not known; a resumption deletes it.
        for path in self.directory.iterdir():
            if path.name not in kept:
                files.delete(path)
