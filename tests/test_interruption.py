import signal
import subprocess
import sys

import pytest

# The main thread is where Python's own handlers cannot run: inside one long C call,
# without the interpreter's lock, as TensorFlow's are.
PROGRAM = """
import hashlib
from tff_reg import interruption

stop = interruption.Interruption()
stop.take_over()
stop.say(lambda: "it was {what}")
stop.before_exit(lambda: print("cleaned up"))
{cleanup}
print("ready", flush=True)
hashlib.pbkdf2_hmac('sha256', b'a', b'b', 2**31 - 1)  # Half an hour.
print("came to its end")
"""


@pytest.fixture
def interrupt():
    processes = []

    def start(number, cleanup=""):
        program = PROGRAM.format(what="early", cleanup=cleanup)
        process = subprocess.Popen(
            [sys.executable, "-c", program],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        processes.append(process)
        assert process.stdout.readline() == "ready\n"
        process.send_signal(number)
        return process.communicate(), process.returncode

    yield start
    for process in processes:
        process.kill()
        process.wait()


@pytest.mark.parametrize(
    "number, status, name",
    [(signal.SIGINT, 130, "Interrupted"), (signal.SIGTERM, 143, "Terminated")],
)
def test_ends_at_once_after_cleaning_up(interrupt, number, status, name):
    (out, err), returned = interrupt(number)
    assert returned == status
    assert out == "cleaned up\n"
    assert err == f"{name}: it was early.\n"


def test_ends_although_a_cleanup_fails_or_never_returns(interrupt):
    failing = "stop.before_exit(lambda: 1 / 0)"
    assert interrupt(signal.SIGINT, failing)[1] == 130
    waiting = "import threading; stop.before_exit(threading.Event().wait)"
    assert interrupt(signal.SIGINT, waiting)[1] == 130
