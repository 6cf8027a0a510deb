"""Runs as tasks of Ray."""

import signal
import sys

import pytest
import ray

from tests import commands
from tests.experiment import test_tuning
from tff_reg.commands import compare
from tff_reg.experiment.series import ray_tasks

_FILES = ("table.csv", "table.md", "curves.csv", "curves.png")


def carry_out(folder):
    """Pretended runs; the batch, and what it says."""
    executor = ray_tasks.RayTasks(None, 2, 1, 0.0)
    done, said = test_tuning.run_jobs(folder, 2, executor)
    done.stop()
    return done, said


@pytest.mark.slow
@pytest.mark.xdist_group("test_ray")
def test_tasks_give_the_table_of_sequential_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(commands.ROOT)
    monkeypatch.setenv("PYTHONPATH", str(commands.ROOT))
    test_tuning.run_jobs(tmp_path / "one", 1)
    folder = tmp_path / "d"
    test_tuning.set_trap(folder, "fedavg-seed0", "run", signal.SIGKILL)
    # A machine that is lost: Ray tries again.
    test_tuning.set_trap(folder, "fedprox-seed0", "parent", signal.SIGKILL)
    done, said = carry_out(folder)
    assert [*done.failed] == ["fedavg, seed 0"]
    assert any(line.endswith("seed 0: failed (killed by SIGKILL)") for line in said)
    done, said = carry_out(folder)
    assert not done.failed and sum("finished before" in line for line in said) == 1
    for name in _FILES:
        assert (folder / name).read_bytes() == (tmp_path / "one" / name).read_bytes()


@pytest.mark.parametrize(
    "flags, words",
    [
        (["--cpus_per_job=2"], "--cpus_per_job=2: it is for jobs_on=ray, not local."),
        (["--jobs_on=ray", "--ray_address=here"], "--ray_address=here: Ray's"),
        (["--jobs_on=ray", "--ray_address=localhost:1"], "no Ray at localhost:1: "),
        (["--jobs_on=ray", "--overwrite"], "--overwrite=true: leave it out"),
        (["--jobs_on=ray", "--runtime=ray"], "--jobs_on=ray: give it or"),
    ],
)
def test_refusals(tmp_path, flags, words):
    flags = ["--processes=fedavg", f"--output_dir={tmp_path / 'd'}", *flags]
    refused = commands.call(compare.main, *flags)
    assert words in commands.refusal(refused, "compare")
    assert not (tmp_path / "d").exists()


# Fails with what it has been given as its last line.
_TELLS = """
import os, sys
names = "CUDA_VISIBLE_DEVICES", "TF_NUM_INTRAOP_THREADS", "OMP_NUM_THREADS"
sys.exit(f"{[os.environ.get(name) for name in names]}")
"""


@pytest.mark.slow
@pytest.mark.xdist_group("test_ray")
def test_a_task_has_its_gpus_and_the_threads_of_this_machine(monkeypatch):
    monkeypatch.setenv("TF_NUM_INTRAOP_THREADS", "3")
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    ray.init(address="local", num_cpus=1, num_gpus=1, include_dashboard=False)
    try:
        for gpus, visible in ((0.5, "0"), (0.0, "-1")):
            tasks = ray_tasks.RayTasks(None, 1, 1, gpus)
            status, said = tasks.execute([sys.executable, "-c", _TELLS])
            assert (status, said) == (1, f"{[visible, '3', None]}")
            tasks.stop()
        with pytest.raises(ray_tasks.UnreachableError, match="a job of 1 CPUs and 2"):
            ray_tasks.RayTasks(None, 1, 1, 2.0)
        assert ray.is_initialized()  # It is not ours to end.
    finally:
        ray.shutdown()
