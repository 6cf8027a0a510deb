"""Checkpoints: one directory per round, committed atomically, verified when read.

    checkpoints/round_000012/
        manifest.json       the round, and size and SHA-256 of every file
        server_state.npz    the parts, by name
        metrics.csv

A checkpoint is written under a temporary name and renamed when every byte is on
the disk, so a directory with the name of a checkpoint was complete once. Later
damage, by the disk or by copying, is found by the manifest, and the previous
checkpoint is used. Parts are files or directories: data that must change together
with the server state, such as the states of clients, are one more part.
"""

from __future__ import annotations

import dataclasses
import json
import pathlib
import re
from collections.abc import Callable, Mapping
from typing import Optional

from tff_reg import files

_MANIFEST = "manifest.json"
_NAME = re.compile(r"round_(\d{6,})$")

PartWriter = Callable[[pathlib.Path], None]


class CheckpointDamagedError(ValueError):
    """Raised when a checkpoint's files are not what its manifest says."""


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """A checkpoint on the disk: the state of a run after `round_num` rounds."""

    path: pathlib.Path
    round_num: int

    def part(self, name: str) -> pathlib.Path:
        """Returns the path of the part called `name`."""
        return self.path / name

    def verify(self) -> None:
        """Compares every file with the manifest; raises a CheckpointDamagedError."""
        try:
            manifest = files.read_json(self.path / _MANIFEST)
            expected = dict(manifest["files"])
            round_num = manifest["round_num"]
        except (ValueError, KeyError, TypeError) as error:
            raise CheckpointDamagedError(f"{_MANIFEST} cannot be read") from error
        if round_num != self.round_num:
            raise CheckpointDamagedError(f"{_MANIFEST} is of round {round_num}")
        for name in sorted(expected.keys() | _files_in(self.path)):
            if name not in expected:
                raise CheckpointDamagedError(f"{name} does not belong there")
            path = self.path / name
            if not path.is_file():
                raise CheckpointDamagedError(f"{name} is missing")
            if _describe(path) != expected[name]:
                raise CheckpointDamagedError(f"{name} has changed since it was written")


def _files_in(directory: pathlib.Path) -> set[str]:
    return {
        path.relative_to(directory).as_posix()
        for path in directory.rglob("*")
        if path.is_file() and path != directory / _MANIFEST
    }


def _describe(path: pathlib.Path) -> dict:
    return {"bytes": path.stat().st_size, "sha256": files.sha256(path)}


class CheckpointStore:
    """The checkpoints of one run."""

    def __init__(self, directory: files.PathLike, *, keep: int = 3):
        """Initialises the store; nothing is read or written yet."""
        self._directory = pathlib.Path(directory)
        self._keep = keep

    def all(self) -> list[Checkpoint]:
        """Returns all checkpoints, oldest first, without verifying them."""
        if not self._directory.is_dir():
            return []
        found = []
        for path in self._directory.iterdir():
            match = _NAME.match(path.name)
            if match and path.is_dir():
                found.append(Checkpoint(path, int(match.group(1))))
        return sorted(found, key=lambda checkpoint: checkpoint.round_num)

    def latest(
        self,
        report: Callable[[str], None] = lambda line: None,
        also_verify: Callable[[Checkpoint], None] = lambda checkpoint: None,
    ) -> Optional[Checkpoint]:
        """Returns the newest checkpoint that is whole; damaged ones are deleted.

        `report` gets a sentence for each; `also_verify` looks at files elsewhere.
        """
        found = None
        for checkpoint in reversed(self.all()):
            try:
                checkpoint.verify()
                if found is None:
                    also_verify(checkpoint)
            except CheckpointDamagedError as error:
                then = "using the one before it" if found is None else "it is deleted"
                report(
                    f"The checkpoint of round {checkpoint.round_num} is damaged"
                    f" ({error}): {then}."
                )
                files.delete_directory_at_once(checkpoint.path)
            else:
                found = found or checkpoint
        return found

    def save(self, round_num: int, parts: Mapping[str, PartWriter]) -> Checkpoint:
        """Writes a checkpoint with all its parts atomically, and deletes old ones.

        Checkpoints of this or a later round go, since the run was continued from an
        earlier one. Each part is a function that writes a file or directory to a path.
        """
        self._directory.mkdir(parents=True, exist_ok=True)
        for checkpoint in self.all():
            if checkpoint.round_num >= round_num:
                files.delete_directory_at_once(checkpoint.path)
        path = self._directory / f"round_{round_num:06d}"
        with files.atomic_path(path) as temporary:
            temporary.mkdir()
            for name, write in parts.items():
                write(temporary / name)
            manifest = {
                "round_num": round_num,
                "files": {
                    name: _describe(temporary / name)
                    for name in sorted(_files_in(temporary))
                },
            }
            (temporary / _MANIFEST).write_text(json.dumps(manifest, indent=1), "utf-8")
        for checkpoint in self.all()[: -self._keep]:
            files.delete_directory_at_once(checkpoint.path)
        return Checkpoint(path, round_num)
