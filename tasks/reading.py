"""Finding and reading the files of data sets, with errors of one sentence."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence

from tff_reg.lazy import np
from tff_reg.tasks.task_defaults import DataError, TaskDefaults


def find_folder(data_dir: str, names: Sequence[str], defaults: TaskDefaults) -> str:
    """Finds the folder of one of these names: in `data_dir`, or `data_dir` itself.

    Raises:
      DataError: If there is no such folder.
    """
    data_dir = os.path.normpath(data_dir)
    candidates = [os.path.join(data_dir, name) for name in names]
    if os.path.basename(os.path.abspath(data_dir)) in names:
        candidates.append(os.path.abspath(data_dir))
    for folder in candidates:
        if os.path.isdir(folder):
            return folder
    raise defaults.missing(f"There is no {' or '.join(names)} in {data_dir}")


def require(folder: str, names: Iterable[str], defaults: TaskDefaults) -> None:
    """Checks that a folder has these files or folders.

    Raises:
      DataError: If one is missing.
    """
    for name in names:
        if not os.path.exists(os.path.join(folder, name)):
            raise defaults.missing(f"{folder} has no {name}")


def read_rows(path: str, row_bytes: int) -> np.ndarray:
    """Reads a binary file of rows of equal length: uint8 [rows, row_bytes].

    Raises:
      DataError: If it cannot be read, is empty or ends within a row.
    """
    try:
        content = np.fromfile(path, np.uint8)
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror}).") from error
    if not content.size or content.size % row_bytes:
        raise DataError(
            f"{path} has {content.size} bytes, not a whole number of records of "
            f"{row_bytes}; it is cut off or a wrong file: unpack the download again."
        )
    return content.reshape(-1, row_bytes)


def read_lines(path: str) -> list[str]:
    """Reads the lines of a text file, stripped and without blank ones.

    Raises:
      DataError: If it cannot be read or is no text.
    """
    try:
        with open(path, encoding="utf-8") as file:
            return [line.strip() for line in file if line.strip()]
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror}).") from error
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not a text file.") from error


def folders_in(folder: str) -> list[str]:
    """Returns the sorted names of the folders in a folder, without hidden ones.

    Raises:
      DataError: If the folder cannot be read.
    """
    try:
        with os.scandir(folder) as entries:
            return sorted(
                entry.name
                for entry in entries
                if entry.is_dir() and not entry.name.startswith(".")
            )
    except OSError as error:
        raise DataError(f"{folder} cannot be read ({error.strerror}).") from error
