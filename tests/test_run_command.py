"""`bin/run` as a user meets it: processes, files, signals, exit codes."""

import json
import os
import signal
import subprocess
import sys

import numpy as np
import pytest
import tensorflow_federated as tff
from absl import flags

from tests import commands
from tests.experiment import finished
from tests.experiment.finished import results
from tff_reg import runtime
from tff_reg.commands import run
from tff_reg.experiment.config import run_config as config_lib
from tff_reg.experiment.rounds import checkpoints

TINY = [
    # Clients remember something, and the mean of their last models is kept.
    "--process=feddyn",
    "--model=cnn",
    "--num_clients=4",
    "--clients_per_round=2",
    "--local_epochs=1",
    "--batch_size=32",
    "--client_learning_rate=0.05",
    "--partition=iid",
]
SIX_ROUNDS = [*TINY, "--total_rounds=6", "--rounds_per_evaluation=2"]
PIPES = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}


def rows(directory):
    return finished.rows(directory / "metrics.csv")


def kept_states(directory):
    """What is kept of clients and in checkpoints, by name, timings aside."""
    kept = {
        path.relative_to(directory).as_posix(): path.read_bytes()
        for path in directory.glob("checkpoints/*.npz")
    }
    for each in checkpoints.CheckpointStore(directory / "checkpoints").all():
        kept[f"metrics of {each.round_num}"] = finished.rows(each.part("metrics.csv"))
        kept[f"clients of {each.round_num}"] = each.clients
    return kept


@pytest.fixture(scope="module")
def no_tensorflow():
    """Calls the command where TensorFlow, TFF and NumPy cannot be imported."""
    names = ("tensorflow", "tensorflow_federated", "numpy")
    with commands.OtherProcess(*names) as process:
        yield lambda *arguments: process.call("tff_reg.commands.run", *arguments)


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory):
    """A finished run: its directory and what it printed."""
    directory = tmp_path_factory.mktemp("unbroken") / "run"
    done = commands.call(run.main, *SIX_ROUNDS, f"--output_dir={directory}")
    assert (done.returncode, done.stderr) == (0, "")
    return directory, done.stdout


def of_this_process():
    """What a command changes where it is all that the process is for."""
    return (
        tff.framework.get_context_stack().current,
        runtime.describe(),
        [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)],
        flags.FLAGS["verbosity"].value,
        (sys.stdout, sys.stderr, list(sys.path)),
    )


@pytest.fixture(scope="module")
def broken(tmp_path_factory):
    """A run that was killed, interrupted on a terminal and damaged, before its end."""
    # Fourteen seconds: the command starts twice, once for each signal.
    folder = tmp_path_factory.mktemp("broken")
    directory = folder / "run"
    arguments = [*SIX_ROUNDS, f"--output_dir={directory}"]
    store = checkpoints.CheckpointStore(directory / "checkpoints")

    def in_the_middle_of_a_commit():
        return any(store.directory.glob("*.csv"))

    killed = commands.stop_when(
        in_the_middle_of_a_commit, commands.start("run", *arguments), signal.SIGKILL
    )
    places = {name: str(folder / name) for name in ("TMPDIR", "HOME")}
    for place in places.values():
        os.mkdir(place)
    environment = {**os.environ, **places}
    del environment["KERAS_HOME"]
    interrupted = commands.on_a_terminal(
        *("run", *arguments),
        **dict(until="round 3/6 |", number=signal.SIGINT, env=environment),
    )
    newest = store.all()[-1]
    state = newest.part("server_state.npz")
    state.write_bytes(state.read_bytes()[:-1])
    before = of_this_process()
    finished = commands.call(run.main, *arguments)
    return {
        "directory": directory,
        "killed": killed,
        "interrupted": interrupted,
        "left": [name for place in places.values() for name in os.listdir(place)],
        "damaged_round": newest.round_num,
        "finished": finished,
        "of_process": (before, of_this_process()),
    }


def test_prints_where_clients_run_what_runs_and_a_line_a_round(unbroken):
    _, printed = unbroken
    lines = printed.splitlines()
    assert lines[0].startswith("Clients run in process")
    assert "process  feddyn (strength 0.01, clipping half)" in lines
    assert sum(line.startswith("round ") for line in lines) == 6


def test_a_config_has_every_flag_and_the_versions(unbroken):
    directory = unbroken[0]
    assert (directory / "accuracy.png").read_bytes().startswith(b"\x89PNG")
    config = json.loads((directory / "config.json").read_text())
    flags = {each.name for each in config_lib.listed("feddyn")}
    flags -= {"participation", "recipe", "settings_of"}
    assert flags <= config.keys()
    assert config["num_clients"] == 4 and config["feddyn_strength"] == 0.01
    assert {"python", "tensorflow", "tensorflow_federated", "numpy", "tff_reg"} <= (
        config["versions"].keys()
    )
    assert config["code"][0]["tff_reg"] and config["tensorflow_devices"]


def test_killed_interrupted_and_damaged_run_ends_in_the_same_bytes(unbroken, broken):
    assert broken["finished"].returncode == 0, broken["finished"].stderr
    assert results(broken["directory"]) == results(unbroken[0])
    expected = kept_states(unbroken[0])
    assert kept_states(broken["directory"]) == expected
    # Three checkpoints of three parts each; 2 of 4 clients a round.
    assert len(expected) > 3 * 3 + 2
    assert not list(broken["directory"].rglob(".tmp-tff_reg-*"))


def test_each_interruption_is_told_in_a_line_with_how_to_go_on(broken):
    assert broken["killed"] == -signal.SIGKILL
    interrupted = broken["interrupted"]
    assert interrupted.returncode == 130
    assert "Traceback" not in interrupted.stdout
    last = interrupted.stdout.splitlines()[-1]
    assert last.startswith("Interrupted: ") and "the same command" in last
    # On a terminal it shows a bar.
    assert "round 3/6 |" in interrupted.stdout and "s a round" in interrupted.stdout
    number = broken["damaged_round"]
    lines = broken["finished"].stdout.splitlines()
    assert [line for line in lines if "damaged" in line] == [
        f"The checkpoint of round {number} is damaged (server_state.npz has changed"
        " since it was written): using the one before it."
    ]
    assert f"Resuming after round {number - 1} of 6." in lines
    # The process in which the command was called is as before.
    before, after = broken["of_process"]
    assert after == before


@pytest.mark.slow
def test_an_interrupted_run_leaves_nothing_in_the_home_or_the_temporary_folder(broken):
    assert broken["left"] == []


def test_the_mean_of_all_clients_is_tested_printed_and_written(unbroken):
    directory, printed = unbroken
    summary = json.loads((directory / "summary.json").read_text())
    last = float(rows(directory)[-1]["evaluation_all_clients/accuracy"])
    assert summary["all_clients_accuracy"] == last
    told = [line for line in printed.splitlines() if line.startswith("round ")]
    assert sum("  all clients' mean " in line for line in told) == 3
    assert f"of the mean of all clients' last models {100 * last:.2f} %" in printed
    with (
        np.load(directory / "final_weights.npz") as served,
        np.load(directory / "final_all_clients_weights.npz") as mean,
    ):
        assert served.files == mean.files
        assert any(not np.array_equal(served[n], mean[n]) for n in served.files)


def test_advice_is_of_the_same_data_and_keeps_the_flags_of_the_call():
    split = ("--partition=dirichlet_balanced", "--concentration=0.3")
    more = ("--straggler_share=0.5", "--straggler_epochs=1,2", "--process=man")
    done = commands.call(run.main, "--advise", "--task=digits", *split, *more)
    assert done.returncode == 0, done.stderr
    # That of CIFAR-10 is nearer.
    assert "was measured: Dir(0.3) (half train a fifth)" in done.stdout
    *_, command = done.stdout.splitlines()
    for flag in ("--task=digits", *split, more[0], "--processes=fedavg,fedacg "):
        assert flag in command
    assert "--process=man" not in command and "--advise" not in command
    done = commands.call(run.main, "--advise", "--task=digits", *split)
    assert "was measured: Dir(0.5) (" in done.stdout


@pytest.mark.parametrize(
    "changed, words",
    [
        (["--process=moon"], "--process=feddyn, not moon;"),
        (["--process=feddyn", "--batch_size=16"], "--batch_size=32, not 16;"),
    ],
)
def test_other_settings_in_the_same_directory_are_refused(
    unbroken, changed, words, no_tensorflow
):
    directory = unbroken[0]
    before = kept_states(directory)
    line = commands.refusal(
        no_tensorflow(*SIX_ROUNDS[1:], *changed, f"--output_dir={directory}"), "run"
    )
    where = f"bin/run: --output_dir={directory}: it has a run with {words}"
    assert f"{where} give another one, or" in line
    assert kept_states(directory) == before


def test_a_finished_directory_gives_its_result_at_once(unbroken, no_tensorflow):
    directory = unbroken[0]
    before = results(directory)
    again = no_tensorflow(*SIX_ROUNDS, f"--output_dir={directory}")
    assert again.returncode == 0, again.stderr
    assert "is finished already" in again.stdout
    assert "Test accuracy" in again.stdout
    assert results(directory) == before


# Each setting's own rules: experiment/test_config.py, and test_command_line.py.
@pytest.mark.parametrize(
    "arguments, words",
    [
        ([], ["--process", "fedalign"]),
        (["--process=fedalgin"], ["--process=fedalgin", "fedalign"]),
        (["--process=fedavg", "--task=digit"], ["--task=digit", "digits"]),
        (["--process=fedavg", f"--seed={2**53}"], [f"at most {2**53 - 1}."]),
        (
            ["--process=fedavg", "--participation=0.5", "--clients_per_round=5"],
            ["--clients_per_round=5", "--participation"],
        ),
        (
            ["--process=fedavg", "--output_dir=/proc/x"],
            ["--output_dir=/proc/x", "cannot be written to"],
        ),
        *(
            (
                ["--process=fedavg", *arguments.split()],
                [arguments.split()[-1].split("=")[0], why],
            )
            for arguments, why in (
                ("--initial_weights=no.npz", "there is no such file."),
                ("--initial_weights=a.pt", "numpy.savez(file, **{name: value.cpu()"),
                ("--pretrained=a.h5", "(did you mean --initial_weights?)"),
                ("--model=keras:MobileNet --norm=batch", "the model is of Keras"),
                ("--model=keras:MobilNet", "(did you mean keras:MobileNet?)"),
                ("--mixed_precision=float16", "choose one of bfloat16, tf32."),
            )
        ),
        (
            ["--recipe=fedalign/table2/mixap"],
            ["--recipe=fedalign/table2/mixap", "mean fedalign/table2/mixup,"],
        ),
        (
            ["--recipe=fedalign/table2/mixup", "--fedprox_strength=1"],
            ["--fedprox_strength=1", "fedprox is not part of --process=mixup"],
        ),
    ],
)
def test_wrong_flags_are_told_in_one_line_before_tensorflow_loads(
    arguments, words, tmp_path, no_tensorflow
):
    output_dir = tmp_path / "run"
    line = commands.refusal(no_tensorflow(f"--output_dir={output_dir}", *arguments))
    assert all(word in line for word in words), line
    assert not output_dir.exists()


def test_wrong_data_are_told_before_tensorflow_loads(tmp_path):
    wrong, output_dir = tmp_path / "a.npz", tmp_path / "run"
    wrong.write_bytes(b"text")
    with commands.OtherProcess("tensorflow", "tensorflow_federated") as process:
        for arguments, words in (
            (["--task=arrays", f"--data_dir={wrong}"], "no .npz file"),
            (["--task=cifar10", f"--data_dir={tmp_path}"], "no cifar-10-batches-py"),
            (["--task=pacs"], "bin/run: There are no data: download https://"),
            (["--partition=split_file", f"--split_file={wrong}"], "a.npz"),
            (["--partition=shards", "--classes_per_client=11"], "only 10 classes"),
        ):
            arguments = ["--process=fedavg", f"--output_dir={output_dir}", *arguments]
            done = process.call("tff_reg.commands.run", *arguments)
            assert words in commands.refusal(done, "run")
            assert not output_dir.exists()


def test_help_needs_no_tensorflow(no_tensorflow):
    for argument in ("--help", "--helpfull"):
        done = no_tensorflow(argument)
        assert done.returncode == 0 and done.stderr == ""
        assert "--process: " in done.stdout and "--pdb" not in done.stdout


@pytest.mark.parametrize("arguments", [("run", "--help"), ("recipes",)])
def test_broken_pipe_exits_quietly(arguments):
    process = commands.start(*arguments, **PIPES)
    process.stdout.close()
    assert process.stderr.read() == b""
    process.stderr.close()
    assert process.wait(commands.PATIENCE_SECONDS) == 128 + signal.SIGPIPE
