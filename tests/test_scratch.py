"""What a process writes for itself goes with it."""

import os
import pathlib
import subprocess
import sys
import tempfile

import pytest
import tensorflow as tf

PROGRAM = """
import os, pathlib, signal, sys, tempfile
from tff_reg import scratch
from tff_reg import interruption

stop = interruption.Interruption()
stop.take_over()
scratch.use_own_folder()
folder = pathlib.Path(tempfile.gettempdir())
(folder / "sub").mkdir()
(folder / "sub" / "file").touch()
assert os.environ["KERAS_HOME"] == str(folder)
{end}
"""
ENDS = {
    "": 0,
    "sys.exit(3)": 3,
    "1 / 0": 1,
    "os.kill(os.getpid(), signal.SIGINT); signal.pause()": 130,
    "os.kill(os.getpid(), signal.SIGTERM); signal.pause()": 143,
}


@pytest.mark.parametrize("end", ENDS)
def test_the_folder_goes_with_the_process_however_it_ends(end, tmp_path):
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    environment.pop("KERAS_HOME")
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(end=end)],
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == ENDS[end], done.stderr
    assert not list(tmp_path.iterdir())


def test_keras_writes_its_settings_there():
    assert tf.keras.backend.floatx() == "float32"
    folder = pathlib.Path(os.environ["KERAS_HOME"])
    assert (folder / "keras.json").exists()
    # Tests have such a folder, and the processes that they start are in it.
    assert pathlib.Path(tempfile.gettempdir()) in [folder, *folder.glob("*")]
    assert os.environ["TMPDIR"] == tempfile.gettempdir()
