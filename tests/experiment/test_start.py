"""`tff_reg.run` and `tff_reg.compare`: what a notebook or a script calls."""

import functools
import inspect
import json
import sys
import types
import warnings

import IPython.display
import keras
import numpy as np
import pytest

import tff_reg
from tests.experiment import finished
from tff_reg import data, experiment, lazy, tasks
from tff_reg.experiment.config import functions
from tff_reg.experiment.report import trained
from tff_reg.experiment.rounds import progress, runs
from tff_reg.models import keras_copies

SILENT = progress.Silence()
SMALL = dict(
    process="fedprox",
    num_clients=4,
    clients_per_round=2,
    local_epochs=1,
    partition="dirichlet_balanced",
    concentration=0.3,
)


def keras_model(outputs=3, shape=(6,)):
    """A network that begins with the same weights each time it is made."""
    keras.utils.set_random_seed(3)
    layers = [
        keras.Input(shape),
        keras.layers.Flatten(),
        keras.layers.Dense(8, "relu", name="hidden"),
        keras.layers.Dense(outputs, "softmax", name="last"),
    ]
    return keras.Sequential(layers, name="network")


def examples(count, seed=0):
    """uint8 rows whose class is that of the largest of three groups, as a column."""
    x = np.random.default_rng(seed).integers(0, 256, (count, 6), dtype=np.uint8)
    return x, x.reshape(count, 3, 2).sum(axis=-1).argmax(axis=-1)[:, np.newaxis]


TRAIN, TEST = examples(200), examples(60, seed=1)


def rate(round_num):
    return 0.002 * 0.5**round_num


def in_turn(round_num, client_ids):
    return [client_ids[round_num % 4], client_ids[(round_num + 1) % 4]]


def confidence(labels, predictions):
    assert labels.shape == (60,) and predictions.shape == (60, 3)
    return predictions.max(axis=-1)


def run_own(**arguments):
    """A run on the arrays with everything that can be given."""
    given = dict(
        **SMALL,
        model=keras_model(),
        client_data=TRAIN,
        test_data=TEST,
        total_rounds=4,
        client_learning_rate=rate,
        sample_fn=in_turn,
        metrics={
            "top2": keras.metrics.SparseTopKCategoricalAccuracy(2),
            "confidence": confidence,
        },
        progress=SILENT,
    )
    return tff_reg.run(**{**given, **arguments})


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
    assert "model    the given Keras model, 83 weights" in own.lines
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


def test_it_resumes_to_the_same_bytes_and_refuses_other_functions(tmp_path):
    at_once, later = tmp_path / "at_once", tmp_path / "later"
    run_own(output_dir=str(at_once))
    run_own(output_dir=str(later), total_rounds=2)
    run_own(output_dir=str(later))
    assert finished.results(later) == finished.results(at_once)
    assert (later / "metrics.csv").read_text("utf-8").count("\n") == 5
    stored = json.loads((later / "config.json").read_text("utf-8"))
    assert stored["client_learning_rates"] == [rate(n) for n in (1, 2, 3, 4)]
    assert stored["sample_fn"].startswith("in_turn 3.")
    assert [*stored["metrics"]] == ["top2", "confidence"]
    others = {
        "sample_fn": lambda round_num, client_ids: client_ids[:1],
        "metrics": {},
        "client_learning_rate": lambda round_num: 0.002 * 0.6**round_num,
        "model": keras_model(shape=(6,), outputs=4),
        "client_data": examples(200, seed=2),
    }
    words = ["sample_fn=in_turn", "metrics=", "client_learning_rate", "model", "other"]
    for (name, other), word in zip(others.items(), words):
        with pytest.raises(experiment.DirectoryError, match=word):
            run_own(output_dir=str(later), total_rounds=6, **{name: other})
    with pytest.raises(experiment.DirectoryError, match="=in_turn.*, not none"):
        run_own(output_dir=str(later), total_rounds=6, sample_fn=None)
    with pytest.raises(ValueError, match="trained a Keras model of yours: give it"):
        experiment.predict(later, TEST[0])


def test_a_clients_dict_and_client_data_are_the_same(own):
    x, y = TRAIN
    positions = np.split(np.arange(200), [30, 90, 120])
    clients = {f"c{n}": (x[own], y[own]) for n, own in enumerate(positions)}
    ready = data.ArrayClientData(x, y[:, 0], positions, [*clients])
    left_out = ("partition", "concentration", "num_clients")
    given = {name: value for name, value in SMALL.items() if name not in left_out}
    given.update(test_data=TEST, model=keras_model(), total_rounds=2, progress=SILENT)
    first, second = (
        tff_reg.run(**given, client_data=each) for each in (clients, ready)
    )
    for one, other in zip(first.weights.trainable, second.weights.trainable):
        np.testing.assert_array_equal(one, other)
    drawn = tff_reg.run(
        **given, client_data=clients, sample_fn=lambda n, ids: ids[3:], metrics={}
    )
    assert drawn.rows[0]["training/num_examples"] == 80
    with pytest.raises(ValueError, match="Leave num_clients out: .* clients already"):
        tff_reg.run(**given, client_data=clients, num_clients=4)


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
    accuracy = np.mean(result.model.predict(x, verbose=0).argmax(-1) == y)
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
    accuracy = np.mean(result.model.predict(x[:200], verbose=0).argmax(-1) == y[:200])
    assert accuracy == result.summary["final_accuracy"]


def test_examples_of_training_can_be_held_out_and_ones_model_trained_on_a_task():
    held_out = run_own(test_data=None, validation_share=0.3, metrics={})
    assert held_out.summary["validation_share"] == 0.3
    assert [curve.name for curve in held_out.drawn][0] == "held-out"
    model = keras_model(outputs=10, shape=(8, 8, 1))
    given = {**SMALL, "total_rounds": 1, "progress": SILENT}
    before = model.get_weights()
    on_task = tff_reg.run(**given, model=model, task="digits")
    assert on_task.summary["task"] == "digits"
    assert on_task.model.predict(np.zeros((2, 8, 8, 1), np.uint8)).shape == (2, 10)
    np.testing.assert_equal(model.get_weights(), before)
    with pytest.raises(ValueError, match=r"takes examples of shape \(6,\), and digits"):
        tff_reg.run(**given, model=keras_model(), task="digits")


X, Y = TRAIN
IMAGES = X.reshape(-1, 3, 2).astype(np.float32)


@pytest.mark.parametrize(
    "wrong, error, words",
    [
        ({"total_ronds": 3}, TypeError, r"no setting 'total_ronds' \(did you mean"),
        ({"total_rounds": "3"}, ValueError, "total_rounds=3: it must be a whole"),
        ({"client_data": X}, TypeError, r"^client_data is a ndarray; give a pair \(x,"),
        ({"client_data": (X, Y[:9])}, ValueError, "one label for each"),
        ({"client_data": (X, np.eye(3)[Y[:, 0]])}, ValueError, "argmax.*one-hot"),
        ({"client_data": (X, Y - 1)}, ValueError, "has the label -1; number classes"),
        ({"client_data": (X, Y + 2**32)}, ValueError, "has the label 4294967298;"),
        ({"client_data": (X.astype(str), Y)}, ValueError, "give an array of numbers"),
        ({"client_data": (X.astype(int) + 2**30, Y)}, ValueError, "scale them down"),
        ({"client_data": {}}, ValueError, "has no clients"),
        ({"client_data": (X, Y + 2)}, ValueError, "3 outputs, and client_data has"),
        ({"client_data": (X[:, :5], Y)}, ValueError, "one shape and data type"),
        ({"client_data": None}, ValueError, "test_data is given without client_data"),
        ({"test_data": None}, ValueError, "test_data is missing: .* validation_share"),
        ({"test_data": (X / 255, Y)}, ValueError, r"uint8 \(6,\) and test_data float"),
        ({"model": keras_model(shape=(5,))}, ValueError, r"shape \(5,\), and client_d"),
        ({"model": "cnn"}, ValueError, r"client_data is uint8 \(200, 6\); it must be"),
        (
            {"model": "cnn", "client_data": (X.astype(int), Y)},
            ValueError,
            "client_data are int64; give uint8, which is normalised, or floats",
        ),
        (
            {"model": "cnn", "client_data": (IMAGES, Y), "test_data": (IMAGES / 99, Y)},
            ValueError,
            "client_data reaches up to 255 and test_data up to 2.5",
        ),
        ({"model": 3}, TypeError, "takes a Keras model, not a int"),
        ({"task": "digits"}, ValueError, "Leave task out: client_data takes its place"),
        ({"norm": "group"}, ValueError, "Leave norm out: the Keras model"),
        ({"augmentation": "crop_flip"}, ValueError, "Leave augmentation out"),
        ({"metrics": ["f1"]}, TypeError, "metrics is a list; give a dict"),
        ({"metrics": {"loss": confidence}}, ValueError, "metric is called 'loss'"),
        ({"metrics": {"auc": keras.metrics.AUC}}, TypeError, "metric 'auc' is AUC;"),
        (
            {"metrics": {"top": keras.metrics.CategoricalAccuracy()}},
            ValueError,
            "'top' is a CategoricalAccuracy, .* give a SparseCategoricalAccuracy",
        ),
        ({"plugin": 3}, ValueError, "plugin=3: it must be a tuple of texts"),
        ({"sample_fn": "all"}, TypeError, "sample_fn is a str; it must be a function"),
        (
            {"sample_fn": lambda ids: ids},
            TypeError,
            r"sample_fn is called with \(round_num,client_ids\), but its arguments are"
            r" \(ids\)",
        ),
        (
            {"client_learning_rate": lambda round_num, total: 0.1},
            TypeError,
            r"client_learning_rate is called with \(round_num\), but",
        ),
        (
            {"metrics": {"f1": lambda labels: 1}},
            TypeError,
            r"The metric 'f1' is called with \(labels,predictions\), but",
        ),
        ({"process": ["fedavg", "man"]}, ValueError, "give one text, such as 'fedprox"),
        (
            {"client_data": [(X, Y), (X, Y)]},
            TypeError,
            "client_data is a list of 2 pairs; give a dict of pairs",
        ),
        (
            {"client_data": ({"a": X}, Y)},
            TypeError,
            "The examples of client_data are a dict; give one array",
        ),
        ({"test_data": (X, Y + 2)}, ValueError, "test_data has labels up to 4"),
        (
            {"aggregator": "dp", "dp_clipping": "fixed"},
            ValueError,
            "leave sample_fn out",
        ),
        ({"client_sampling": "independent"}, ValueError, "both sample the clients"),
        ({"learning_rate_schedule": "cosine"}, ValueError, "a function of the round"),
    ],
)
def test_what_cannot_be_is_refused_in_a_sentence(wrong, error, words):
    with pytest.raises(error, match=words) as caught:
        run_own(**wrong)
    assert "\n" not in str(caught.value)


def test_a_wrong_result_of_a_function_ends_the_round_with_a_sentence():
    with pytest.raises(ValueError, match="in round 1, but 'c9' is no client"):
        run_own(sample_fn=lambda round_num, client_ids: ["c9"])
    with pytest.raises(experiment.TrainingError, match="'m' returned a str"):
        run_own(metrics={"m": lambda labels, predictions: "high"})
    with pytest.raises(experiment.TrainingError, match=r"'m' returned an array \(60, "):
        run_own(metrics={"m": lambda y, p: p.argmax(axis=-1) == y[:, np.newaxis]})
    drawn = np.random.default_rng(0)
    with pytest.raises(ValueError, match="round 1, and when it was called again"):
        run_own(sample_fn=lambda _, client_ids: drawn.choice(client_ids, 2, False))
    with pytest.raises(ValueError, match="learning rate 0 for round 1; it must give"):
        run_own(client_learning_rate=lambda round_num: 0)


COUNT = 1


def first_clients(round_num, client_ids):
    return [client_ids[:COUNT] for _ in range(1)][0]


def test_functions_are_known_by_the_globals_that_they_name(monkeypatch):
    before = functions.described(first_clients)
    assert functions.described(first_clients) == before
    monkeypatch.setitem(globals(), "COUNT", 2)
    assert functions.described(first_clients) != before


def test_a_metric_that_changes_its_arguments_changes_no_other_number():
    def changing(labels, predictions):
        labels[:] = 0
        predictions[:] = 0.0
        return 1.0

    found = [
        run_own(total_rounds=2, metrics={**extra, "confidence": confidence}).metrics
        for extra in ({}, {"changing": changing})
    ]
    for name in ("evaluation/accuracy", "evaluation/confidence"):
        np.testing.assert_array_equal(*(each[name] for each in found))


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


def test_functions_are_known_by_what_they_compute():
    def rates(factor):
        return lambda round_num: factor * round_num

    def others(factor):
        return lambda round_num: factor * round_num  # With a comment.

    described = functions.described
    assert described(rates(2)) == described(others(2)) != described(rates(3))
    assert described(rates(2)) != described(lambda round_num: 2 * round_num)
    assert described(keras.metrics.MeanSquaredError()).startswith("MeanSquaredError 3.")
    top = keras.metrics.SparseTopKCategoricalAccuracy
    assert described(top(3)) == described(top(3)) != described(top(2))
    used = keras.metrics.AUC()  # Keras gives the next one another name.
    used.update_state(np.eye(2), np.eye(2))
    assert described(used) == described(keras.metrics.AUC())

    def halving(round_num):
        return 0.1 if round_num < 2 else halving(round_num - 1) / 2

    assert described(halving) == described(halving)


@pytest.mark.parametrize("kind", [list, tuple, np.array, set, iter], ids=str)
def test_functions_are_known_by_the_values_that_they_hold(kind):
    class Sampler:
        def __init__(self, rows):
            self.rows = kind(rows)

        def __call__(self, round_num, client_ids):
            return [client_ids[row] for row in self.rows]

    def sampler(rows):
        rows = kind(rows)
        return lambda round_num, client_ids: [client_ids[row] for row in rows]

    for make in (sampler, Sampler, lambda rows: functools.partial(sum, kind(rows))):
        is_known = functions.described(make([0, 1])) != functions.described(make([2]))
        assert is_known == (kind is not iter)
        assert functions.described(make([0, 1])) == functions.described(make([0, 1]))
    one_by_one = sampler([0, 1])
    functions.described(one_by_one)
    assert one_by_one(1, ["a", "b"]) == ["a", "b"]


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
    monkeypatch.setattr("tff_reg.experiment.rounds.live_curve._SECONDS_BETWEEN", 0.0)
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
    with pytest.raises(ValueError, match="no accuracy that could be drawn"):
        experiment.RunResult(None, None, None, [], {}, lambda: None).plot()


def test_without_pandas_the_rows_are_named(own, monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    vars(lazy.pandas).pop("DataFrame", None)
    with pytest.raises(ImportError, match="pip install pandas.*result.rows has the"):
        _ = own.result.metrics


COMPARED = dict(
    client_data=TRAIN,
    test_data=TEST,
    local_epochs=1,
    total_rounds=2,
    num_clients=4,
    clients_per_round=2,
    partition="iid",
    progress=SILENT,
)


def test_methods_are_compared_in_a_line_also_on_ones_own_data(tmp_path, capsys):
    methods = ["fedavg", "fedprox+man"]
    given = {**COMPARED, "model": keras_model(), "seeds": 2}
    kept = tff_reg.compare(methods, **given, output_dir=str(tmp_path))
    names = {path.name for path in tmp_path.iterdir()}
    runs_ = {f"{name}-seed{seed}" for name in methods for seed in (0, 1)}
    files = {f"table.{kind}" for kind in ("csv", "md", "tex")}
    assert names == runs_ | files | {f"curves.{k}" for k in ("csv", "png", "pdf")}
    assert str(kept) == (tmp_path / "table.md").read_text("utf-8")
    assert kept.to_latex() == (tmp_path / "table.tex").read_text("utf-8")
    assert kept.table["process"].tolist() == methods
    assert len(kept.plot().axes) == 1 and not kept.failed
    # In memory, from the same initial weights.
    again = tff_reg.compare(methods, **given)
    left_out = "seconds_per_round"
    for one, other in zip(kept.rows, again.rows):
        assert one.pop(left_out) and other.pop(left_out) and one == other
    assert again.output_dir is None and capsys.readouterr().out == ""
    # What is finished is not done again.
    before = (tmp_path / "fedavg-seed0" / "metrics.csv").read_bytes()
    tff_reg.compare(methods, **given, output_dir=str(tmp_path))
    assert (tmp_path / "fedavg-seed0" / "metrics.csv").read_bytes() == before


def test_runs_of_other_networks_or_samplings_have_no_common_protocol(tmp_path):
    def ran(name, **changes):
        own = dict(client_data=TRAIN, test_data=TEST, model=keras_model())
        given = {**SMALL, **own, "total_rounds": 1, "progress": SILENT, **changes}
        tff_reg.run(**given, output_dir=tmp_path / name)
        return [tmp_path / name]

    first, same = ran("first"), ran("same", process="fedavg")
    wider = keras.Sequential([keras.layers.Dense(9, "relu"), keras.layers.Dense(3)])
    trained = keras_model()
    trained.set_weights([weight + 1 for weight in trained.get_weights()])
    others = ran("wider", model=wider), ran("in turn", sample_fn=in_turn)
    others += (ran("trained", model=trained),)
    experiment.compare({"a": first, "b": same}, tmp_path / "compared")
    assert "They differ" not in (tmp_path / "compared" / "table.md").read_text()
    whats = ("keras_model", "sample_fn", "initial weights of a Keras model")
    for other, what in zip(others, whats, strict=True):
        table = tmp_path / f"compared {what}"
        experiment.compare({"a": first, "b": other}, table)
        words = (table / "table.md").read_text().split()
        assert f"{what}: " in " ".join(words).partition("They differ in ")[2]


def test_networks_of_one_digest_have_their_layers_in_one_order():
    def network(reads, name=None):
        x = inputs = keras.Input((8,))
        tensors = [x := keras.layers.Dense(8, "relu")(x) for _ in range(3)]
        added = keras.layers.Add(name=name)([x, tensors[reads]])
        return keras_copies.digest(keras.Model(inputs, keras.layers.Dense(3)(added)))

    assert network(0) == network(0, "sum") != network(1)


def test_test_examples_of_classes_that_no_client_has_are_told(capsys):
    run_own(client_data=(X, np.minimum(Y, 1)), total_rounds=1, progress=None)
    count = int((TEST[1] == 2).sum())
    told = f"{count} of 60 test examples are of classes that no client has"
    assert told in " ".join(capsys.readouterr().out.split())


def test_a_keras_model_has_no_projector_of_ours(tmp_path):
    run_own(process="moon", total_rounds=1, output_dir=tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["projector"] == "none"
    with pytest.raises(ValueError, match="arrays given from Python, which are not in"):
        trained.load(tmp_path)


def test_own_sampling_and_other_code_are_told(tmp_path, capsys):
    given = dict(COMPARED, model=keras_model(), progress=None, sample_fn=in_turn)
    given["output_dir"] = str(tmp_path)
    table = str(tff_reg.compare(["fedavg"], **given))
    for text in (table, capsys.readouterr().out):
        assert "clients by in_turn of 4" in " ".join(text.split())
    config = tmp_path / "fedavg-seed0" / "config.json"
    changed = json.loads(config.read_text())
    changed["sources"] = "0" * len(changed["sources"])
    config.write_text(json.dumps(changed))
    tff_reg.compare(["fedavg"], **given)
    assert "It was made by" in capsys.readouterr().out


def test_what_fails_is_named_and_the_table_has_the_rest(capsys):
    given = {**COMPARED, "model": keras_model(), "progress": None}
    result = tff_reg.compare(["fedavg", "fedalign"], **given)
    assert [*result.failed] == ["fedalign, seed 0"]
    assert [row["process"] for row in result.rows] == ["fedavg"]
    printed = capsys.readouterr().out
    assert "run 1/2  fedavg, seed 0: test accuracy" in printed
    assert "run 2/2  fedalign, seed 0: failed (" in printed
    with pytest.raises(ValueError):
        tff_reg.compare("fedalign", **given)
    for wrong, words in (
        ({"process": "fedavg"}, "process=fedavg: the first argument lists them"),
        ({"seed": 1}, "seed=1: give seeds"),
        ({"seeds": 0}, "seeds=0: give how many"),
    ):
        with pytest.raises(ValueError, match=words):
            tff_reg.compare(["fedavg"], **given, **wrong)


def test_the_help_lists_all_arguments():
    known = {*experiment.RunConfig.__dataclass_fields__}
    assert known | {"client_data", "test_data", "metrics"} <= {
        *inspect.signature(tff_reg.run).parameters
    }
