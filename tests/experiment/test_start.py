"""`tff_reg.run`: what a notebook or a script calls."""

import json
import types
import warnings

import IPython.display
import keras
import numpy as np
import pytest

import tff_reg
from tests.experiment import finished
from tests.experiment.own_runs import (
    SILENT,
    SMALL,
    TEST,
    TRAIN,
    X,
    Y,
    examples,
    keras_model,
    rate,
    run_own,
)
from tff_reg import data, experiment, lazy, tasks
from tff_reg.experiment import start
from tff_reg.experiment.report import trained
from tff_reg.experiment.rounds import progress, remarks, runs


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    """A run in memory, from a folder in which nothing may be written."""
    folder, told = tmp_path_factory.mktemp("empty"), finished.Notes()
    model = keras_model()
    before = [w.copy() for w in model.get_weights()]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        result = run_own(model=model, progress=told)
    return types.SimpleNamespace(
        result=result, model=model, before=before, lines=told.lines, folder=folder
    )


def test_it_trains_ones_own_model_and_writes_nothing(own):
    model = "the given Keras model, 83 weights; its outputs are taken as probabilities"
    assert f"model    {model}" in own.lines
    assert "output   none: output_dir=DIR keeps the run" in own.lines
    assert not [*own.folder.iterdir()]
    assert len(own.result.rows) == 4
    assert own.result.rows[-1]["training/loss"] < own.result.rows[0]["training/loss"]


def test_its_model_predicts_raw_examples_and_the_users_stays_as_it_was(own):
    assert own.result.model is not own.model
    shares = own.result.model.predict(TEST[0], verbose=0)
    np.testing.assert_allclose(shares.sum(axis=-1), 1, rtol=1e-5)
    accuracy = np.mean(shares.argmax(-1) == TEST[1][:, 0])
    assert accuracy == own.result.summary["final_accuracy"]
    for weight, before in zip(own.model.get_weights(), own.before):
        np.testing.assert_array_equal(weight, before)


def test_its_own_metrics_are_beside_accuracy(own):
    last = own.result.rows[-1]
    shares = own.result.model.predict(TEST[0], verbose=0)
    second = np.sort(shares, axis=-1)[:, 1]
    of_label = np.take_along_axis(shares, TEST[1], axis=-1)[:, 0]
    assert last["evaluation/top2"] == pytest.approx(np.mean(of_label >= second))
    highest = np.mean(shares.max(axis=-1))
    assert last["evaluation/confidence"] == pytest.approx(highest, rel=1e-5)
    assert own.result.metrics["evaluation/top2"].iloc[-1] == last["evaluation/top2"]
    assert own.result.metrics.shape == (4, len(last))


# Five seconds: each refusal reads the run and makes the network anew.
def test_it_resumes_to_the_same_bytes_and_refuses_other_functions(own, tmp_path):
    later = tmp_path / "later"
    run_own(output_dir=str(later), total_rounds=1)
    resumed = run_own(output_dir=str(later))
    for one, other in zip(resumed.weights.trainable, own.result.weights.trainable):
        np.testing.assert_array_equal(one, other)
    assert (later / "metrics.csv").read_text("utf-8").count("\n") == 5
    stored = json.loads((later / "config.json").read_text("utf-8"))
    assert stored["client_learning_rates"] == [*map(rate, range(1, 5))]
    assert stored["sample_fn"] == "in_turn"
    assert [*stored["metrics"]] == ["top2", "confidence"]
    others = {
        "sample_fn": lambda round_num, client_ids: client_ids[:1],
        "client_learning_rate": lambda round_num: 0.002 * 0.6**round_num,
        "model": keras_model(shape=(6,), outputs=4),
        "client_data": examples(200, seed=2),
    }
    words = ["sample_fn=in_turn", "client_learning_rate", "model", "other"]
    for (name, other), word in zip(others.items(), words):
        with pytest.raises(experiment.DirectoryError, match=word):
            run_own(output_dir=str(later), total_rounds=6, **{name: other})
    with pytest.raises(experiment.DirectoryError, match="=in_turn.*, not none"):
        run_own(output_dir=str(later), total_rounds=6, sample_fn=None)


def test_a_clients_dict_and_client_data_are_the_same(own):
    x, y = TRAIN
    positions = np.split(np.arange(200), [30, 90, 120])
    clients = {f"c{n}": (x[own], y[own]) for n, own in enumerate(positions)}
    ready = data.ArrayClientData(x, y[:, 0], positions, [*clients])
    left_out = ("partition", "concentration", "num_clients")
    given = {name: value for name, value in SMALL.items() if name not in left_out}
    given.update(test_data=TEST, model=keras_model(), total_rounds=1, progress=SILENT)
    first, second = (
        tff_reg.run(**given, client_data=each) for each in (clients, ready)
    )
    for one, other in zip(first.weights.trainable, second.weights.trainable):
        np.testing.assert_array_equal(one, other)
    with pytest.raises(ValueError, match="Leave num_clients out: .* clients already"):
        tff_reg.run(**given, client_data=clients, num_clients=4)


def test_settings_that_are_not_given_are_the_tasks_for_every_method(own):
    # The function took clients as it liked.
    assert own.result.summary["clients_per_round"] is None
    # FedProx's paper clips nothing.
    assert "max_gradient_norm=10.0" in " ".join(own.lines)
    assert own.result.summary["settings_from"] == "the task own_data"


_EVEN = {"client_data": (X, 2 * Y), "test_data": (TEST[0], 2 * TEST[1])}


def _compiled():
    model = keras_model()
    model.compile("adam", "sparse_categorical_crossentropy")
    return model


@pytest.mark.parametrize(
    "changes, words",
    [
        ({}, "the model takes the examples as they are, numbers up to 255"),
        (
            {**_EVEN, "model": keras_model(5)},
            "2 of 5 classes, such as 1, have no",
        ),
        ({"test_data": (X[:9], Y[:9])}, "9 of 9 test examples are training examples,"),
        (
            {
                "client_data": (X / 255.0, Y),
                "test_data": (TEST[0] * 1.0, TEST[1]),
            },
            "the deviation 0.297, test examples 123 ",
        ),
        (
            {
                "client_data": {"a": (X[:60], Y[:60]), "b": (X[50:], Y[50:])},
                **dict.fromkeys(("partition", "concentration", "num_clients")),
            },
            "10 examples are with more than one client",
        ),
        ({"model": _compiled()}, "the model's optimizer (Adam) is not used"),
        (
            {
                "client_data": (X * 1.0, Y),
                "test_data": (TEST[0] * 1.0, TEST[1]),
            },
            "numbers up to 255: give",
        ),
        (
            {
                "model": keras.Sequential(
                    [
                        keras.Input((8, 8, 1)),
                        keras.layers.Rescaling(1 / 16),
                        keras.layers.Flatten(),
                        keras.layers.Dense(10),
                    ]
                ),
                **dict.fromkeys(("client_data", "test_data")),
            },
            "has a Rescaling layer, and the images of digits are normalised",
        ),
    ],
)
def test_data_and_models_that_are_suspicious_are_told(changes, words):
    given = {**SMALL, "client_data": TRAIN, "test_data": TEST, "model": keras_model()}
    config, tasks_ = start.Arguments(**{**given, **changes}).to_config()
    resolved = config.resolved(tasks_)
    said = [*remarks.of(resolved, runs.build_task(resolved, tasks_))]
    assert any(words in line for line in said), said
    # One line for each, and none of what is not so.
    assert len(said) <= 2


def test_clients_that_never_train_are_told():
    told = finished.Notes()
    clients = {"a": (X[:30], Y[:30]), "b": (X[30:90], Y[30:90]), "c": (X[90:], Y[90:])}
    tff_reg.run(
        process="fedavg",
        model=keras_model(),
        client_data=clients,
        test_data=TEST,
        total_rounds=1,
        batch_size=60,
        drop_remainder=True,
        progress=told,
    )
    assert any(line.startswith("1 of 3 clients never train:") for line in told.lines)


def test_a_model_that_is_not_built_takes_what_the_examples_are():
    layers = [keras.layers.Dense(8, "relu"), keras.layers.Dense(3)]
    result = run_own(model=keras.Sequential(layers), total_rounds=1, metrics={})
    accuracy = np.mean(result.model.predict(TEST[0]).argmax(-1) == TEST[1][:, 0])
    assert accuracy == result.summary["final_accuracy"]
    with pytest.raises(ValueError, match="begin it with keras.Input"):
        tff_reg.run(process="fedavg", model=keras.Sequential([keras.layers.Dense(3)]))


def test_a_model_that_keras_cannot_copy_is_told_to_be_trained():
    class Network(keras.Model):
        def __init__(self):
            super().__init__()
            self.last = keras.layers.Dense(3)

        def call(self, x):
            return self.last(x)

    network = Network()
    result = run_own(model=network, total_rounds=1, metrics={})
    with pytest.warns(UserWarning, match="cannot copy .* make the model anew"):
        assert result.model is network


def test_a_network_of_ours_gives_a_model_for_stored_images():
    result = tff_reg.run(
        **{**SMALL, "process": "fedavg"},
        task="digits",
        model="cnn",
        total_rounds=1,
        progress=SILENT,
    )
    x, y = tasks.build("digits", num_clients=4, partition="iid").test_arrays()
    assert x.dtype == np.uint8
    accuracy = np.mean(result.model.predict(x).argmax(-1) == y)
    assert accuracy == result.summary["final_accuracy"]
    images = (x[:200, :, :, 0], y[:200])
    result = tff_reg.run(
        **SMALL,
        model="cnn",
        client_data=images,
        test_data=images,
        total_rounds=1,
        progress=SILENT,
    )
    accuracy = np.mean(result.model.predict(x[:200]).argmax(-1) == y[:200])
    assert accuracy == result.summary["final_accuracy"]


def test_examples_of_training_can_be_held_out_and_ones_model_trained_on_a_task():
    held_out = run_own(test_data=None, validation_share=0.3, metrics={}, total_rounds=1)
    assert held_out.summary["validation_share"] == 0.3
    assert [curve.name for curve in held_out.drawn][0] == "held-out"
    model = keras_model(outputs=10, shape=(8, 8, 1))
    given = {**SMALL, "total_rounds": 1, "progress": SILENT}
    before = model.get_weights()
    on_task = tff_reg.run(**given, model=model, task="digits")
    assert on_task.summary["task"] == "digits"
    assert on_task.model.predict(np.zeros((2, 8, 8, 1), np.uint8)).shape == (2, 10)
    np.testing.assert_equal(model.get_weights(), before)
    with pytest.raises(
        ValueError, match=r"takes examples of shape \(6,\), and the task digits"
    ):
        tff_reg.run(**given, model=keras_model(), task="digits")


class Factor(keras.layers.Layer):
    factor = 1.0

    def call(self, x):
        return self.factor * x


def test_a_model_that_its_copy_does_not_equal_is_given_itself():
    normalization = keras.layers.Normalization()
    normalization.adapt(10.0 * X + 100.0)
    changed = Factor()
    changed.factor = -3.0  # Of which the config knows nothing.
    for layer, warns in ((normalization, False), (changed, True)):
        model = keras.Sequential(
            [keras.Input((6,)), layer, keras.layers.Dense(3, name="head")]
        )
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            result = run_own(model=model, total_rounds=1, metrics={})
            predicted = result.model.predict(TEST[0], verbose=0).argmax(-1)
        accuracy = np.mean(predicted == TEST[1].reshape(-1))
        assert accuracy == pytest.approx(result.summary["final_accuracy"])
        assert any("cannot copy" in str(each.message) for each in told) == warns


def test_a_notebook_shows_one_picture_that_is_replaced(monkeypatch):
    shown = []

    class Handle:
        def update(self, picture):
            shown.append(("update", picture))

    def show(picture, display_id):
        shown.append(("display", picture))
        return Handle()

    monkeypatch.setattr(progress, "in_notebook", lambda: True)
    monkeypatch.setattr(IPython.display, "display", show)
    monkeypatch.setattr(lazy.ipython_display, "display", show)
    monkeypatch.setattr("tff_reg.experiment.rounds.callbacks._SECONDS_BETWEEN", 0.0)
    monkeypatch.setattr(runs.progress_lib, "for_this_output", lambda rounds: SILENT)
    run_own(progress=None, total_rounds=3)
    assert [kind for kind, _ in shown] == ["display", *["update"] * 3]
    pictures = [picture.data for _, picture in shown]
    assert all(each.startswith(b"\x89PNG") for each in pictures)
    assert len({*pictures}) == 3  # The last is drawn once more at the end.
    shown.clear()
    run_own(total_rounds=1)  # With a progress of the user's.
    assert not shown


def test_the_plot_is_a_figure_with_the_curves(own, tmp_path):
    figure = own.result.plot()
    (axes,) = figure.axes
    labels = {line.get_label().split()[0] for line in axes.lines}
    assert {"test", "training,"} <= labels
    assert figure._repr_png_().startswith(b"\x89PNG")
    figure.savefig(tmp_path / "plot.pdf")
    with pytest.raises(ValueError, match="no score that could be drawn"):
        experiment.RunResult(None, None, None, [], {}, lambda: None).plot()


def test_test_examples_of_classes_that_no_client_has_are_told(capsys):
    run_own(client_data=(X, np.minimum(Y, 1)), total_rounds=1, progress=None)
    count = int((TEST[1] == 2).sum())
    told = f"{count} of 60 test examples are of classes that no client has"
    assert told in " ".join(capsys.readouterr().out.split())


def test_a_keras_model_has_no_projector_of_ours(tmp_path):
    run_own(process="moon", total_rounds=1, output_dir=tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["projector"] == "none"
    with pytest.raises(ValueError, match="arrays from Python, which are not in"):
        trained.load(tmp_path)
