"""Runs read back: the weights, the model, and what clients make of it."""

import json
import shutil

import numpy as np
import pytest

import tasks
from bin import run as run_command
from tests import commands
from tff_reg import runtime
from tff_reg.experiment import directory, trained


@pytest.fixture(
    scope="module", params=[pytest.param("fedavg", marks=pytest.mark.slow), "moon"]
)
def run(request, tmp_path_factory):
    """Two rounds of a method without and one with client state, with BatchNorm."""
    path = tmp_path_factory.mktemp("runs") / request.param
    done = commands.call(
        run_command.main,
        f"--process={request.param}",
        "--model=cnn",
        "--norm=batch",
        "--num_clients=3",
        "--clients_per_round=3",
        "--total_rounds=2",
        "--local_epochs=1",
        "--client_learning_rate=0.05",
        f"--output_dir={path}",
    )
    assert done.returncode == 0, done.stderr
    return path


def test_the_clients_models_average_to_the_next_rounds_model(run):
    before = trained.load(run, tasks=tasks, round_num=1)
    after = trained.load(run, tasks=tasks)
    assert (before.round_num, after.round_num) == (1, 2)
    client_ids = before.task.client_data.client_ids
    with runtime.running("in_process"):
        models = before.train_clients(client_ids)
    sizes = before.task.client_data.client_sizes
    for kind in ("trainable", "non_trainable"):
        averages = [
            np.average(each, axis=0, weights=sizes)
            for each in zip(*(getattr(models[name], kind) for name in client_ids))
        ]
        expected = getattr(after.weights, kind)
        assert len(averages) == len(expected) > 0
        for one, other in zip(averages, expected):
            np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)


def test_the_model_predicts_as_the_run_evaluated(run):
    found = trained.load(run, tasks=tasks)
    x, y = found.test_examples()
    predicted = np.argmax(found.model().network(x).logits, axis=1)
    summary = json.loads((run / "summary.json").read_text("utf-8"))
    assert np.mean(predicted == y) == pytest.approx(summary["final_accuracy"])
    images, labels = found.test_examples(5)
    assert images.shape == (5, 8, 8, 1) and images.dtype == np.float32
    np.testing.assert_array_equal(images, x[:5])
    own, labels = found.client_examples("client_0000", 7)
    assert len(own) == len(labels) == 7


def test_a_damaged_checkpoint_is_passed_over_and_kept(run, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(run, copy)
    newest = copy / "checkpoints" / "round_000002" / "server_state.npz"
    newest.write_bytes(newest.read_bytes()[:-1])
    assert trained.load(copy, tasks=tasks).round_num == 1
    assert newest.exists()
    with pytest.raises(trained.TrainedRunError, match="server_state.npz has changed"):
        trained.load(copy, tasks=tasks, round_num=2)
    with pytest.raises(trained.TrainedRunError, match="of round 7, only of 1, 2"):
        trained.load(copy, tasks=tasks, round_num=7)


def test_what_is_no_run_is_said(tmp_path):
    with pytest.raises(trained.TrainedRunError, match="has no run"):
        trained.load(tmp_path / "none", tasks=tasks)
    (tmp_path / "file").write_text("x")
    with pytest.raises(directory.DirectoryError):
        trained.load(tmp_path, tasks=tasks)
