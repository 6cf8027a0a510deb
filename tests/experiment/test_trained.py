"""Runs read back: the weights, the model, and what clients make of it."""

import dataclasses
import functools
import json
import shutil

import numpy as np
import pytest
import tensorflow as tf

from tests import commands
from tff_reg import data, experiment, models, runtime, settings, tasks
from tff_reg.analysis import curvature
from tff_reg.commands import run as run_command
from tff_reg.experiment.report import trained
from tff_reg.experiment.rounds import checkpoints, directory, runs
from tff_reg.lazy import tff


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
        "--averages_all_clients",
        "--keep_best",
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
        began, models = before.train_clients(client_ids)
    for each in began.values():
        tf.nest.map_structure(np.testing.assert_array_equal, each, before.weights)
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


def test_a_client_that_never_took_part_begins_as_in_its_first_round(tmp_path):
    done = commands.call(
        run_command.main,
        *("--process=moon", "--model=cnn", "--num_clients=3", "--clients_per_round=1"),
        *("--total_rounds=2", "--local_epochs=1", "--client_learning_rate=0.05"),
        f"--output_dir={tmp_path / 'run'}",
    )
    assert done.returncode == 0, done.stderr
    before = trained.load(tmp_path / "run", tasks=tasks, round_num=1)
    after = trained.load(tmp_path / "run", tasks=tasks).weights.trainable
    ids = before.task.client_data.client_ids
    (second,) = data.sample_clients(ids, 1, seed=0, round_num=2)
    assert [second] != data.sample_clients(ids, 1, seed=0, round_num=1)
    with runtime.running("in_process"):
        _, models = before.train_clients([second])
    for one, other in zip(models[second].trainable, after):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)


def test_clients_are_not_trained_from_states_that_are_not_theirs(run, tmp_path):
    copied = shutil.copytree(run, tmp_path / "run")
    found = checkpoints.CheckpointStore(copied / "checkpoints").latest()
    states = [found.path.parent / name for name in found.clients.values()]
    assert bool(states) == (run.name == "moon")
    for path in states[1:]:
        shutil.copy(states[0], path)
    found = trained.load(copied, tasks=tasks)
    if states:
        with pytest.raises(trained.TrainedRunError, match="has changed since .*=0"):
            found.train_clients(found.task.client_data.client_ids)
    else:
        found.check_client_states()


@pytest.mark.parametrize(
    "process, look_ahead",
    [pytest.param("fednova", 0.0, marks=pytest.mark.slow), ("fedacg", 0.85)],
)
def test_clients_say_where_they_began_and_ended(process, look_ahead, tmp_path):
    """FedNova scales uploads, FedACG sends another model: both train as FedAvg does."""
    done = commands.call(
        run_command.main,
        f"--process={process}",
        *(["--fedacg_strength=0"] if look_ahead else []),
        "--model=cnn",
        "--norm=batch",
        "--num_clients=3",
        "--total_rounds=1",
        "--local_epochs=1",
        "--client_learning_rate=0.05",
        # The next round would have a tenth of the rate.
        "--learning_rate_schedule=exponential",
        "--learning_rate_decay=0.1",
        f"--output_dir={tmp_path / 'run'}",
    )
    assert done.returncode == 0, done.stderr
    found = trained.load(tmp_path / "run", tasks=tasks)
    client_id = found.task.client_data.client_ids[1]
    sent = found.weights
    if look_ahead:
        momentum = found._stored("finalizer/memory/fedacg/momentum")
        ahead = [w + look_ahead * m for w, m in zip(sent.trainable, momentum)]
        sent = tff.learning.models.ModelWeights(ahead, sent.non_trainable)
    with runtime.running("in_process"):
        began, ended = found.train_clients([client_id])
        fedavg = dataclasses.replace(found.config, process="fedavg", hyperparameters={})
        plain = runs.build_process(fedavg, found.task)
        state = plain.set_model_weights(plain.initialize(), sent)
        key = data.client_key(found.config.seed, 2, client_id)
        dataset = found.task.client_data.whole_client_dataset(client_id, key)
        expected = plain.get_model_weights(plain.next(state, [dataset]).state)
    for one, other in ((began[client_id], sent), (ended[client_id], expected)):
        for kind in ("trainable", "non_trainable"):
            tf.nest.map_structure(
                functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-6),
                list(getattr(one, kind)),
                list(getattr(other, kind)),
            )


def test_the_model_predicts_as_the_run_evaluated(run):
    found = trained.load(run, tasks=tasks)
    x, y = _test_examples(found)
    predicted = np.argmax(found.model().network(x, models.ForwardPass()).logits, axis=1)
    summary = json.loads((run / "summary.json").read_text("utf-8"))
    assert np.mean(predicted == y) == pytest.approx(summary["final_accuracy"])
    own, labels = found.client_examples("client_0000")
    assert own.shape == (len(labels), 8, 8, 1) and own.dtype == np.float32


def _test_examples(run):
    x, y = run.task.test_arrays()
    return run.task.normalize_fn(x), y


def _arrays(path):
    with np.load(path) as stored:
        return [stored[name] for name in stored.files]


def test_the_weights_are_those_that_are_asked_for(run):
    files = {
        "server": "final_weights.npz",
        "all_clients": "final_all_clients_weights.npz",
        "best": "best_weights.npz",
    }
    models = {}
    for kind, name in files.items():
        found = trained.load(run, tasks=tasks, weights=kind)
        assert found.kind == kind
        both = [*found.weights.trainable, *found.weights.non_trainable]
        tf.nest.map_structure(np.testing.assert_array_equal, both, _arrays(run / name))
        models[kind] = [v.numpy() for v in found.model().trainable_variables]
    assert not np.array_equal(models["server"][0], models["all_clients"][0])
    with pytest.raises(settings.SettingError, match="weights=last: choose one of ser"):
        trained.load(run, tasks=tasks, weights="last")


def test_the_best_weights_are_those_of_the_best_round(run):
    best = json.loads((run / "summary.json").read_text("utf-8"))["best_accuracy"]
    found = trained.load(run, tasks=tasks, weights="best")
    x, y = _test_examples(found)
    predicted = np.argmax(found.model().network(x, models.ForwardPass()).logits, axis=1)
    assert np.mean(predicted == y) == pytest.approx(best)


@pytest.fixture
def copy(run, tmp_path):
    """One that a test may damage."""
    return shutil.copytree(run, tmp_path / "copy")


def test_weights_that_a_run_has_not_are_said(copy):
    # A run without keep_best has none among its checkpoints' parts.
    manifest = copy / "checkpoints" / "round_000002.json"
    content = json.loads(manifest.read_text("utf-8"))
    del content["parts"]["best_weights.npz"]
    manifest.write_text(json.dumps(content), "utf-8")
    with pytest.raises(trained.TrainedRunError, match="a run with keep_best writes it"):
        trained.load(copy, tasks=tasks, weights="best")


def test_clients_are_not_measured_with_other_weights(run, tmp_path):
    found = trained.load(run, tasks=tasks, weights="all_clients")
    with pytest.raises(settings.SettingError, match="clients=2: it must be 0 with"):
        curvature.measure(found, curvature.Settings(clients=2), tmp_path)


def test_a_damaged_checkpoint_is_passed_over_and_kept(copy):
    (_, checkpoint) = checkpoints.CheckpointStore(copy / "checkpoints").all()
    newest = checkpoint.part("server_state.npz")
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


def test_a_run_of_an_own_process_is_said_to_have_no_task(copy):
    config = json.loads((copy / "config.json").read_text())
    del config["process"]
    (copy / "config.json").write_text(json.dumps(config))
    with pytest.raises(trained.TrainedRunError, match="made by experiment.train"):
        trained.load(copy, tasks=tasks)


def test_a_run_is_not_read_with_another_split(tmp_path):
    split, path = tmp_path / "split.txt", tmp_path / "run"
    clients = [list(range(40)), list(range(40, 80))]
    split.write_text(str(dict(enumerate(clients))))
    config = experiment.RunConfig(
        process="fedavg",
        model="cnn",
        total_rounds=1,
        num_clients=2,
        clients_per_round=1,
        local_epochs=1,
        partition="split_file",
        split_file=str(split),
        output_dir=str(path),
    )
    experiment.run(config)
    assert trained.load(path).round_num == 1
    split.write_text(str(dict(enumerate(reversed(clients)))))
    with pytest.raises(experiment.DirectoryError, match="differs in the split"):
        trained.load(path)
