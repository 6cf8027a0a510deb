"""A folder for what this process and the libraries below us write for themselves.

TensorFlow's AutoGraph writes a temporary file for each function that it translates, and
Python the bytecode into a folder beside it, which nobody removes: hundreds of files a
run. Keras writes its settings to the user's home, and takes them from there, so that
results would depend on it. Standard library only.
"""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from typing import Optional

_folder: Optional[str] = None
_pid: Optional[int] = None


def use_own_folder() -> None:
    """Lets temporary files, and Keras's, be in a folder that goes with the process.

    To be called once, before TensorFlow is imported. `kill -9` leaves the folder. Where
    the user has set KERAS_HOME, that stays.
    """
    global _folder, _pid
    _folder = tempfile.mkdtemp(prefix="tff_reg-")
    _pid = os.getpid()
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
