"""Ray's clusters: machines that come and go, GPUs, drivers that end in every way.

A "machine" is a node of Ray's own test cluster: processes of its own, started in
another directory. Long by nature: every actor imports TensorFlow.
"""

import contextlib
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import tempfile
import time

import numpy as np
import pytest
import ray
from ray import cluster_utils

from tests import commands
from tests.comparison import assert_equal
from tests.runtime.test_ray import (  # noqa: F401
    _DATA,
    _MODEL,
    expected,
    given_clients,
    next_round,
)
from tff_reg import runtime
from tff_reg.commands import run as run_command
from tff_reg.runtime import choice

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("test_ray")]

_FLAGS = [
    "--process=fedavg",
    "--model=cnn",
    "--num_clients=8",
    "--clients_per_round=2",
    "--local_epochs=1",
    "--rounds_per_evaluation=1000000",
]


@pytest.fixture
def cluster(monkeypatch):
    """A cluster whose head node, where the driver is, has no room for actors."""
    folder = tempfile.mkdtemp(prefix="ray-", dir="/tmp")  # For sockets a short name.
    os.mkdir(os.path.join(folder, "ray"))
    monkeypatch.setenv("RAY_TMPDIR", folder)
    found = cluster_utils.Cluster(
        True, head_node_args=dict(num_cpus=0, temp_dir=folder)
    )
    yield found
    runtime.shutdown()
    found.shutdown()
    shutil.rmtree(folder, ignore_errors=True)


def _workers():
    """The `RayWorkers` in use."""
    return choice._chosen[-1].context._workers


def test_machines_come_and_go(
    cluster,
    tmp_path,
    monkeypatch,
    given_clients,  # noqa: F811
    next_round,  # noqa: F811
    expected,  # noqa: F811
):
    first = cluster.add_node(num_cpus=1)
    runtime.use("ray", ray_address=cluster.address)
    assert_equal(expected, next_round(_MODEL, _DATA))
    assert runtime.describe() == "clients run in 1 Ray actor on 1 node (CPU)"

    # One joins: another directory, no data. It takes part when it is ready.
    monkeypatch.chdir(tmp_path)
    second = cluster.add_node(num_cpus=1)
    _workers().grow()
    _workers().wait(everyone=True)
    del given_clients[:]
    assert_equal(expected, next_round(_MODEL, _DATA))
    assert len({actor.hello.node for actor, _ in given_clients}) == 2

    # It vanishes in a round.
    def vanish(actor, index):
        if actor.hello.node == second.node_id:
            given_clients.then = lambda actor, index: None
            cluster.remove_node(second, allow_graceful=False)

    given_clients.then = vanish
    assert_equal(expected, next_round(_MODEL, _DATA))
    assert second not in cluster.worker_nodes

    # So does the last.
    cluster.remove_node(first, allow_graceful=False)
    with pytest.raises(
        runtime.WorkerError, match="no room for one of 1 CPUs"
    ) as caught:
        next_round(_MODEL, _DATA)
    assert "\n" not in str(caught.value)

    # And another takes its place.
    cluster.add_node(num_cpus=1)
    assert_equal(expected, next_round(_MODEL, _DATA))


def test_a_client_has_a_part_of_a_gpu():
    ray.init(address="local", num_cpus=4, num_gpus=2, include_dashboard=False)
    try:
        runtime.use("ray", gpus_per_client=0.5)
        _workers().wait(everyone=True)
        gpus = [actor.hello.gpus for actor in _workers().alive()]
        assert sorted(gpus) == [("0",), ("0",), ("1",), ("1",)]
        runtime.use("ray", gpus_per_client=1.0, clients_in_parallel=1)
        _workers().wait(everyone=True)
        (actor,) = _workers().alive()
        assert actor.hello.gpus in [("0",), ("1",)]
        with pytest.raises(runtime.NoGpuError):
            runtime.use("ray", gpus_per_client=0, require_gpu=True)
        runtime.shutdown()
        assert ray.is_initialized()  # It is not ours to end.
    finally:
        ray.shutdown()


# --- whole commands -------------------------------------------------------------------


class _Run:
    """A `bin/run` and all that it starts."""

    def __init__(self, *flags):
        self.environment = commands.mark()
        self.process = commands.start(
            "run",
            *_FLAGS,
            "--runtime=ray",
            "--clients_in_parallel=1",
            *flags,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=self.environment,
        )
        self.folders = set()

    def read_until(self, text):
        for line in self.process.stdout:
            if text in line:
                for pid in commands.processes_with(self.environment):
                    with contextlib.suppress(OSError):
                        words = pathlib.Path(f"/proc/{pid}/cmdline").read_bytes()
                        self.folders.update(
                            re.findall(r"/tmp/\S*ray-[^/\s\0]*", words.decode())
                        )
                return
        raise AssertionError(self.process.stderr.read())

    def wait_until_nothing_is_left(self):
        assert self.folders
        deadline = time.monotonic() + 60
        while commands.processes_with(self.environment) or any(
            os.path.exists(folder) for folder in self.folders
        ):
            assert time.monotonic() < deadline
            time.sleep(0.1)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_a_driver_leaves_nothing(tmp_path, number):
    run = _Run(f"--output_dir={tmp_path / 'run'}", "--total_rounds=100000")
    run.read_until(" 2/100000")
    run.process.send_signal(number)
    _, said = run.process.communicate(timeout=commands.PATIENCE_SECONDS)
    assert run.process.returncode == {9: -9, 2: 130}[number]
    assert said.count("\n") == (0 if number == signal.SIGKILL else 1), said
    run.wait_until_nothing_is_left()


def test_a_driver_starts_again_on_a_cluster_that_lives_on(cluster, tmp_path):
    cluster.add_node(num_cpus=1)  # Room for one: the first driver's has to go.
    output = f"--output_dir={tmp_path / 'run'}"
    address = f"--ray_address={cluster.address}"
    run = _Run(output, address, "--total_rounds=6")
    run.read_until(" 2/6")
    run.process.kill()
    run.process.communicate()
    again = _Run(output, address, "--total_rounds=6")
    out, said = again.process.communicate(timeout=commands.PATIENCE_SECONDS)
    assert again.process.returncode == 0, said
    assert "1/6" not in out.split("resum", 1)[-1]

    alone = f"--output_dir={tmp_path / 'alone'}"
    done = commands.call(run_command.main, *_FLAGS, alone, "--total_rounds=6")
    assert done.returncode == 0, done.stderr
    found, wanted = (
        np.load(tmp_path / n / "final_weights.npz") for n in ("run", "alone")
    )
    assert found.files == wanted.files
    for name in found.files:
        np.testing.assert_array_equal(found[name], wanted[name])
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["rounds"] == 6
