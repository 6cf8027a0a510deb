"""A folder for what this process and the libraries below us write for themselves.

TensorFlow's AutoGraph writes a temporary file for each function that it translates, and
Python the bytecode into a folder beside it, which nobody removes: hundreds of files a
run. Keras writes its settings to the user's home, and takes them from there, so that
results would depend on it. Standard library only.
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
    """Lets temporary files, and Keras's, be in a folder that goes with the process.

    To be called once, before TensorFlow is imported. `kill -9` leaves the folder, which
    the next process removes. Where the user has set KERAS_HOME, that stays.
    """
    global _folder, _pid
    _remove_those_of_the_dead()
    _folder = tempfile.mkdtemp(prefix=_PREFIX)
    _pid = os.getpid()
    # Locked before it has its name. The system lets go of it with the process.
    lock = os.path.join(_folder, _LOCK)
    with contextlib.suppress(OSError):
        fcntl.flock(os.open(f"{lock}-", os.O_CREAT | os.O_RDWR), fcntl.LOCK_EX)
        os.rename(f"{lock}-", lock)
    tempfile.tempdir = _folder
    os.environ.setdefault("KERAS_HOME", _folder)
    atexit.register(remove)


def folder() -> Optional[str]:
    """The folder, if there is one."""
    return _folder


def remove() -> None:
    """Removes the folder, if it is this process's; called when Python ends."""
    if _folder is not None and _pid == os.getpid():
        shutil.rmtree(_folder, ignore_errors=True)


def _remove_those_of_the_dead() -> None:
    """Removes this user's folders whose locks nobody holds."""
    for lock in glob.glob(f"{tempfile.gettempdir()}/{_PREFIX}*/{_LOCK}"):
        # Somebody holds it, it is another user's, or it has just been removed.
        with contextlib.suppress(OSError), open(lock, "r+b") as file:
            if os.fstat(file.fileno()).st_uid == os.getuid():
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(os.path.dirname(lock), ignore_errors=True)
