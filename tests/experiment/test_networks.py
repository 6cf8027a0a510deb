"""Runs that begin with weights from a file, and of networks of which a part trains."""

import dataclasses
import shutil

import numpy as np
import pytest
import tensorflow as tf

from tff_reg import experiment
from tff_reg.analysis import curvature, plane
from tff_reg.experiment.report import trained
from tff_reg.experiment.rounds import progress, runs

SMALL = dict(
    process="fedprox+fedsam",
    model="cnn",
    norm="batch",
    num_clients=4,
    clients_per_round=2,
    local_epochs=2,
    batch_size=16,
    partition="iid",
    client_learning_rate=0.05,
    total_rounds=2,
)


_CURVATURE = curvature.Settings(20, trace_samples=2, clients=0)
_PLANE = plane.Settings("random", points=3, examples=20)


def _run(where, **settings):
    config = experiment.RunConfig(**{**SMALL, **settings}, output_dir=str(where))
    return experiment.run(config, progress=progress.Silence())


def _weights(where, name="final_weights.npz"):
    with np.load(where / name) as stored:
        return {each: stored[each] for each in stored.files}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The directory of a run of which the whole network trains."""
    where = tmp_path_factory.mktemp("whole") / "run"
    _run(where)
    return where


def test_a_run_begins_with_the_weights_of_another_and_keeps_the_frozen_ones(
    whole, tmp_path
):
    file, where = tmp_path / "w.npz", tmp_path / "run"
    shutil.copy(whole / "final_weights.npz", file)
    given = dict(initial_weights=str(file), freeze=("conv1",), keep_best=True)
    _run(tmp_path / "at once", **given)
    _run(where, **given, total_rounds=1)
    result = _run(where, **given)
    before, after = _weights(whole), _weights(where)
    assert after.keys() == before.keys()
    same = {name for name in before if np.array_equal(before[name], after[name])}
    assert same == {name for name in before if name.startswith("conv1/")}
    at_once = (tmp_path / "at once" / "final_weights.npz").read_bytes()
    assert (where / "final_weights.npz").read_bytes() == at_once
    for kind, name in (("server", "final_weights.npz"), ("best", "best_weights.npz")):
        read = trained.load(where, weights=kind)
        values = [v.numpy() for v in read.model().trainable_variables]
        for value, expected in zip(values, _weights(where, name).values()):
            np.testing.assert_array_equal(value, expected)
    x = np.zeros((1, 8, 8, 1), np.uint8)
    np.testing.assert_array_equal(
        result.model.predict(x), read_predictions(trained.load(where), x)
    )
    np.savez(file, **{name: value + 1 for name, value in before.items()})
    with pytest.raises(experiment.DirectoryError, match="in the initial weights"):
        _run(where, **given, total_rounds=3)


def read_predictions(run, x):
    """The outputs of a run's model for images as they are stored."""
    return run.model().predict_on_batch(run.task.normalize_fn(x), training=False)


def test_tf32_changes_nothing_on_a_cpu_but_what_is_recorded(tmp_path):
    found = []
    for name in (None, "tf32"):
        where = tmp_path / str(name)
        given = dict(process="fedavg", total_rounds=1, mixed_precision=name)
        _run(where, **given)
        assert trained.load(where).config.mixed_precision == name
        is_on = tf.config.experimental.tensor_float_32_execution_enabled()
        assert is_on == (name == "tf32")
        found.append((where / "final_weights.npz").read_bytes())
    assert found[0] == found[1]


def test_bfloat16_trains_to_about_the_same_accuracy(tmp_path):
    found = []
    for name in (None, "bfloat16"):
        where = tmp_path / str(name)
        given = dict(process="fedavg", total_rounds=8, mixed_precision=name)
        found.append(_run(where, **given, rounds_per_evaluation=8))
        kinds = {value.dtype.name for value in _weights(where).values()}
        assert kinds == {"float32"}
    exact, short = (each.summary["final_accuracy"] for each in found)
    assert exact > 0.8 and short == pytest.approx(exact, abs=0.04)
    losses = [each.rows[0]["training/loss"] for each in found]
    assert losses[0] != losses[1] == pytest.approx(losses[0], rel=0.05)
    # Second derivatives in bfloat16 would be wrong in their third digit.
    run = trained.load(where)
    task = runs.build_task(dataclasses.replace(run.config, mixed_precision=None))
    found = []
    for number, each in enumerate((run, dataclasses.replace(run, task=task))):
        output_dir = tmp_path / f"analysis{number}"
        curvature.measure(each, _CURVATURE, output_dir)
        plane.measure(each, _PLANE, output_dir)
        names = ("hessian.csv", "landscape.csv")
        found.append([(output_dir / name).read_bytes() for name in names])
    assert found[0] == found[1]
