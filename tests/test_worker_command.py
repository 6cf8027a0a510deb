"""`bin/worker`, and a `bin/run` whose workers are killed."""

import contextlib
import json
import os
import pathlib
import re
import signal
import socket
import subprocess

import portpicker
import pytest

from tests import commands
from tff_reg.commands import run as run_command, worker as worker_command
from tff_reg.runtime import service

_FLAGS = [
    "--process=fedavg",
    "--model=cnn",
    "--num_clients=8",
    "--clients_per_round=2",
    "--local_epochs=1",
    "--runtime=remote",
    "--clients_in_parallel=1",
    "--rounds_per_evaluation=1000000",
]


def _read_until(process, text):
    """Reads lines until one has `text`."""
    for line in process.stdout:
        if text in line:
            return line
    raise AssertionError(process.stderr.read())


@pytest.fixture
def start():
    """Starts commands, and ends them in the end."""
    processes = []

    def run(name, *arguments):
        pipes = dict(stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        processes.append(commands.start(name, *arguments, **pipes))
        return processes[-1]

    yield run
    for process in processes:
        process.kill()
        process.communicate()


@pytest.fixture
def start_worker(start):
    def run(port=None):
        port = port or portpicker.pick_unused_port()
        worker = start("worker", f"--port={port}")
        line = _read_until(worker, "is ready")
        assert line.startswith(f"{socket.gethostname()}:{port} ")
        return worker, port

    return run


def _can_be_reached(port):
    with socket.socket() as probe:
        return probe.connect_ex(("localhost", port)) == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_the_worker_ends_with_the_command(start_worker, number):
    worker, port = start_worker()
    assert _can_be_reached(port)
    worker.send_signal(number)
    # To the end of both pipes, which the worker must not hold.
    _, err = worker.communicate(timeout=commands.PATIENCE_SECONDS)
    if number == signal.SIGKILL:
        assert worker.returncode == -number
    else:
        assert worker.returncode == 128 + number
        assert err.count("\n") == 1 and f"worker on port {port} has ended" in err
        assert not _can_be_reached(port)


def test_the_command_ends_with_the_worker(start_worker):
    command, _ = start_worker()
    found = []
    for children in pathlib.Path(f"/proc/{command.pid}/task").glob("*/children"):
        with contextlib.suppress(FileNotFoundError):  # A thread that has ended.
            found += map(int, children.read_text().split())
    (worker,) = found
    os.kill(worker, signal.SIGKILL)
    _, err = command.communicate(timeout=commands.PATIENCE_SECONDS)
    assert command.returncode == 1
    assert err.count("\n") == 1 and "ended with status -9" in err


def test_a_port_that_is_taken_is_refused():
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = commands.call(worker_command.main, f"--port={port}")
    assert done.stderr == (
        f"bin/worker: --port={port}: somebody else listens there already.\n"
    )


@pytest.mark.parametrize(
    "arguments, words",
    [
        ([], "--port is missing"),
        (["--port=0"], "from 1 to 65535, found '0'"),
        (["--port=x"], "found 'x'"),
        (["--port=70000"], "found '70000'"),
        (["8000"], "8000 is not a flag"),
        (["--sport=1"], "sport"),
    ],
    ids=str,
)
def test_wrong_flags_are_refused_in_one_line(arguments, words):
    done = commands.call(worker_command.main, *arguments)
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.startswith("bin/worker: ") and done.stderr.count("\n") == 1
    assert words in done.stderr


def test_a_run_without_its_workers_begins_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(service, "CONNECT_SECONDS", 0.3)
    ports = [portpicker.pick_unused_port() for _ in range(2)]
    workers = ",".join(f"localhost:{port}" for port in ports)
    output = tmp_path / "run"
    flags = (f"--workers={workers}", f"--output_dir={output}")
    done = commands.call(run_command.main, *_FLAGS, *flags)
    assert done.returncode == 2 and done.stdout == ""
    said = f"bin/run: --workers={workers}: No TFF worker answers at localhost:"
    assert done.stderr.startswith(said)
    assert done.stderr.count("\n") == 1
    assert not output.exists()


def _rounds(text):
    return [int(number) for number in re.findall(r"round +(\d+)/", text)]


@pytest.mark.slow
def test_a_run_survives_a_worker_and_resumes_after_it_lost_all(
    start_worker, start, tmp_path
):
    (first, port), (second, other_port) = start_worker(), start_worker()
    output = f"--output_dir={tmp_path / 'run'}"
    both = f"--workers=localhost:{port},localhost:{other_port}"
    run = start("run", *_FLAGS, both, output, "--total_rounds=100000")
    assert f"2 TFF workers: localhost:{port}, " in _read_until(run, "Clients run")
    _read_until(run, " 1/100000")
    first.kill()
    (reached,) = _rounds(_read_until(run, "/100000"))
    _read_until(run, f" {reached + 3}/100000")
    second.kill()
    out, err = run.communicate(timeout=commands.PATIENCE_SECONDS)
    assert run.returncode == 1
    assert err.count("\n") == 1 and "No TFF worker is left for the clients" in err
    assert f"localhost:{port} " in err and f"localhost:{other_port} " in err
    done = max(_rounds(out), default=reached + 3)
    rounds = f"--total_rounds={done + 2}"

    _, new_port = start_worker()
    workers = f"--workers=localhost:{new_port}"
    again = commands.call(run_command.main, *_FLAGS, workers, output, rounds)
    assert again.returncode == 0, again.stderr
    assert _rounds(again.stdout) == [done + 1, done + 2]
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["rounds"] == done + 2
