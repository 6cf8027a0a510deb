"""Atomic file writes: a crash at any moment leaves the old file or the new one.

Every file of a run's directory is written under a temporary name, flushed to the
disk and renamed. A killed process leaves only files whose names begin with
`TEMPORARY_PREFIX`, which are never read.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import pathlib
import shutil
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, Union

from tff_reg.lazy import np
from tff_reg.settings import SettingError

TEMPORARY_PREFIX = ".tmp-tff_reg-"

PathLike = Union[str, "os.PathLike[str]"]


class DamagedError(ValueError):
    """Raised when a file is missing or damaged; names the file and the reason."""


def check_writable(path: PathLike, setting: str) -> None:
    """Checks that a file or a directory could be written at `path`; creates nothing."""
    try:
        # Fails if the working directory of this process has been deleted.
        whole = pathlib.Path(path).absolute()
        folder = next(each for each in (whole, *whole.parents) if each.is_dir())
        with tempfile.TemporaryFile(dir=folder, prefix=TEMPORARY_PREFIX):
            pass
    except OSError as error:
        raise _not_writable(path, setting, error) from error


def check_place(path: PathLike, setting: str) -> None:
    """Checks that `path` could be written to its directory, which must exist."""
    if not pathlib.Path(path).parent.is_dir():
        raise SettingError(setting, path, "there is no such directory.")
    check_writable(path, setting)


def make_directory(path: PathLike, setting: str) -> pathlib.Path:
    """Makes a directory and its parents if missing; checks that it is writable."""
    path = pathlib.Path(path)
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _not_writable(path, setting, error) from error
    check_writable(path, setting)
    return path


def _not_writable(path: PathLike, setting: str, error: OSError) -> SettingError:
    reason = f"it cannot be written to ({error.strerror}); give another one."
    return SettingError(setting, path, reason)


def sync(path: PathLike) -> None:
    """Flushes a file or a directory to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_tree(directory: PathLike) -> None:
    """Flushes a directory and everything in it to the disk."""
    for parent, _, names in os.walk(directory):
        for name in names:
            sync(os.path.join(parent, name))
        sync(parent)


@contextlib.contextmanager
def atomic_path(path: PathLike, is_waited_for: bool = True) -> Iterator[pathlib.Path]:
    """Yields a temporary path for a file or a directory; renames it on success."""
    path = pathlib.Path(path)
    temporary = path.with_name(f"{TEMPORARY_PREFIX}{os.getpid()}-{path.name}")
    delete(temporary)
    try:
        yield temporary
        if is_waited_for and temporary.is_dir():
            sync_tree(temporary)
        elif is_waited_for:
            sync(temporary)
        os.replace(temporary, path)
    except BaseException as error:
        delete(temporary)
        if isinstance(error, OSError) and error.errno and error.filename is None:
            raise OSError(error.errno, error.strerror, str(path)) from error
        raise
    if is_waited_for:
        sync(path.parent)


def write_bytes(path: PathLike, content: bytes) -> None:
    """Writes `content` to `path`, all of it or nothing."""
    with atomic_path(path) as temporary:
        temporary.write_bytes(content)


def write_text(path: PathLike, content: str) -> None:
    """Writes `content` to `path` as UTF-8, all of it or nothing."""
    write_bytes(path, content.encode("utf-8"))


def write_only(
    directory: PathLike,
    contents: Mapping[str, Union[str, bytes]],
    names: Collection[str],
) -> list[str]:
    """Writes files of a directory by name, and deletes the other `names` there.

    Returns:
      The names of the written files, in the order of `names`.
    """
    directory = pathlib.Path(directory)
    for name in {*names} - {*contents}:
        delete(directory / name)
    if contents:
        make_directory(directory, "output_dir")
        delete_leftovers(directory)
    for name, content in contents.items():
        write = write_text if isinstance(content, str) else write_bytes
        write(directory / name, content)  # type: ignore[arg-type]
    return sorted(contents, key=[*names].index)


def read_json(path: PathLike) -> dict[str, Any]:
    """Reads a JSON object."""
    try:
        found = json.loads(pathlib.Path(path).read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise DamagedError(f"{path} cannot be read ({error}).") from error
    if not isinstance(found, dict):
        raise DamagedError(f"{path} holds no object of JSON.")
    return found


def npz(arrays: Mapping[str, Any]) -> bytes:
    """Returns the bytes of an `.npz` file; the same arrays give the same bytes.

    NumPy does not write the file itself: on a full disk, the deletion of its file
    object prints a second error, which cannot be caught.
    """
    content = io.BytesIO()
    np.savez(content, **arrays)
    return content.getvalue()


def read_npz(
    path: PathLike, is_wanted: Callable[[str], bool] = lambda name: True
) -> dict[str, np.ndarray]:
    """Reads arrays of an `.npz` file, without pickles, and verifies their checksums."""
    try:
        with np.load(path, allow_pickle=False) as stored:
            return {name: stored[name] for name in stored.files if is_wanted(name)}
    # NumPy and zipfile raise almost any exception for damaged files, and a MemoryError
    # if a header claims a huge array.
    except Exception as error:  # pylint: disable=broad-except
        raise DamagedError(
            f"{path} is no .npz file of plain arrays that can be read ({error})."
        ) from error


def delete(path: PathLike) -> None:
    """Deletes a file, or a directory with its contents, if it exists."""
    path = pathlib.Path(path)
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def delete_directory_at_once(directory: PathLike) -> None:
    """Renames a directory, then deletes it: no crash leaves half of it by its name."""
    directory = pathlib.Path(directory)
    doomed = directory.with_name(
        f"{TEMPORARY_PREFIX}{os.getpid()}-deleted-{directory.name}"
    )
    delete(doomed)
    os.replace(directory, doomed)
    delete(doomed)


def delete_leftovers(directory: PathLike) -> None:
    """Deletes what killed processes left half-written in `directory`."""
    for path in pathlib.Path(directory).glob(f"{TEMPORARY_PREFIX}*"):
        delete(path)


def state(path: PathLike) -> list[int]:
    """Returns the number of files and folders at a path, their bytes, the newest time.

    Links are followed, to each folder once. Another state tells that files were
    changed, renamed, added or removed.
    """
    found, paths = [], [os.fspath(path)]
    known = {os.path.realpath(path)}
    for folder, inner, names in os.walk(path, followlinks=True):
        paths += [os.path.join(folder, name) for name in (*inner, *names)]
        reals = {os.path.realpath(os.path.join(folder, name)): name for name in inner}
        inner[:] = [reals[real] for real in reals.keys() - known]
        known |= reals.keys()
    for each in paths:
        with contextlib.suppress(OSError):  # Whoever reads what is missing tells it.
            found.append(os.stat(each))
    times = [max(each.st_mtime_ns, each.st_ctime_ns) for each in found]
    return [len(found), sum(each.st_size for each in found), max(times, default=0)]


def sha256(path: PathLike) -> str:
    """Returns the SHA-256 of a file's bytes in hexadecimal."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
