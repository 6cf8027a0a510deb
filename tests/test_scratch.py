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
    # A child of fork that ends leaves its parent the folder.
    "pid = os.fork()\n"
    "if pid: os.waitpid(pid, 0); assert (folder / 'sub' / 'file').exists()": 0,
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


def test_the_next_process_removes_the_folders_of_killed_ones_and_no_others(tmp_path):
    environment = {**os.environ, "TMPDIR": str(tmp_path)}

    def start(end):
        program = PROGRAM.format(end=f"print(folder, flush=True); {end}")
        options = dict(env=environment, stdout=subprocess.PIPE, text=True)
        process = subprocess.Popen([sys.executable, "-c", program], **options)
        return process, pathlib.Path(process.stdout.readline().strip())

    environment.pop("KERAS_HOME")
    running, kept = start("signal.pause()")
    killed, left = start("os.kill(os.getpid(), signal.SIGKILL)")
    killed.communicate()
    assert left.exists()
    # Of somebody who is about to begin, or of something else.
    (tmp_path / "tff_reg-begins").mkdir()
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "lock").touch()
    (tmp_path / "tff_reg-link").symlink_to(outside)
    ended, own = start("")
    ended.communicate()
    found = {path.name for path in tmp_path.iterdir()}
    assert found == {kept.name, "tff_reg-begins", "outside", "tff_reg-link"}
    assert (outside / "lock").exists() and (kept / "sub" / "file").exists()
    running.terminate()
    running.communicate()


def test_keras_writes_its_settings_there():
    assert tf.keras.backend.floatx() == "float32"
    folder = pathlib.Path(os.environ["KERAS_HOME"])
    assert (folder / "keras.json").exists()
    # Tests have such a folder, and the processes that they start are in it.
    assert pathlib.Path(tempfile.gettempdir()) in [folder, *folder.glob("*")]
    assert os.environ["TMPDIR"] == tempfile.gettempdir()
