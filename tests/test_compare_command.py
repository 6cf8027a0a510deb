"""`bin/compare` as a user meets it: runs, table, signals, exit codes."""

import functools
import json
import os
import pathlib
import shlex
import shutil
import signal
import subprocess
import time

import pytest

from tests import commands
from tests.experiment import finished as finished_runs
from tests.experiment.finished import read_csv
from tff_reg import experiment
from tff_reg.commands import compare
from tff_reg.data import digests
from tff_reg.experiment.config import identity
from tff_reg.experiment.series import jobs
from tff_reg.runtime import devices

TINY = [
    "--total_rounds=2",
    "--local_epochs=1",
    "--num_clients=4",
    "--model=cnn",
    "--fedprox_strength=0.1",
    "--targets=0.1,0.99",
    "--score_at_rounds=1",
]
FOUR_RUNS = ["--processes=fedavg,fedprox", "--seeds=0,1", *TINY]
NAMES = ["fedavg-seed0", "fedprox-seed0", "fedavg-seed1", "fedprox-seed1"]
FILES = ["curves.csv", "curves.pdf", "curves.png"]
FILES += ["table.csv", "table.md", "table.tex"]
BY_COST = [f"curves_{n}.{k}" for n in ("seconds", "megabytes") for k in ("png", "pdf")]
FILES += BY_COST  # With target accuracies.
# Beside the report, which has the command.
REPORT = "report.html"
COMPARE = "tff_reg.commands.compare"


def is_run(pid):
    """Whether a process is a `bin/run`."""
    try:
        command = pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
    return command[2:3] == [b"run"] and command[1].endswith(b"commands/__main__.py")


def start(arguments):
    """Starts the command; returns the mark that its processes have, and its own."""
    environment = commands.mark()
    process = commands.start(
        *("compare", *arguments),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=environment,
        text=True,
    )
    return environment, process


def interrupt_first_run(directory, arguments):
    """Starts the command, interrupts it when its first run has begun, and waits.

    Returns:
      Its exit status, its output, and the processes that are left of it.
    """
    environment, process = start(arguments)
    try:
        status = commands.stop_when(
            lambda: list(directory.glob("*-seed0/*")), process, signal.SIGINT
        )
        output = process.communicate()[0]
        wait_for_the_end_of(environment)
        return status, output, commands.processes_with(environment)
    finally:
        for pid in commands.processes_with(environment):
            os.kill(pid, signal.SIGKILL)


def wait_for_the_end_of(environment):
    """Waits until no process has the environment, for a minute at most."""
    deadline = time.monotonic() + 60
    while commands.processes_with(environment) and time.monotonic() < deadline:
        time.sleep(0.01)


def written(directory):
    """Which files there are, and when they were written."""
    return {path: path.stat().st_mtime_ns for path in directory.rglob("*")}


def content(directory):
    return {name: (directory / name).read_bytes() for name in FILES}


@pytest.fixture(scope="module")
def no_tensorflow():
    """Calls a command where no run can be: importing TensorFlow fails."""
    with commands.OtherProcess("tensorflow", "tensorflow_federated") as process:
        yield process.call


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    """A comparison that was interrupted in its first run and then finished."""
    # Fifteen seconds: the command starts, to be interrupted, and there are four runs.
    directory = tmp_path_factory.mktemp("compared") / "d"
    arguments = [*FOUR_RUNS, f"--output_dir={directory}"]
    interrupted = interrupt_first_run(directory, arguments)
    finished = commands.call(
        compare.main, *arguments, executor=commands.InThisProcess()
    )
    assert finished.returncode == 0, finished.stdout + finished.stderr
    return {
        "directory": directory,
        "arguments": arguments,
        "interrupted": interrupted,
        "finished": finished,
    }


@pytest.fixture
def copied(compared, tmp_path):
    """A copy of the finished comparison, and the flags that made it."""
    directory = tmp_path / "d"
    shutil.copytree(compared["directory"], directory)
    return directory, [*FOUR_RUNS, f"--output_dir={directory}"]


def test_ctrl_c_ends_the_run_too_and_says_how_to_go_on(compared):
    status, output, left = compared["interrupted"]
    assert status == 130
    assert left == []
    assert "Traceback" not in output
    assert output.splitlines()[-1] == (
        f"Interrupted: 0 of 4 runs are finished in {compared['directory']}, and the"
        " same command goes on from there."
    )


def test_one_line_a_run_and_the_table_on_stdout(compared):
    protocol, _, told = compared["finished"].stdout.partition("\n\n")
    shared = " ".join(protocol.split())
    assert shared.startswith(
        "Protocol: task=digits, partition=dirichlet_balanced, model=cnn, num_clients=4"
    )
    assert shared.endswith("task digits. - fedprox's own: fedprox_strength=0.1")
    lines = told.splitlines()
    heads = [
        "run 1/4  fedavg, seed 0: test accuracy ",
        "run 2/4  fedprox, seed 0: test accuracy ",
        "run 3/4  fedavg, seed 1: test accuracy ",
        "run 4/4  fedprox, seed 1: test accuracy ",
    ]
    assert [line.startswith(head) for line, head in zip(lines, heads)] == [True] * 4
    table = (compared["directory"] / "table.md").read_text("utf-8")
    assert table in told and table.endswith(f"\n{protocol}\n")
    assert lines[-1] == (
        f"In {compared['directory']}: table.csv, table.md, table.tex, curves.csv,"
        f" curves.png, curves.pdf, {', '.join(BY_COST)}, {REPORT}"
    )
    assert compared["finished"].stderr == ""


def test_every_run_is_a_run_of_its_own_with_the_flags_given(compared):
    directory = compared["directory"]
    there = sorted(path.name for path in directory.iterdir())
    assert there == sorted([*NAMES, *FILES, REPORT])
    finals = []
    for name in NAMES:
        config = json.loads((directory / name / "config.json").read_text())
        assert f"{config['process']}-seed{config['seed']}" == name
        assert config["model"] == "cnn" and config["num_clients"] == 4
        summary = json.loads((directory / name / "summary.json").read_text())
        assert summary["rounds_to_target"]["0.99"] is None
        finals.append(summary["final_accuracy"])
    fedavg, _ = read_csv(directory / "table.csv")
    assert float(fedavg["accuracy_mean"]) == pytest.approx((finals[0] + finals[2]) / 2)
    assert fedavg["rounds_to_0.99_mean"] == "" and fedavg["ema_accuracy_at_1_mean"]


def test_configs_hold_settings_and_what_comparisons_know_of(compared):
    config = json.loads((compared["directory"] / NAMES[0] / "config.json").read_text())
    values = experiment.RunConfig(process="fedavg").resolved().dump()
    assert values.keys() < config.keys()
    assert config.keys() - values.keys() - identity.NOT_SETTINGS == {
        "class_names",
        "client_dataset_fn",
        "metrics",
        "model_aggregator",
        "sample_fn",
        digests.DATA,
        digests.DEALT,
        digests.INITIAL_WEIGHTS,
    }


def test_a_dry_run_tells_what_is_left_to_do(copied):
    directory, arguments = copied
    shutil.rmtree(directory / NAMES[3])
    before = written(directory)
    tried = commands.call(
        *(compare.main, *arguments, "--dry_run"), executor=commands.InThisProcess()
    )
    assert tried.returncode == 0, tried.stderr
    *_, head, _, row, _, total = tried.stdout.splitlines()
    cells = dict(zip(*([c.strip() for c in x.split("|")] for x in (head, row))))
    assert (cells["method"], cells["runs"], cells["rounds"]) == ("fedprox", "1", "2")
    config = json.loads((directory / NAMES[1] / "config.json").read_text())
    sent = 2 * config["clients_per_round"] * sum(config["bytes_per_client"]) / 1e6
    assert cells["MB sent and received"] == f"{sent:.0f}"
    assert total.startswith("1 run to do, 3 finished: about ")
    assert written(directory) == before


def test_where_there_is_a_gpu_a_dry_run_tries_the_cpu_too(copied, monkeypatch):
    directory, arguments = copied
    shutil.rmtree(directory / NAMES[3])
    monkeypatch.setattr(jobs, "gpus", lambda: ["0"])
    monkeypatch.setattr(devices, "memory", lambda name: {name: 1234})
    tried = commands.call(
        *(compare.main, *arguments, "--dry_run"), executor=commands.InThisProcess()
    )
    assert tried.returncode == 0, tried.stderr
    lines = tried.stdout.splitlines()
    (at,) = [i for i, each in enumerate(lines) if each.startswith("| method")]
    cells = dict(zip(*([c.strip() for c in lines[i].split("|")] for i in (at, at + 2))))
    assert cells["MB of the GPU"] == "1,234"
    is_faster = float(cells["on the CPU"]) < float(cells["s a round"])
    assert ("fedprox is faster on the CPU here" in tried.stdout) == is_faster
    assert lines[-1].startswith("1 run to do, 3 finished: about ")


def test_nothing_is_run_again_and_lost_tables_are_made_from_the_runs(
    copied, compared, no_tensorflow
):
    directory, arguments = copied
    again = no_tensorflow(COMPARE, *arguments)
    assert again.returncode == 0, again.stderr
    assert again.stdout.count("finished before") == 4
    assert content(directory) == content(compared["directory"])
    for name in FILES:
        (directory / name).unlink()
    assert no_tensorflow(COMPARE, *arguments).returncode == 0
    assert content(directory) == content(compared["directory"])
    # Nor for other columns.
    again = no_tensorflow(COMPARE, *arguments, "--targets=0.05")
    assert again.returncode == 0, again.stderr
    header = (directory / "table.csv").read_text().splitlines()[0]
    assert "rounds_to_0.05_mean" in header and "0.99" not in header


def test_runs_that_fail_are_named_and_the_table_has_the_rest(
    copied, tmp_path, monkeypatch
):
    directory, arguments = copied
    (tmp_path / "tensorflow.py").write_text("raise SystemExit('no TensorFlow here')\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    shutil.rmtree(directory / NAMES[0])
    (directory / NAMES[3] / "summary.json").unlink()
    # Runs that fail are no reason to touch the others.
    others = {name: written(directory / name) for name in NAMES[1:3]}
    # With --verbosity a run is no fork of a process that has TensorFlow.
    failed = commands.call(compare.main, *arguments, "--verbosity=-1")
    assert failed.returncode == 1
    assert "Traceback" not in failed.stdout + failed.stderr
    lines = failed.stdout.partition("\n\n")[2].splitlines()
    failure = "run 1/4  fedavg, seed 0: failed (exit code 1: no TensorFlow here), "
    assert lines[0].startswith(failure) and lines[0].endswith(" s left")
    assert lines[1].startswith("run 2/4  fedprox, seed 0: finished before")
    assert lines[2].startswith("run 3/4  fedavg, seed 1: finished before")
    assert lines[3].startswith("run 4/4  fedprox, seed 1: failed (")
    (line,) = failed.stderr.splitlines()
    assert line == (
        "bin/compare: 2 of 4 runs failed (fedavg, seed 0; fedprox, seed 1); the table"
        " has the rest."
    )
    assert {name: written(directory / name) for name in NAMES[1:3]} == others
    rows = read_csv(directory / "table.csv")
    assert [(row["process"], row["runs"], row["accuracy_std"]) for row in rows] == [
        ("fedavg", "1", ""),
        ("fedprox", "1", ""),
    ]


@pytest.mark.slow
def test_only_the_damaged_run_is_run_again_and_a_terminal_shows_it(copied, compared):
    directory, arguments = copied
    # The summary says that the run is finished, the table not.
    (directory / NAMES[3] / "metrics.csv").write_text("round_num\n")
    others = {name: written(directory / name) for name in NAMES[:3]}
    shown = commands.on_a_terminal("compare", *arguments)
    text = shown.stdout
    assert shown.returncode == 0, text
    assert text.count("finished before") == 3
    head = text.index("run 4/4  fedprox, seed 1\r\n")
    assert head < text.index("Resuming after round 2 of 2.")
    assert head < text.index("round 2/2 |")
    assert {name: written(directory / name) for name in NAMES[:3]} == others
    metrics = [d / NAMES[3] / "metrics.csv" for d in (directory, compared["directory"])]
    assert metrics[0].read_bytes() == metrics[1].read_bytes()
    assert content(directory) == content(compared["directory"])


# What makes no series and no grid: experiment/test_series.py and test_tuning.py.
@pytest.mark.parametrize(
    "arguments, words",
    [
        ([], ["--processes: it is missing"]),
        (["--processes=fedavg", "--jobs=0"], ["--jobs=0", "at least 1"]),
        (["--processes=fedavg", "--weights=last"], ["--weights=last", "server"]),
        (
            ["--processes=fedavg", "--columns=finetuned_mean"],
            ["--columns=finetuned_mean", "need finetune_epochs"],
        ),
        (["--run_dirs=d", "--processes=fedavg"], ["--processes", "--run_dirs"]),
        (["--run_dirs=d", "--batch_size=2"], ["--batch_size", "are finished"]),
        (["--run_dirs=nowhere"], ["nowhere has no finished run"]),
        (["--process=fedavg"], ["--process", "--processes"]),
        (["--processes=fedavg", "--seed=1"], ["--seed", "--seeds"]),
        (["--processes=fedavg", "--output_dir="], ["--output_dir: it is missing"]),
        (["--processes=fedavg", "--output_dir=/proc/x"], ["cannot be written to"]),
        (["--processes=fedavg", "--settings=partition=shards"], ["classes_per_client"]),
        (["--run_dirs=d", "--settings=batch_size=2"], ["--settings", "--run_dirs"]),
    ],
)
def test_refusals(arguments, words, tmp_path, no_tensorflow):
    directory = tmp_path / "d"
    arguments = [f"--output_dir={directory}", *arguments]
    line = commands.refusal(no_tensorflow(COMPARE, *arguments), "compare")
    assert all(word in line for word in words), line
    assert not directory.exists()


def test_finished_runs_of_anywhere_are_compared(compared, tmp_path, no_tensorflow):
    folders = [compared["directory"] / name for name in NAMES]
    flags = ["--targets=0.1,0.99", "--score_at_rounds=1"]
    done = no_tensorflow(
        COMPARE,
        f"--run_dirs={','.join(map(str, folders))}",
        *flags,
        f"--output_dir={tmp_path / 'd'}",
    )
    assert done.returncode == 0, done.stderr
    assert content(tmp_path / "d") == content(compared["directory"])
    named_flags = [
        f"--run_dirs=one={folders[0]},two={folders[1]},one={folders[2]}",
        f"--output_dir={tmp_path / 'e'}",
    ]
    named = no_tensorflow(COMPARE, *named_flags, "--baseline=two")
    assert named.returncode == 0, named.stderr
    assert "There is no difference to two, which" in " ".join(named.stdout.split())
    line = commands.refusal(no_tensorflow(COMPARE, *named_flags, "--baseline=fedavg"))
    assert "--baseline=fedavg: it is not among the compared methods (one, two)" in line


@pytest.mark.slow  # A start of TensorFlow.
def test_a_killed_comparison_takes_its_runs_along(tmp_path):
    folder = tmp_path / "d"
    environment, process = start([*FOUR_RUNS, "--jobs=2", f"--output_dir={folder}"])
    begun = functools.partial(folder.glob, "*-seed0/*")
    assert commands.stop_when(lambda: list(begun()), process, signal.SIGKILL) == -9
    wait_for_the_end_of(environment)
    assert not commands.processes_with(environment)


@pytest.mark.slow
@pytest.mark.xdist_group("test_ray")
def test_ctrl_c_ends_tasks_of_ray(tmp_path):
    flags = ["--jobs=2", "--jobs_on=ray", f"--output_dir={tmp_path / 'd'}"]
    environment, process = start([*FOUR_RUNS, *flags])

    def is_time():
        return any(map(is_run, commands.processes_with(environment)))

    assert commands.stop_when(is_time, process, signal.SIGINT) == 130
    told = process.communicate()[0].partition("\n\n")[2]
    assert told == (
        f"Interrupted: 0 of 4 runs are finished in {tmp_path / 'd'}, and the same"
        " command goes on from there.\n"
    )
    wait_for_the_end_of(environment)
    assert not commands.processes_with(environment)


def test_listed_commands_are_the_unfinished_runs(copied, no_tensorflow):
    directory, arguments = copied
    shutil.rmtree(directory / NAMES[3])
    done = no_tensorflow(COMPARE, *arguments, "--list_commands")
    (line,) = done.stdout.splitlines()
    env, threads, *command = shlex.split(line)
    assert env == "env" and threads.startswith("TF_NUM_INTRAOP_THREADS=")
    start = commands.command_of("run")
    assert command[: len(start)] == start
    assert {"--process=fedprox", "--seed=1", *TINY} <= {*command}
    assert f"--output_dir={directory / NAMES[3]}" in command


@pytest.mark.slow
def test_listed_commands_give_the_numbers_of_one_after_another(compared, tmp_path):
    directory = tmp_path / "a folder"
    flags = ["--processes=fedavg,fedprox", *TINY, f"--output_dir={directory}"]
    listed = commands.call(compare.main, *flags, "--list_commands").stdout
    xargs = ["xargs", "-P", "2", "-L", "1", "env"]
    subprocess.run(xargs, input=listed, text=True, check=True)
    assert commands.call(compare.main, *flags).stdout.count("finished before") == 2
    for name in NAMES[:2]:
        ours, theirs = (
            finished_runs.rows(folder / name / "metrics.csv")
            for folder in (directory, compared["directory"])
        )
        assert ours == theirs


@pytest.mark.parametrize("status", [1, 2])
def test_nothing_is_left_where_no_run_could_begin(status, tmp_path):
    class Failing(commands.InThisProcess):
        def execute(self, command):
            return status, "bin/run: there is no TensorFlow Federated."

    directory = tmp_path / "above" / "d"
    arguments = ["--processes=fedavg", f"--output_dir={directory}"]
    done = commands.call(compare.main, *arguments, executor=Failing())
    assert done.returncode == status
    assert "there is no TensorFlow Federated" in done.stdout + done.stderr
    assert not directory.parent.exists()
