"""The example of a program: killed, it goes on to the weights that `bin/run` has."""

import signal
import subprocess
import sys

import numpy as np
import pytest

from tests import commands
from tests.experiment.finished import read_csv
from tff_reg import experiment, runtime, settings
from tff_reg.experiment.rounds import progress
from tff_reg.tasks.examples import train_program

GIVEN = dict(total_rounds=4, clients_per_round=2, local_epochs=1)
SEED = 3


@pytest.mark.slow
def test_a_killed_program_resumes_to_the_weights_of_a_run(tmp_path, capfd):
    flags = [f"--{name}={value}" for name, value in GIVEN.items()]
    flags += ["--process=fedavg", f"--seed={SEED}", f"--output_dir={tmp_path}"]
    running = subprocess.Popen(
        [sys.executable, "-m", "tff_reg.tasks.examples.train_program", *flags],
        cwd=commands.ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )
    lines = []
    while not lines or not lines[-1].startswith("round 2  training"):
        lines.append(running.stdout.readline())
        assert lines[-1], lines
    running.send_signal(signal.SIGKILL)
    # The pipe ends, so nothing that holds it is left behind.
    rest = running.stdout.read()
    assert running.wait() == -signal.SIGKILL
    assert "round 4" not in rest

    config = train_program.read_config(flags)
    train_program.prepare_directory(config)
    with runtime.running("in_process"):
        task, training, evaluation = train_program.build(config)
        train_program.train(config, task, training, evaluation)
        printed = capfd.readouterr().out
        x, y = task.test_arrays()
        evaluate = experiment.CentralEvaluation(
            task.model_fn, x, y, preprocess_fn=task.normalize_fn
        )
        expected = experiment.train(
            training,
            task.client_data,
            total_rounds=GIVEN["total_rounds"],
            clients_per_round=GIVEN["clients_per_round"],
            seed=SEED,
            evaluate=evaluate,
            progress=progress.Silence(),
        )
    assert "round 1  training" not in printed and "round 4  training" in printed
    with np.load(tmp_path / "final_weights.npz") as found:
        arrays = [found[f"arr_{index}"] for index in range(len(found.files))]
    weights = [*expected.weights.trainable, *expected.weights.non_trainable]
    assert len(arrays) == len(weights)
    for a, b in zip(arrays, weights):
        np.testing.assert_array_equal(a, b)
    for name in ("training", "evaluation"):
        rows = read_csv(tmp_path / f"{name}.csv")
        assert [int(row["round_num"]) for row in rows] == [1, 2, 3, 4]
        for row, wanted in zip(rows, expected.rows):
            for metric in ("loss", "accuracy"):
                value = float(row[f"model_metrics/{metric}"])
                assert value == pytest.approx(wanted[f"{name}/{metric}"], rel=1e-5)
        assert any(
            file.name.startswith("events") for file in (tmp_path / name).iterdir()
        )
    assert (tmp_path / "models" / "release_training_checkpoint_round_4").is_dir()


@pytest.mark.parametrize(
    "flags, message",
    [
        ([], "--output_dir: it is missing; give a directory."),
        (
            ["--process=fedalgin"],
            "--process=fedalgin: Unknown process 'fedalgin' (did you mean fedalign?)",
        ),
        (["--seed=1"], "--output_dir={}: a training with other settings is there;"),
        (
            ["now"],
            "now is not a flag, such as --process=fedavg; --helpfull lists them.",
        ),
    ],
)
def test_errors_are_one_line(flags, message, tmp_path):
    config = train_program.read_config([f"--output_dir={tmp_path}"])
    train_program.prepare_directory(config)
    if flags:
        flags.append(f"--output_dir={tmp_path}")
    done = commands.call(train_program.main, *flags)
    assert done.returncode == 2
    expected = f"tff_reg.tasks.examples.train_program: {message.format(tmp_path)}"
    assert done.stderr.startswith(expected) and done.stderr.count("\n") == 1


def test_a_method_with_client_states_is_refused():
    config = experiment.RunConfig(process="scaffold").resolved()
    with pytest.raises(settings.SettingError, match="process=scaffold: its clients"):
        train_program.build(config)
