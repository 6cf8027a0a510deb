"""A temporary folder for the internal files of this process and its libraries.

TensorFlow's AutoGraph leaves Python's bytecode of each function that it translates in
the folder for temporary files. Keras writes its settings to the user's home and reads
them there, so results would depend on them. Standard library only.
"""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from typing import Optional

_folder: Optional[str] = None


def use_own_folder() -> None:
    """Puts temporary files and Keras's settings in a folder removed with the process.

    Call it once, before TensorFlow is imported. A KERAS_HOME that the user has set
    stays.
    """
    global _folder
    _folder = tempfile.mkdtemp(prefix="tff_reg-")
    tempfile.tempdir = _folder
    os.environ.setdefault("KERAS_HOME", _folder)
    atexit.register(remove)


def folder() -> Optional[str]:
    """Returns the folder; None if there is none."""
    return _folder


def remove() -> None:
    """Removes the folder; called when Python ends."""
    if _folder is not None:
        shutil.rmtree(_folder, ignore_errors=True)
