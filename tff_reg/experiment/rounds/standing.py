"""What there is of a run that is asked for, and whether it is that run.

TensorFlow is loaded where only it can read the data.
"""

from __future__ import annotations

import functools
import hashlib
import os
from collections.abc import Iterator
from typing import Any, Optional

from tff_reg.data import digests
from tff_reg.experiment.config.run_config import ResolvedConfig
from tff_reg.experiment.config.task_settings import TaskSettings
from tff_reg.experiment.rounds import directory as directory_lib, summary as summary_lib

# In `config.json`: of the files whose examples a run has.
FILES = "data_files"


def begun(config: ResolvedConfig) -> directory_lib.RunDirectory:
    """The directory of a run.

    Args:
      config: What the run does.

    Returns:
      It, in which there is nothing, or a run that can be continued to the one asked
      for, or is to be overwritten.

    Raises:
      DirectoryError: If there is something else, or another run.
    """
    directory = directory_lib.RunDirectory(config.output_dir)
    if not config.overwrite:
        values = config.dump()
        directory.check_settings(values)
        directory.check_rounds(values)
    return directory


def finished(config: ResolvedConfig, tasks: Any) -> Optional[dict[str, Any]]:
    """The summary of a run that there is nothing left to do of.

    Args:
      config: What the run does.
      tasks: The module `tasks`, or what has its `digests`, if it has any.

    Returns:
      The summary, with the rounds and targets wanted now; None if there is something to
      do.

    Raises:
      DirectoryError: If its directory holds something else, or another run, or one on
        other data.
    """
    directory = begun(config)
    if config.overwrite:
        return None
    summary = summary_lib.of_finished_run(directory, config.dump())
    if summary is not None:
        _check_files(directory, config, tasks)
    return summary


def files_of(config: ResolvedConfig) -> Optional[str]:
    """The state of the files that a user has named, without their contents.

    Where it is what it was, nothing has to be read to know that the data are the same:
    whatever writes to a file or puts another in its place changes it, also where size
    and time of the contents are kept.

    Args:
      config: What a run does.

    Returns:
      A digest; None where no file is named.
    """
    named = [path for path in (config.data_dir, config.split_file) if path]
    digest = hashlib.sha256()
    for path in named:
        for name, found in _states_in(path):
            state = found and (found.st_size, found.st_ino, found.st_ctime_ns)
            digest.update(f"{name}\0{state}\n".encode("utf-8", "surrogateescape"))
    return digest.hexdigest() if named else None


def _states_in(path: str) -> Iterator[tuple[str, Optional[os.stat_result]]]:
    """Names and states of a file, or of a folder and all below it, also by links."""
    yield "", _state(path)
    seen = set()
    for where, folders, names in os.walk(path, followlinks=True):
        real = os.path.realpath(where)
        if real in seen:
            # A link back, or a second one.
            folders.clear()
            continue
        seen.add(real)
        folders.sort()
        for name in sorted([*folders, *names]):
            inner = os.path.join(where, name)
            yield os.path.relpath(inner, path), _state(inner)


def _state(path: str) -> Optional[os.stat_result]:
    try:
        return os.stat(path)
    except OSError:
        # As of a link to nothing.
        return None


def _check_files(
    directory: directory_lib.RunDirectory, config: ResolvedConfig, tasks: Any
) -> None:
    """Compares a finished run's data with those that are named now."""
    made = directory.config or {}
    if not digests.NAMES.keys() & made.keys() or not hasattr(tasks, "digests"):
        return
    state = files_of(config)
    if state == made.get(FILES):
        return
    tasks.check_data(config.task, config.data_dir)
    settings = tuple(sorted(config.part(TaskSettings).items()))
    directory.check_settings(_digests(tasks.digests, settings, state))


@functools.lru_cache(maxsize=16)
def _digests(make: Any, settings: tuple[tuple[str, Any], ...], state: Any) -> Any:
    del state  # Other contents of the same files.
    return make(**dict(settings))
