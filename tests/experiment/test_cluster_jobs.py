"""Jobs of SLURM and tasks of Ray: what comes of runs there, whatever happens."""

import pathlib
import signal
import sys
import threading
import time

import pytest
import ray

from tests import commands, slurm
from tests.experiment import test_tuning
from tff_reg.commands import compare
from tff_reg.experiment.series import cluster_jobs, jobs

_FILES = ("table.csv", "table.md", "table.tex")
_FILES += ("curves.csv", "curves.png", "curves.pdf")


@pytest.fixture
def a_slurm(tmp_path, monkeypatch):
    slurm.install(tmp_path / "slurm", monkeypatch)
    return tmp_path / "slurm" / "jobs"


def of(**settings):
    values = {each.name: each.default for each in jobs.SETTINGS}
    return {**values, "jobs": 2, **settings}


def carry_out(folder, **settings):
    """Pretended runs; the batch, and what it says."""
    executor = cluster_jobs.executor(of(**settings), str(folder))
    done, said = test_tuning.run_jobs(folder, 2, executor)
    done.stop()
    return done, said


@pytest.fixture
def one_after_another(tmp_path, monkeypatch):
    monkeypatch.chdir(commands.ROOT)
    monkeypatch.setenv("PYTHONPATH", str(commands.ROOT))
    test_tuning.run_jobs(tmp_path / "one", 1)
    return {name: (tmp_path / "one" / name).read_bytes() for name in _FILES}


def files(folder):
    found = {path.name for path in folder.iterdir() if path.is_file()}
    return {name: (folder / name).read_bytes() for name in found}


def test_slurm_gives_the_table_of_one_after_another(
    one_after_another, a_slurm, tmp_path
):
    folder = tmp_path / "d"
    test_tuning.set_trap(folder, "fedavg-seed0", "run", signal.SIGKILL)
    # Its job is killed; the time of a job is over.
    test_tuning.set_trap(folder, "fedprox-seed0", "parent", signal.SIGKILL)
    test_tuning.set_trap(folder, "fedavg-seed1", "parent", signal.SIGUSR1)
    options = dict(jobs_on="slurm", cpus_per_job=1, gpus_per_job=2.0)
    options["sbatch"] = ("partition=gpu", "--mem-per-cpu=2G", "exclusive")
    done, said = carry_out(folder, **options)
    # In the order in which the jobs end.
    failed = sorted(run.name for run in done.failed)
    assert failed == ["fedavg, seed 0", "fedprox, seed 0"]
    why = "seed 0: failed (killed by SIGKILL"
    assert sum(why in line for line in said) == 2
    given = (a_slurm / "1" / "options").read_text().split()
    of_job = ("--cpus-per-task=1", "--gpus-per-node=2", "--time=12:00:00")
    assert {*of_job, "--partition=gpu", "--exclusive", "--mem-per-cpu=2G"} <= {*given}
    assert not list(folder.glob("slurm-*"))

    done, said = carry_out(folder, **options)
    assert not done.failed and sum("finished before" in line for line in said) == 2
    assert files(folder) == one_after_another


@pytest.mark.slow
@pytest.mark.xdist_group("test_ray")
def test_ray_gives_the_table_of_one_after_another(one_after_another, tmp_path):
    folder = tmp_path / "d"
    test_tuning.set_trap(folder, "fedavg-seed0", "run", signal.SIGKILL)
    # A machine that is lost: Ray tries again.
    test_tuning.set_trap(folder, "fedprox-seed0", "parent", signal.SIGKILL)
    done, said = carry_out(folder, jobs_on="ray")
    assert [run.name for run in done.failed] == ["fedavg, seed 0"]
    assert any(line.endswith("seed 0: failed (killed by SIGKILL)") for line in said)
    done, said = carry_out(folder, jobs_on="ray")
    assert not done.failed and sum("finished before" in line for line in said) == 3
    assert files(folder) == one_after_another


def call(folder, *flags):
    return commands.call(
        compare.main,
        *("--processes=fedavg", "--num_clients=4", "--total_rounds=2"),
        *(f"--output_dir={folder}", *flags),
    )


@pytest.mark.parametrize(
    "flags, words",
    [
        (
            ["--cpus_per_job=2"],
            "--cpus_per_job=2: it is for jobs_on=slurm or ray, not local.",
        ),
        (
            ["--jobs_on=ray", "--sbatch=time=9"],
            "--sbatch=time=9: it is for jobs_on=slurm, not ray.",
        ),
        (["--jobs_on=slurm", "--sbatch=;rm"], "--sbatch=;rm: give"),
        (["--jobs_on=slurm", "--gpus_per_job=0.5"], "--gpus_per_job=0.5: SLURM"),
        (["--jobs_on=ray", "--ray_address=here"], "--ray_address=here: Ray's"),
        (["--jobs_on=ray", "--ray_address=localhost:1"], "no Ray at localhost:1: "),
        (["--jobs_on=slurm", "--overwrite"], "--overwrite=true: leave it out"),
        (["--jobs_on=ray", "--runtime=ray"], "--jobs_on=ray: give it or"),
    ],
)
def test_what_cannot_be_is_one_line(a_slurm, tmp_path, flags, words):
    assert words in commands.refusal(call(tmp_path / "d", *flags), "compare")
    assert not (tmp_path / "d").exists()


def test_without_slurm_or_what_it_takes_nothing_runs(a_slurm, tmp_path, monkeypatch):
    (a_slurm.parent / "sbatch").write_text(
        "#!/bin/bash\necho sbatch: error: no such partition: gpu >&2\nexit 1\n"
    )
    flags = ["--seeds=0,1", "--jobs_on=slurm", "--jobs=2"]
    refused = call(tmp_path / "d", *flags)
    assert refused.returncode == 2 and refused.stdout.startswith("Protocol: ")
    assert refused.stderr == (
        "bin/compare: SLURM takes no job: sbatch: error: no such partition: gpu\n"
    )
    monkeypatch.setenv("PATH", str(tmp_path))
    refused = call(tmp_path / "d", *flags)
    assert refused.returncode == 2
    assert refused.stderr.endswith(": There is no SLURM here: no sbatch on PATH.\n")
    assert not list((tmp_path / "d").iterdir())


def test_stopping_cancels_the_jobs(a_slurm, tmp_path):
    executor = cluster_jobs.SlurmJobs(str(tmp_path / "d"), {}, 1, 0)
    ends = []

    def wait():
        try:
            executor.execute([sys.executable, "-c", "import signal; signal.pause()"])
        except jobs.Interrupted as error:
            ends.append(error)

    waiting = threading.Thread(target=wait)
    waiting.start()
    while not (a_slurm / "1" / "pid").exists():
        time.sleep(0.01)
    job = pathlib.Path("/proc", (a_slurm / "1" / "pid").read_text().strip(), "stat")
    executor.stop()
    waiting.join(10)
    assert len(ends) == 1
    with pytest.raises(jobs.Interrupted):
        executor.execute(["true"])
    while job.exists() and job.read_text().rpartition(")")[2].split()[0] != "Z":
        time.sleep(0.01)


# Fails with what it has been given as its last line.
_TELLS = """
import os, sys
names = "CUDA_VISIBLE_DEVICES", "TF_NUM_INTRAOP_THREADS", "OMP_NUM_THREADS"
cores = len(os.sched_getaffinity(0))
sys.exit(f"{cores} {[os.environ.get(name) for name in names]}")
"""


@pytest.mark.slow
@pytest.mark.xdist_group("test_ray")
def test_a_task_has_its_cores_and_gpus_and_the_threads_of_here(monkeypatch):
    monkeypatch.setenv("TF_NUM_INTRAOP_THREADS", "3")
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    ray.init(address="local", num_cpus=1, num_gpus=1, include_dashboard=False)
    try:
        for gpus, visible in ((0.5, "0"), (0.0, "-1")):
            tasks = cluster_jobs.RayTasks(None, 1, 1, gpus)
            status, said = tasks.execute([sys.executable, "-c", _TELLS])
            assert (status, said) == (1, f"1 {[visible, '3', None]}")
            tasks.stop()
        with pytest.raises(
            cluster_jobs.UnreachableError, match="a job of 1 CPUs and 2"
        ):
            cluster_jobs.RayTasks(None, 1, 1, 2.0)
        assert ray.is_initialized()  # It is not ours to end.
    finally:
        ray.shutdown()
