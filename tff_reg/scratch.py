"""A temporary folder for the internal files of this process and its libraries.

TensorFlow's AutoGraph writes a temporary file for each function that it translates, and
Python writes the bytecode to a folder beside it, which is never removed: hundreds of
files per run. Keras writes its settings to the user's home and reads them there, so
results would depend on them. Standard library only.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import glob
import os
import shutil
import tempfile
from typing import Optional

_PREFIX, _LOCK = "tff_reg-", "lock"
_folder: Optional[str] = None
_pid: Optional[int] = None


def use_own_folder() -> None:
    """Puts temporary files and Keras's settings in a folder removed with the process.

    Call it once, before TensorFlow is imported. `kill -9` leaves the folder, which the
    next process removes. A KERAS_HOME that the user has set stays.
    """
    global _folder, _pid
    _remove_those_of_the_dead()
    _folder = tempfile.mkdtemp(prefix=_PREFIX)
    _pid = os.getpid()
    # Locked before it gets its name. The system releases the lock with the process.
    lock = os.path.join(_folder, _LOCK)
    with contextlib.suppress(OSError):
        fcntl.flock(os.open(f"{lock}-", os.O_CREAT | os.O_RDWR), fcntl.LOCK_EX)
        os.rename(f"{lock}-", lock)
    tempfile.tempdir = _folder
    os.environ.setdefault("KERAS_HOME", _folder)
    atexit.register(remove)


def folder() -> Optional[str]:
    """Returns the folder; None if there is none."""
    return _folder


def remove() -> None:
    """Removes the folder, if it is this process's; called when Python ends."""
    if _folder is not None and _pid == os.getpid():
        shutil.rmtree(_folder, ignore_errors=True)


def _remove_those_of_the_dead() -> None:
    """Removes this user's folders whose locks no process holds."""
    for lock in glob.glob(f"{tempfile.gettempdir()}/{_PREFIX}*/{_LOCK}"):
        # It is locked, another user's, or has just been removed.
        with contextlib.suppress(OSError), open(lock, "r+b") as file:
            if os.fstat(file.fileno()).st_uid == os.getuid():
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(os.path.dirname(lock), ignore_errors=True)
