"""`bin/run` as a user meets it: processes, files, signals, exit codes."""

import csv
import json
import os
import pathlib
import pty
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent
COMMAND = [sys.executable, str(ROOT / "bin" / "run.py")]
TINY = [
    "--process=fedprox",
    "--model=cnn",
    "--num_clients=4",
    "--clients_per_round=2",
    "--local_epochs=1",
    "--batch_size=32",
    "--client_learning_rate=0.05",
    "--partition=iid",
]
SIX_ROUNDS = [*TINY, "--total_rounds=6", "--rounds_per_evaluation=2"]
# For whatever starts TensorFlow, on a machine that does other things as well.
PATIENCE_SECONDS = 240


def run(arguments, env=None):
    """Runs the command to its end."""
    return subprocess.run(
        [*COMMAND, *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        env={**os.environ, **(env or {})},
        timeout=PATIENCE_SECONDS,
    )


def stop_when(is_time, arguments, signal_number, log_path):
    """Starts the command, sends it a signal as soon as `is_time()`, and waits.

    Returns:
      Its exit status, how many seconds it took to end, and its output.
    """
    with open(log_path, "wb") as log:
        process = subprocess.Popen(
            [*COMMAND, *arguments], stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )
    try:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not is_time():
            assert process.poll() is None, log_path.read_text()
            assert time.monotonic() < deadline
            time.sleep(0.002)
        process.send_signal(signal_number)
        sent = time.monotonic()
        status = process.wait(PATIENCE_SECONDS)
        took = time.monotonic() - sent
    finally:
        process.kill()
        process.wait()
    return status, took, log_path.read_text()


def rows(directory):
    with open(directory / "metrics.csv", newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def results(directory):
    """The bytes that must not depend on interruptions, timings aside."""
    summary = json.loads((directory / "summary.json").read_text())
    summary = {k: v for k, v in summary.items() if "seconds" not in k}
    weights = [path.read_bytes() for path in sorted(directory.glob("final_*.npz"))]
    return without_seconds(rows(directory)), summary, weights


def without_seconds(table):
    return [
        {name: cell for name, cell in row.items() if name != "round_seconds"}
        for row in table
    ]


def kept_states(directory):
    """What is kept of clients and in checkpoints, by name, timings aside."""
    kept = {
        path.relative_to(directory).as_posix(): path.read_bytes()
        for folder in ("checkpoints", "client_states")
        for path in (directory / folder).rglob("*")
        if path.suffix == ".npz" or path.name == "client_states.json"
    }
    for path in directory.glob("checkpoints/*/metrics.csv"):
        kept[f"metrics of {path.parent.name}"] = without_seconds(rows(path.parent))
    return kept


@pytest.fixture(scope="module")
def forbid_tensorflow(tmp_path_factory):
    """An environment in which importing TensorFlow or TFF fails."""
    folder = tmp_path_factory.mktemp("forbidden")
    for name in ("tensorflow", "tensorflow_federated", "numpy"):
        (folder / f"{name}.py").write_text("raise SystemExit('imported')\n")
    return {"PYTHONPATH": str(folder)}


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory):
    """A finished run: its directory and what it printed."""
    directory = tmp_path_factory.mktemp("unbroken") / "run"
    finished = run([*SIX_ROUNDS, f"--output_dir={directory}"])
    assert finished.returncode == 0, finished.stderr
    return directory, finished


@pytest.fixture(scope="module")
def broken(tmp_path_factory):
    """A run that was killed, interrupted, damaged, and then finished."""
    folder = tmp_path_factory.mktemp("broken")
    directory = folder / "run"
    arguments = [*SIX_ROUNDS, f"--output_dir={directory}"]
    checkpoints = directory / "checkpoints"
    table = directory / "metrics.csv"

    def in_the_middle_of_a_commit():
        return any(checkpoints.glob(".tmp-tff_reg-*/server_state.npz"))

    killed = stop_when(
        in_the_middle_of_a_commit, arguments, signal.SIGKILL, folder / "killed.log"
    )

    def third_row_is_there():
        return table.exists() and len(table.read_text().splitlines()) >= 4

    interrupted = stop_when(
        third_row_is_there, arguments, signal.SIGINT, folder / "interrupted.log"
    )
    newest = max(checkpoints.glob("round_*"))
    state = newest / "server_state.npz"
    state.write_bytes(state.read_bytes()[:-1])
    finished = run(arguments)
    return {
        "directory": directory,
        "killed": killed,
        "interrupted": interrupted,
        "damaged_round": int(newest.name.removeprefix("round_")),
        "finished": finished,
    }


@pytest.fixture(scope="module")
def remembering(tmp_path_factory):
    """FedDyn with MAN: a run from end to end, and one that was killed and damaged."""
    folder = tmp_path_factory.mktemp("remembering")
    arguments = ["--process=feddyn+man", *TINY[1:], "--total_rounds=4"]
    unbroken = run([*arguments, f"--output_dir={folder / 'unbroken'}"])
    assert unbroken.returncode == 0, unbroken.stderr
    directory = folder / "broken"
    arguments.append(f"--output_dir={directory}")

    def third_round_has_stored_a_client():
        return any(directory.glob("client_states/*-000003.npz"))

    killed, _, _ = stop_when(
        third_round_has_stored_a_client, arguments, signal.SIGKILL, folder / "log"
    )
    left = max(
        int(path.name.removeprefix("round_"))
        for path in (directory / "checkpoints").glob("round_*")
    )
    # One of the files that the newest checkpoint names and the one before does not.
    damaged = min((directory / "client_states").glob(f"*-{left:06d}.npz"))
    content = bytearray(damaged.read_bytes())
    content[len(content) // 2] ^= 1
    damaged.write_bytes(content)
    return {
        "unbroken": folder / "unbroken",
        "printed": unbroken.stdout,
        "broken": directory,
        "killed": killed,
        "left": left,
        "damaged": damaged.name,
        "finished": run(arguments),
    }


def test_first_line_says_where_clients_run(unbroken):
    lines = unbroken[1].stdout.splitlines()
    assert lines[0].startswith("Clients run in process")
    assert [line for line in lines if line.startswith("process")] == [
        "process  fedprox (strength 0.0001)"
    ]


def test_prints_a_line_a_round_and_nothing_else_is_heard(unbroken):
    lines = unbroken[1].stdout.splitlines()
    assert sum(line.startswith("round ") for line in lines) == 6
    assert unbroken[1].stderr == ""


def test_writes_the_files_of_the_design(unbroken):
    directory, _ = unbroken
    names = {path.name for path in directory.iterdir()}
    assert {
        "config.json",
        "metrics.csv",
        "summary.json",
        "accuracy.png",
        "final_weights.npz",
        "checkpoints",
    } <= names
    assert any(name.startswith("events.out.tfevents.") for name in names)
    assert list(rows(directory)[0])[:6] == [
        "round_num",
        "training/loss",
        "training/accuracy",
        "evaluation/loss",
        "evaluation/accuracy",
        "round_seconds",
    ]
    evaluated = [bool(row["evaluation/accuracy"]) for row in rows(directory)]
    assert evaluated == [False, True, False, True, False, True]
    assert (directory / "accuracy.png").read_bytes().startswith(b"\x89PNG")


def test_config_has_every_flag_and_the_versions(unbroken):
    from tff_reg.experiment import settings

    config = json.loads((unbroken[0] / "config.json").read_text())
    flags = {option.name for option in settings.OPTIONS} - {"participation"}
    assert flags <= config.keys()
    assert config["num_clients"] == 4 and config["fedprox_strength"] == 1e-4
    assert config["client_momentum"] == 0.9  # The paper's.
    assert {"python", "tensorflow", "tensorflow_federated", "numpy", "tff_reg"} <= (
        config["versions"].keys()
    )
    assert "git_commit" in config and config["tensorflow_devices"]


def test_accuracy_is_that_of_the_final_weights(unbroken):
    import tasks

    directory, _ = unbroken
    config = json.loads((directory / "config.json").read_text())
    names = ("partition", "num_clients", "seed", "model", "norm")
    task = tasks.build(config["task"], **{name: config[name] for name in names})
    model = task.model_fn()
    with np.load(directory / "final_weights.npz") as weights:
        for variable in [*model.trainable_variables, *model.non_trainable_variables]:
            variable.assign(weights[variable.name.split(":")[0]])
    x, y = task.test_arrays()
    logits = model.predict_on_batch(task.normalize_fn(x), training=False)
    accuracy = np.mean(np.argmax(logits, axis=-1) == y)
    summary = json.loads((directory / "summary.json").read_text())
    assert summary["final_accuracy"] == accuracy
    assert accuracy > 0.5
    assert float(rows(directory)[-1]["evaluation/accuracy"]) == accuracy


def test_killed_interrupted_and_damaged_run_ends_in_the_same_bytes(unbroken, broken):
    assert broken["finished"].returncode == 0, broken["finished"].stderr
    assert results(broken["directory"]) == results(unbroken[0])
    assert not list(broken["directory"].rglob(".tmp-tff_reg-*"))


def test_kill_9_really_killed(broken):
    assert broken["killed"][0] == -signal.SIGKILL


def test_interrupt_ends_at_once_with_130_and_says_how_to_resume(broken):
    status, took, output = broken["interrupted"]
    assert status == 130
    assert took < 5
    assert "Traceback" not in output
    last = output.splitlines()[-1]
    assert last.startswith("Interrupted: ") and "the same command" in last


def test_damaged_checkpoint_is_reported_in_a_line(broken):
    number = broken["damaged_round"]
    lines = broken["finished"].stdout.splitlines()
    assert [line for line in lines if "damaged" in line] == [
        f"The checkpoint of round {number} is damaged (server_state.npz has changed"
        " since it was written): using the one before it."
    ]
    assert f"Resuming after round {number - 1} of 6." in lines


def test_clients_states_survive_kill_9_and_damage_to_the_byte(remembering):
    assert remembering["killed"] == -signal.SIGKILL
    assert remembering["left"] in (2, 3)
    finished = remembering["finished"]
    assert finished.returncode == 0, finished.stderr
    directory, unbroken = remembering["broken"], remembering["unbroken"]
    assert results(directory) == results(unbroken)
    expected = kept_states(unbroken)
    assert kept_states(directory) == expected
    # Three checkpoints of three parts each; 2 of 4 clients a round.
    assert len(expected) > 3 * 3 + 2
    assert not list(directory.rglob(".tmp-tff_reg-*"))


def test_a_damaged_state_of_a_client_is_reported_in_a_line(remembering):
    number, name = remembering["left"], remembering["damaged"]
    lines = remembering["finished"].stdout.splitlines()
    assert [line for line in lines if "damaged" in line] == [
        f"The checkpoint of round {number} is damaged (client_states/{name} has changed"
        " since it was written): using the one before it."
    ]
    assert f"Resuming after round {number - 1} of 4." in lines


def test_the_mean_of_all_clients_is_tested_printed_and_written(remembering):
    directory, printed = remembering["unbroken"], remembering["printed"]
    for row in rows(directory):
        assert float(row["evaluation_all_clients/loss"]) > 0
        assert 0 <= float(row["evaluation_all_clients/accuracy"]) <= 1
    summary = json.loads((directory / "summary.json").read_text())
    last = float(rows(directory)[-1]["evaluation_all_clients/accuracy"])
    assert summary["all_clients_accuracy"] == last
    told = [line for line in printed.splitlines() if line.startswith("round ")]
    assert told and all("  all clients' mean " in line for line in told)
    assert f"of the mean of all clients' last models {100 * last:.2f} %" in printed
    with np.load(directory / "final_weights.npz") as served, np.load(
        directory / "final_all_clients_weights.npz"
    ) as mean:
        assert served.files == mean.files
        assert any(not np.array_equal(served[n], mean[n]) for n in served.files)


@pytest.mark.parametrize(
    "changed, words",
    [
        (["--process=moon"], "--process=feddyn+man, this one has --process=moon"),
        (["--process=man"], "--process=feddyn+man, this one has --process=man"),
        (["--process=feddyn+man", "--model=resnet8"], "has a run with --model=cnn"),
    ],
)
def test_clients_states_of_another_method_or_model_are_refused(
    remembering, changed, words, forbid_tensorflow
):
    directory = remembering["unbroken"]
    before = kept_states(directory)
    arguments = [*TINY[1:], *changed, "--total_rounds=5", f"--output_dir={directory}"]
    refused = run(arguments, forbid_tensorflow)
    assert refused.returncode == 2
    (line,) = refused.stderr.splitlines()
    assert words in line and "give another --output_dir" in line
    assert kept_states(directory) == before


def test_a_finished_directory_gives_its_result_at_once(unbroken, forbid_tensorflow):
    directory, _ = unbroken
    before = results(directory)
    again = run([*SIX_ROUNDS, f"--output_dir={directory}"], forbid_tensorflow)
    assert again.returncode == 0, again.stderr
    assert "is finished already" in again.stdout
    assert "Test accuracy" in again.stdout
    assert results(directory) == before


def test_other_settings_in_the_same_directory_are_refused(unbroken, forbid_tensorflow):
    directory, _ = unbroken
    refused = run(
        [*SIX_ROUNDS, "--batch_size=16", f"--output_dir={directory}"],
        forbid_tensorflow,
    )
    assert refused.returncode == 2
    assert len(refused.stderr.splitlines()) == 1
    assert "--batch_size=32" in refused.stderr and "--batch_size=16" in refused.stderr


def test_shows_a_bar_on_a_terminal_and_another_seed_differs(unbroken, tmp_path):
    arguments = [*SIX_ROUNDS, "--seed=1", "--total_rounds=2"]
    main, terminal = pty.openpty()
    process = subprocess.Popen(
        [*COMMAND, *arguments, f"--output_dir={tmp_path / 'run'}"],
        stdin=subprocess.DEVNULL,
        stdout=terminal,
        stderr=terminal,
    )
    os.close(terminal)
    shown = b""
    try:
        while block := os.read(main, 4096):
            shown += block
    except OSError:  # How Linux says that the other end is closed.
        pass
    finally:
        os.close(main)
        process.wait(PATIENCE_SECONDS)
    text = shown.decode("utf-8", "replace")
    assert process.returncode == 0, text
    assert "round 2/2 |" in text and "s a round" in text
    ours, theirs = rows(tmp_path / "run"), rows(unbroken[0])
    assert ours[0]["training/loss"] != theirs[0]["training/loss"]


def test_sigterm_while_starting_ends_it_with_143(tmp_path):
    log = tmp_path / "log"
    ended, took, output = stop_when(
        # The first line comes when the runtime is chosen; the data are loaded next.
        lambda: "Clients run" in log.read_text(),
        [*SIX_ROUNDS, f"--output_dir={tmp_path / 'run'}"],
        signal.SIGTERM,
        log,
    )
    assert ended == 143
    assert took < 5
    assert output.splitlines()[-1].startswith("Terminated: ")
    assert "Traceback" not in output
    assert not (tmp_path / "run" / "metrics.csv").exists()


@pytest.mark.parametrize(
    "arguments, words",
    [
        ([], ["--process", "fedalign"]),
        (["--process=fedalgin"], ["--process=fedalgin", "fedalign"]),
        (["--process=fedavg", "--task=digit"], ["--task=digit", "digits"]),
        (["--process=fedavg", "--partition=idd"], ["--partition=idd", "iid"]),
        (["--process=fedavg", "--model=resnet"], ["--model=resnet", "resnet20"]),
        (["--process=fedavg", "--batchsize=3"], ["--batchsize", "--batch_size"]),
        (["--process=fedavg", "--batch_size=many"], ["--batch_size=many", "number"]),
        (["--process=fedavg", "--batch_size=0"], ["--batch_size=0"]),
        (["--process=fedavg", "--local_epochs=-1"], ["--local_epochs=-1"]),
        (["--process=fedavg", "--seed=-1"], ["--seed=-1"]),
        (["--process=fedavg", "--total_rounds=0"], ["--total_rounds=0"]),
        (
            ["--process=fedavg", "--num_clients=4", "--clients_per_round=5"],
            ["--clients_per_round=5", "4"],
        ),
        (
            ["--process=fedavg", "--participation=0.5", "--clients_per_round=5"],
            ["--clients_per_round=5", "--participation"],
        ),
        (["--process=fedavg", "--participation=1.5"], ["--participation=1.5"]),
        (
            ["--process=fedavg", "--partition=iid", "--concentration=1"],
            ["--concentration=1", "iid"],
        ),
        (
            ["--process=fedavg", "--fedprox_strength=1"],
            ["--fedprox_strength=1", "fedavg"],
        ),
        (["--process=fedprox", "--fedprox_strength=-1"], ["--fedprox_strength=-1"]),
        (["--process=fedavg", "--client_learning_rate=nan"], ["nan"]),
        (
            ["--process=fedavg", "--runtime=native", "--require_gpu"],
            ["--require_gpu", "native"],
        ),
        (["--process=fedavg", "--num_clients=100000"], ["--num_clients=100000"]),
        (["--process=fedavg", "digits"], ["digits", "flag"]),
        (["--process=fedavg", "--flagfile=/does/not/exist"], ["flagfile"]),
    ],
)
def test_wrong_flags_are_told_in_one_line_before_tensorflow_loads(
    arguments, words, tmp_path, forbid_tensorflow
):
    output_dir = tmp_path / "run"
    result = run([*arguments, f"--output_dir={output_dir}"], forbid_tensorflow)
    assert result.returncode == 2
    assert result.stdout == ""
    (line,) = result.stderr.splitlines()
    for word in words:
        assert word in line
    assert not output_dir.exists()


def test_somebody_elses_directory_is_left_alone(tmp_path, forbid_tensorflow):
    (tmp_path / "thesis.tex").write_text("precious")
    for overwrite in ([], ["--overwrite"]):
        result = run([*TINY, f"--output_dir={tmp_path}", *overwrite], forbid_tensorflow)
        assert result.returncode == 2
        (line,) = result.stderr.splitlines()
        assert str(tmp_path) in line
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_help_is_quick_and_shows_the_papers_settings(forbid_tensorflow):
    began = time.monotonic()
    plain = run(["--help"], forbid_tensorflow)
    took = time.monotonic() - began
    assert plain.returncode == 0 and plain.stderr == ""
    for name in ("process", "num_clients", "fedalign_width", "man_strength"):
        assert f"--{name}=" in plain.stdout
    assert "--pdb" not in plain.stdout
    assert max(len(line) for line in plain.stdout.splitlines()) <= 88
    assert took < 1.0 or took < 2 * _seconds_to_start_python()
    chosen = run(["--process=fedalign", "--help"], forbid_tensorflow)
    (epochs,) = [line for line in chosen.stdout.splitlines() if "local_epochs" in line]
    assert epochs.endswith("[20]")
    assert "man_strength" not in chosen.stdout


def _seconds_to_start_python():
    began = time.monotonic()
    subprocess.run([sys.executable, "-c", "import absl.flags, tree"], check=True)
    return time.monotonic() - began
