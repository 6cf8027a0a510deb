"""However a whole command ends, its processes and its hold on our pipe end with it."""

import os
import pathlib
import select
import signal
import subprocess
import sys
import time
import uuid

import pytest

ROOT = pathlib.Path(__file__).parents[1]
PATIENCE_SECONDS = 240
FLAGS = [
    "--process=fedavg",
    "--model=cnn",
    "--num_clients=4",
    "--clients_per_round=2",
    "--local_epochs=1",
    "--rounds_per_evaluation=1000",
]


def command():
    """bin/run, or what it comes to where another environment runs the tests."""
    if pathlib.Path(sys.prefix) == ROOT / ".venv":
        return [str(ROOT / "bin" / "run")]
    return [sys.executable, str(ROOT / "bin" / "run.py")]


def processes_with(mark):
    """The processes that have inherited `mark` in their environment."""
    found = []
    for folder in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            if mark.encode() in (folder / "environ").read_bytes():
                found.append(int(folder.name))
        except OSError:  # It has ended meanwhile, or is somebody else's.
            continue
    return found


class Run:
    """A running command whose stdout and stderr are one pipe to us."""

    def __init__(self, arguments):
        self.mark = f"mark-{uuid.uuid4()}"
        self.process = subprocess.Popen(
            [*command(), *FLAGS, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**os.environ, "TFF_REG_TEST_MARK": self.mark},
        )
        self.output = b""

    def read_until(self, text=None, seconds=PATIENCE_SECONDS):
        """Reads until `text` has come, or to the end of the pipe."""
        deadline = time.monotonic() + seconds
        pipe = self.process.stdout.fileno()
        while text is None or text not in self.output:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([pipe], [], [], left)[0]:
                pytest.fail(f"still open after {seconds} s: {self.output.decode()}")
            part = os.read(pipe, 65536)
            if not part:
                assert text is None, self.output.decode()
                return
            self.output += part

    def clean_up(self):
        self.process.kill()
        self.process.wait()
        for pid in processes_with(self.mark):
            os.kill(pid, signal.SIGKILL)


@pytest.fixture
def start(tmp_path):
    runs = []

    def start_run(*arguments):
        # The runtime that starts a process. In process there is none to be left.
        directory = f"--output_dir={tmp_path / 'run'}"
        runs.append(Run(["--runtime=native", directory, *arguments]))
        return runs[-1]

    yield start_run
    for run in runs:
        run.clean_up()


def test_pipe_and_processes_end_with_the_command(start):
    run = start("--total_rounds=1")
    run.read_until()

    assert run.process.wait(PATIENCE_SECONDS) == 0, run.output.decode()
    assert b"round 1/1" in run.output
    assert processes_with(run.mark) == []


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_pipe_and_processes_end_with_a_command_that_is_stopped(start, number):
    run = start("--total_rounds=100000")
    run.read_until(b"1/100000")
    run.process.send_signal(number)
    run.read_until(seconds=20)

    status = run.process.wait(PATIENCE_SECONDS)
    assert status in (-number, 128 + number)
    deadline = time.monotonic() + 20
    while processes_with(run.mark) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert processes_with(run.mark) == []
