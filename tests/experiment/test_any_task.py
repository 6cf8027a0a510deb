"""Runs of models that are no classifiers of one array, from Python and by commands."""

import json

import keras
import numpy as np
import pytest

import tff_reg
from tests import commands
from tests.experiment.own_runs import SILENT
from tff_reg import tables
from tff_reg.commands import compare, run
from tff_reg.settings import SettingError

SMALL = dict(
    num_clients=4,
    clients_per_round=2,
    local_epochs=2,
    partition="iid",
    client_learning_rate=0.05,
    batch_size=16,
    total_rounds=3,
)
L = keras.layers


def two_inputs(kind):
    """A regression of two inputs, in a dict or a list, compiled with mse."""
    keras.utils.set_random_seed(1)
    age, job = keras.Input((3,), name="age"), keras.Input((2,), name="job")
    x = L.Dense(8, "tanh", name="hidden")(L.Concatenate()([age, job]))
    inputs = {"job": job, "age": age} if kind is dict else [age, job]
    model = keras.Model(inputs, L.Dense(1, name="price")(x), name="prices")
    model.compile(loss="mse")
    return model


def head(outputs, activation, loss):
    keras.utils.set_random_seed(1)
    layers = [keras.Input((5,)), L.Dense(8, "tanh"), L.Dense(outputs, activation)]
    model = keras.Sequential(layers, name="network")
    model.compile(loss=loss)
    return model


def columns(count, seed):
    x = np.random.default_rng(seed).normal(size=(count, 5)).astype(np.float32)
    return x, x @ np.array([0.5, -1, 0.3, 0.8, 0.1], np.float32)


def data_of(kind, count, seed):
    x, target = columns(count, seed)
    if kind == "dict":
        return {"job": x[:, 3:], "age": x[:, :3]}, target
    if kind == "list":
        return [x[:, :3], x[:, 3:]], target
    if kind == "labels":  # Several of three at once.
        return x, (x[:, :3] > 0.3).astype(np.float32)
    return x, (target > 0).astype(np.int64)


MODELS = {
    "dict": lambda: two_inputs(dict),
    "list": lambda: two_inputs(list),
    "labels": lambda: head(3, "sigmoid", "binary_crossentropy"),
    "one": lambda: head(1, "sigmoid", "binary_crossentropy"),
}
SCORES = {"dict": "mae", "list": "mae", "labels": "AUC", "one": "binary_accuracy"}


def given(kind, **more):
    asked = dict(
        model=MODELS[kind](),
        client_data=data_of(kind, 160, 0),
        test_data=data_of(kind, 40, 1),
        score=SCORES[kind],
        progress=SILENT,
    )
    return {**SMALL, **asked, **more}


def write_npz(path, kind):
    """The same arrays as a file, and the model as another."""
    arrays = {}
    for part, (x, y) in (
        ("train", data_of(kind, 160, 0)),
        ("test", data_of(kind, 40, 1)),
    ):
        several = dict(enumerate(x)) if isinstance(x, list) else x
        if isinstance(several, dict):
            arrays |= {f"x_{part}/{name}": each for name, each in several.items()}
        else:
            arrays[f"x_{part}"] = x
        arrays[f"y_{part}"] = y
    np.savez(path / "data.npz", **arrays)
    MODELS[kind]().save(path / "model.keras")
    flags = {**SMALL, "score": SCORES[kind], "task": "arrays"}
    flags |= {"data_dir": path / "data.npz", "model": path / "model.keras"}
    return [f"--{name}={value}" for name, value in flags.items()]


@pytest.mark.parametrize("kind", MODELS)
def test_a_run_of_python_and_of_the_command_are_the_same(kind, tmp_path):
    asked, score = given(kind), SCORES[kind]
    began = asked["model"].get_weights()
    result = tff_reg.run("fedavg", **asked)
    x, y = data_of(kind, 40, 1)
    predicted = result.model.predict(x, verbose=0)
    for own, old in zip(asked["model"].get_weights(), began):
        np.testing.assert_array_equal(own, old)  # The result's model is a copy.
    measured = {
        "mae": lambda: np.abs(predicted[:, 0] - y).mean(),
        "binary_accuracy": lambda: ((predicted[:, 0] > 0.5) == y).mean(),
        "AUC": lambda: float(keras.metrics.AUC()(y, predicted)),
    }[score]()
    assert result.summary[f"final_{score}"] == pytest.approx(measured, abs=1e-5)
    assert result.rows[-1]["training/loss"] < result.rows[0]["training/loss"]

    flags = write_npz(tmp_path, kind)
    found = commands.call(
        run.main, *flags, "--process=fedavg", f"--output_dir={tmp_path / 'run'}"
    )
    assert found.returncode == 0, found.stderr
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary[f"final_{score}"] == result.summary[f"final_{score}"]


def test_a_run_resumes_to_the_same_bytes(tmp_path):
    for name, rounds in (("whole", [3]), ("parts", [1, 3])):
        for total in rounds:
            where = tmp_path / name
            asked = given("dict", total_rounds=total, output_dir=str(where))
            tff_reg.run("fedprox", **asked, keep_best=True)
    parts = [tmp_path / n / "final_weights.npz" for n in ("whole", "parts")]
    assert parts[0].read_bytes() == parts[1].read_bytes()
    text = (tmp_path / "parts" / "metrics.csv").read_text().splitlines()
    assert text[0].startswith("round_num,training/loss,training/mae,evaluation/loss,e")
    rows = tables.from_csv("\n".join(text))
    errors = [float(row["evaluation/mae"]) for row in rows]
    summary = json.loads((tmp_path / "parts" / "summary.json").read_text())
    assert summary["best_mae"] == min(errors)
    best, last = (
        dict(np.load(tmp_path / "parts" / f"{name}_weights.npz"))
        for name in ("best", "final")
    )
    is_last = all(np.array_equal(best[name], last[name]) for name in last)
    assert is_last == (min(errors) == errors[-1])


def test_a_comparison_marks_the_lowest_error_and_stops_by_it(tmp_path):
    asked = given("dict", total_rounds=8, patience=2, output_dir=str(tmp_path))
    asked |= {"client_learning_rate": 0.02, "fedprox_strength": 60.0}
    found = tff_reg.compare(["fedprox", "fedavg"], seeds=3, **asked)
    rows = {row["process"]: row for row in found.rows}
    assert rows["fedavg"]["mae_mean"] < rows["fedprox"]["mae_mean"]
    assert rows["fedavg"]["difference_mean"] < 0 and rows["fedavg"]["difference_high"]
    line = next(each for each in str(found).splitlines() if "| fedavg" in each)
    assert f"**{rows['fedavg']['mae_mean']:.4g}" in line and "%" not in line
    assert len(found.plot().axes) == 1
    text = (tmp_path / "curves.csv").read_text().splitlines()
    assert text[0] == "process,round,mae_mean,mae_std"


def test_the_command_compares_them_and_early_stopping_follows_the_error(tmp_path):
    flags = write_npz(tmp_path, "list")
    more = ["--processes=fedavg,scaffold", f"--output_dir={tmp_path / 'out'}"]
    more += ["--total_rounds=6", "--patience=1", "--client_learning_rate=1.9"]
    found = commands.call(compare.main, *flags, *more)
    assert found.returncode == 0, found.stderr
    head = (tmp_path / "out" / "table.md").read_text().splitlines()[0]
    assert " mae " in head and "accuracy" not in head
    ended = []
    for path in sorted((tmp_path / "out").glob("*-seed0")):
        rows = tables.from_csv((path / "metrics.csv").read_text())
        errors = [float(row["evaluation/mae"]) for row in rows]
        ended.append(len(errors) < 6)
        assert not ended[-1] or errors[-1] >= min(errors[:-1])
        assert all(b < a for a, b in zip(errors[:-1], errors[1:-1]))
    assert any(ended)


def test_a_score_that_a_model_does_not_have_is_told(tmp_path):
    with pytest.raises(SettingError, match="score=accuracy: models here have loss; g"):
        tff_reg.run("fedavg", **given("dict", score="accuracy"))
    result = tff_reg.run("fedavg", **given("dict", score=None, total_rounds=1))
    assert result.summary["score"] == "loss" and result.summary["final_loss"] > 0
    flags = [each for each in write_npz(tmp_path, "dict") if "--score" not in each]
    found = commands.call(run.main, *flags, "--process=fedavg")
    assert found.returncode == 2 and "score=accuracy" in found.stderr.splitlines()[-1]


def test_partitions_of_classes_say_that_there_are_none_and_groups_take_their_place():
    asked = given("dict", partition="dirichlet_balanced", concentration=0.3)
    with pytest.raises(ValueError, match="divides classes, and the labels are none: g"):
        tff_reg.run("fedavg", **asked)
    groups = np.where(asked["client_data"][1] > 0, "high", "low")
    checked = (
        tff_reg.run("fedavg", **asked, stratify=groups, total_rounds=1)
        if False
        else None
    )
    assert checked is None
    own = tff_reg.tasks.own_data.OwnData(
        asked["client_data"], asked["test_data"], asked["model"], {}, groups
    )
    dealt = own.read(
        "own_data", partition="shards", classes_per_client=1, num_clients=4
    )
    assert [len({*groups[own]}) for own in dealt.positions] == [1] * 4


def test_methods_that_need_classes_and_measures_of_them_say_so():
    with pytest.raises(ValueError, match="classifier"):
        tff_reg.run("fedproto", **given("one"))
    with pytest.raises(
        SettingError, match="^client_evaluation: it measures accuracies"
    ):
        tff_reg.run("fedavg", **given("dict", client_evaluation=True))
    with pytest.raises(SettingError, match="label_noise.*no two classes"):
        tff_reg.run("fedavg", **given("dict", label_noise=(0.1,)))


def test_inputs_of_other_names_are_refused_not_taken_in_their_order():
    asked = given("dict")
    for name in ("client_data", "test_data"):
        x, y = asked[name]
        asked[name] = ({"job": x["age"], "work": x["job"]}, y)
    words = "takes a dict of age, job, and client_data has a dict of job, work"
    with pytest.raises(ValueError, match=words):
        tff_reg.run("fedavg", **asked)


@pytest.mark.parametrize("score", ["auc", "binary_accuracy"])
def test_scores_of_logits_are_those_of_their_probabilities(score):
    logits = keras.losses.BinaryCrossentropy(from_logits=True)
    found = []
    for model in (head(3, "sigmoid", "binary_crossentropy"), head(3, None, logits)):
        run_of = given("labels", model=model, score=score)
        found.append(tff_reg.run("fedavg", **run_of).rows[-1][f"evaluation/{score}"])
    assert found[0] == pytest.approx(found[1], abs=1e-6) and found[0] > 0.55


def test_scores_of_classes_take_probabilities_too():
    name = "sparse_categorical_crossentropy"
    x, target = columns(160, 0)
    data = dict(client_data=(x, (target > 0).astype(int)), test_data=None)
    data |= dict(validation_share=0.2, score=name, progress=SILENT)
    model = head(2, None, None)
    found = tff_reg.run("fedavg", model=model, **SMALL, **data).rows[-1]
    assert found[f"evaluation/{name}"] == pytest.approx(found["evaluation/loss"], 1e-5)


def test_clients_with_several_inputs_are_measured():
    keras.utils.set_random_seed(1)
    parts = {"age": keras.Input((3,)), "job": keras.Input((2,))}
    joined = L.Concatenate()([parts["age"], parts["job"]])
    model = keras.Model(parts, L.Dense(2)(L.Dense(8, "tanh")(joined)))
    (x, target), (x_test, of_test) = data_of("dict", 160, 0), data_of("dict", 40, 1)
    asked = dict(client_data=(x, (target > 0).astype(int)), model=model)
    asked |= dict(test_data=(x_test, (of_test > 0).astype(int)), progress=SILENT)
    made = tff_reg.run("fedavg", **SMALL, **asked, client_evaluation=0)
    last = made.rows[-1]
    shares = [row["accuracy"] for row in made.clients]
    assert last["clients/mean"] == pytest.approx(np.mean(shares))
    own = tff_reg.run("fedavg", **SMALL, **asked, client_test_share=0.3)
    assert 0 < own.rows[-1]["clients/mean"] < 1
