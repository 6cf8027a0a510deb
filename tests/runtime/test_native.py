"""The C++ worker ends when we end, and says nothing on our pipes."""

import os
import signal
import subprocess
import sys
import textwrap
import time

import pytest

_SCRIPT = textwrap.dedent("""
    import sys, time
    from tff_reg import quiet, runtime
    quiet.silence()
    runtime.use("native")
    import numpy as np
    import tensorflow_federated as tff
    assert tff.tensorflow.computation(lambda x: x + 1, np.int32)(1) == 2
    print(runtime.worker_pid(), flush=True)
    if sys.argv[1] == "wait":
        time.sleep(600)
""")


def _start(mode):
    return subprocess.Popen(
        [sys.executable, "-c", _SCRIPT, mode],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def _is_running(pid):
    """Whether there is a process `pid` that is more than an entry in the table."""
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii") as stat:
            return stat.read().rpartition(")")[2].split()[0] not in ("Z", "X")
    except FileNotFoundError:
        return False


def _ends(pid, seconds=10.0):
    deadline = time.monotonic() + seconds
    while _is_running(pid):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="needs /proc")
@pytest.mark.parametrize(
    # Python does as little about SIGTERM as it can do about SIGKILL.
    "number", [signal.SIGKILL, signal.SIGINT], ids=lambda n: n.name
)
def test_the_worker_ends_when_python_is_killed(number):
    process = _start("wait")
    try:
        worker = int(process.stdout.readline())
        assert _is_running(worker)
        process.send_signal(number)
        # The pipes close too, although the worker would outlive Python otherwise.
        process.communicate(timeout=30)
        assert _ends(worker)
    finally:
        process.kill()


def test_an_ordinary_end_is_silent_and_ends_the_worker():
    process = _start("end")
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    assert "Exception ignored" not in err
    assert err.strip() == ""
    assert _ends(int(out))
