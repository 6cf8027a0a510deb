"""However a whole command ends, its processes and its hold on our pipe end with it."""

import contextlib
import os
import pathlib
import select
import signal
import subprocess
import sys

import pytest

from tests import commands

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
    if pathlib.Path(sys.prefix) == commands.ROOT / ".venv":
        return [str(commands.ROOT / "bin" / "run")]
    return commands.command_of("run")


class Run:
    """A running command whose stdout and stderr are one pipe to us."""

    def __init__(self, arguments):
        self.environment = commands.mark()
        self.process = subprocess.Popen(
            [*command(), *FLAGS, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=self.environment,
        )
        self.output = b""

    def read_until(self, text=None):
        """Reads until `text` has come, or to the end of the pipe."""
        pipe = self.process.stdout.fileno()
        while text is None or text not in self.output:
            if not select.select([pipe], [], [], commands.PATIENCE_SECONDS)[0]:
                pytest.fail(f"still open: {self.output.decode()}")
            part = os.read(pipe, 65536)
            if not part:
                assert text is None, self.output.decode()
                return
            self.output += part

    def left(self):
        """The processes that are left of it."""
        return commands.processes_with(self.environment)

    def clean_up(self):
        self.process.kill()
        self.process.communicate()
        for pid in self.left():
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


@pytest.mark.slow
def test_pipe_and_processes_end_with_the_command(start):
    run = start("--total_rounds=1")
    run.read_until()

    assert run.process.wait(commands.PATIENCE_SECONDS) == 0, run.output.decode()
    assert b"round 1/1" in run.output
    assert run.left() == []


@pytest.mark.parametrize(
    "number",
    [signal.SIGKILL, pytest.param(signal.SIGINT, marks=pytest.mark.slow)],
)
def test_pipe_and_processes_end_with_a_command_that_is_stopped(start, number):
    run = start("--total_rounds=100000")
    run.read_until(b"1/100000")
    run.process.send_signal(number)
    run.read_until()

    assert run.process.wait(commands.PATIENCE_SECONDS) in (-number, 128 + number)
    for pid in run.left():
        with contextlib.suppress(ProcessLookupError):
            descriptor = os.pidfd_open(pid)
            # What has ended can be read.
            assert select.select([descriptor], [], [], commands.PATIENCE_SECONDS)[0]
            os.close(descriptor)
    assert run.left() == []
