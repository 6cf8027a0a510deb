"""`tff_reg.compare`: the tables that a notebook or a script makes."""

import json
import threading

import keras
import numpy as np
import pytest

import tff_reg
from tests.experiment.own_runs import SILENT, TEST, TRAIN, in_turn, keras_model
from tff_reg import experiment, methods, settings
from tff_reg.data import digests
from tff_reg.lazy import tf
from tff_reg.methods import catalogue
from tff_reg.models import keras_copies

COMPARED = dict(
    client_data=TRAIN,
    test_data=TEST,
    local_epochs=1,
    total_rounds=1,
    num_clients=4,
    clients_per_round=2,
    partition="iid",
    progress=SILENT,
)


METHODS = ["fedavg", "fedprox"]


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    """A comparison, and its folder."""
    folder = tmp_path_factory.mktemp("compared")
    given = {**COMPARED, "model": keras_model(), "output_dir": str(folder)}
    return tff_reg.compare(METHODS, **given, seeds=1), folder


def test_methods_are_compared_in_a_line_also_on_ones_own_data(compared, capsys):
    methods, (kept, tmp_path) = METHODS, compared
    given = {**COMPARED, "model": keras_model(), "seeds": 1}
    names = {path.name for path in tmp_path.iterdir()}
    runs_ = {f"{name}-seed0" for name in methods}
    files = {f"table.{kind}" for kind in ("csv", "md", "tex")} | {"report.html"}
    assert names == runs_ | files | {f"curves.{k}" for k in ("csv", "png", "pdf")}
    assert str(kept) == (tmp_path / "table.md").read_text("utf-8")
    assert kept.to_latex() == (tmp_path / "table.tex").read_text("utf-8")
    assert kept.table["process"].tolist() == methods
    assert len(kept.plot().axes) == 1 and not kept.failed
    # In memory, from the same initial weights.
    again = tff_reg.compare(methods[:1], **given)
    left_out = "seconds_per_round"
    for one, other in zip(kept.rows, again.rows):
        assert one.pop(left_out) and other.pop(left_out) and one == other
    assert again.output_dir is None and capsys.readouterr().out == ""
    # What is finished is not done again.
    before = (tmp_path / "fedavg-seed0" / "metrics.csv").read_bytes()
    tff_reg.compare(methods, **given, output_dir=str(tmp_path))
    assert (tmp_path / "fedavg-seed0" / "metrics.csv").read_bytes() == before


@pytest.fixture(autouse=True)
def own_registry(monkeypatch):
    """What a test adds to the methods is gone after it."""
    found = dict(catalogue.REGISTRY._found)
    monkeypatch.setattr(catalogue.REGISTRY, "_found", found)


def _spread(predictions, labels):
    return (predictions.max(-1) - predictions.min(-1)).mean()


# Each run's process loads TensorFlow.
def test_runs_side_by_side_have_the_numbers_of_runs_in_turn(tmp_path):
    parts = [keras.layers.Dense(8), keras.layers.BatchNormalization()]
    parts = [*parts, keras.layers.Dropout(0.5), keras.layers.Dense(3)]
    own = keras.Sequential([keras.Input((6,)), *parts])

    class Near(methods.FedProx):
        name = "near_by"

        def term(self, step):
            assert tf.executing_eagerly() in (True, False)
            return super().term(step)

    given = {**COMPARED, "total_rounds": 2, "model": own, "callbacks": [_Counting()]}
    given |= {"metrics": {"spread": _spread}}
    made, code = {}, {}
    for jobs in (1, 2):
        where = tmp_path / str(jobs)
        where.mkdir()
        named = dict(jobs=jobs, output_dir=str(where))
        assert not tff_reg.compare([Near(0.1), "scaffold"], **given, **named).failed
        # A copy by Keras has other names of weights.
        made[jobs] = [
            np.load(path)[name]
            for path in sorted(where.glob("*/final_weights.npz"))
            for name in np.load(path).files
        ]
        rows = [path.read_text() for path in sorted(where.glob("*/metrics.csv"))]
        assert all("evaluation/spread" in text for text in rows)
        config = json.loads((where / "near_by-seed0" / "config.json").read_text())
        code[jobs] = {n: d for n, d in config["code"][0].items() if "file" not in n}
    assert len(made[1]) == len(made[2]) > 10 and "tests" in code[1]
    assert all(map(np.array_equal, *made.values()))
    assert code[1] == code[2]
    for more, words in (
        ({"jobs": 0}, "jobs=0"),
        ({"columns": ["trace"]}, "columns=trace: it takes an analysis"),
        ({"columns": ["spread"]}, "columns=.*spread"),
        ({"jobs": 2, "on_round": print}, "jobs=2: on_round would be called"),
        ({"jobs": 2, "sample_fn": Unpicklable()}, "jobs: something given cannot be"),
    ):
        with pytest.raises(settings.SettingError, match=words):
            tff_reg.compare(METHODS, **given, **more)


class Unpicklable:
    def __call__(self, round_num, client_ids):
        return client_ids[:2]

    def __reduce__(self):
        raise TypeError("it has a lock")


def test_a_failure_in_another_process_is_told():
    given = {**COMPARED, "model": keras_model(), "jobs": 2}
    result = tff_reg.compare(["fedavg", "fedalign"], **given)
    (why,) = result.failed.values()
    assert "\n" not in why and "cannot run at width" in why
    with pytest.raises(experiment.TrainingError, match="cannot run at width"):
        tff_reg.compare(["fedalign"], **given)


def test_networks_of_one_digest_have_their_layers_in_one_order():
    def network(reads, name=None, from_logits=None):
        x = inputs = keras.Input((8,))
        tensors = [x := keras.layers.Dense(8, "relu")(x) for _ in range(3)]
        added = keras.layers.Add(name=name)([x, tensors[reads]])
        model = keras.Model(inputs, keras.layers.Dense(3)(added))
        if from_logits is not None:
            loss = keras.losses.SparseCategoricalCrossentropy(from_logits=from_logits)
            model.compile("sgd", loss)
        return keras_copies.digest(model)

    assert network(0) == network(0, "sum") != network(1)
    losses = [network(0, from_logits=each) for each in (None, False, True, True)]
    assert len({*losses}) == 3 and losses[2] == losses[3]


def test_own_sampling_and_other_code_are_told(tmp_path, capsys):
    given = dict(COMPARED, model=keras_model(), progress=None, sample_fn=in_turn)
    given["output_dir"] = str(tmp_path)
    table = str(tff_reg.compare(["fedavg"], **given))
    for text in (table, capsys.readouterr().out):
        told = " ".join(text.split())
        assert "sample_fn=in_turn" in told and "clients_per_round=" not in told
    config = tmp_path / "fedavg-seed0" / "config.json"
    changed = json.loads(config.read_text())
    changed["code"] = [{**changed["code"][0], "tff_reg": "0"}]
    config.write_text(json.dumps(changed))
    tff_reg.compare(["fedavg"], **given)
    said = capsys.readouterr().out
    assert "finished before, " in said and "It was made by" in said


def test_rounds_to_a_target_have_the_measure_that_is_asked_for_now(tmp_path):
    given = dict(task="digits", model="cnn", scale="tiny", synthetic_data=True)
    given |= dict(total_rounds=3, progress=SILENT, output_dir=str(tmp_path))
    (row,) = tff_reg.compare("fedavg", **given).rows
    target = (row["best_accuracy_mean"] + row["ema_accuracy_mean"]) / 2
    found = [
        tff_reg.compare(
            "fedavg", **given, targets=(target,), target_measure=measure
        ).rows[0][f"rounds_to_{target}_mean"]
        for measure in ("average", "raw")
    ]
    assert found[0] is None and found[1] in (1, 2, 3)


class _Counting(experiment.Callback):
    """Ends a run after two of its rounds; with `lock`, it cannot be copied."""

    def __init__(self, lock=None, more=0):
        self.rounds, self.lock, self.more = 0, lock, more

    def on_round(self, run, row):
        self.rounds += 1
        last = 2 + self.more * run.settings["seed"]
        return "enough" if self.rounds == last else None


# Seven seconds: eight runs.
def test_every_run_has_its_own_callbacks_and_seeds_may_have_their_models():
    def model(seed):
        keras.utils.set_random_seed(seed)
        return keras.Sequential([keras.Input((6,)), keras.layers.Dense(3)])

    given = {**COMPARED, "seeds": 2, "callbacks": [_Counting()], "total_rounds": 3}
    own = tff_reg.compare(["fedavg"], **given, model=model)
    assert [run.summary["rounds"] for run in own._table.groups["fedavg"]] == [2, 2]
    assert "the same weights" not in " ".join(str(own).split())
    given["callbacks"] = [_Counting(more=1)]
    words = "^fedavg-seed0 and fedavg-seed1 have 2 and 3 rounds.* With output_dir"
    with pytest.raises(experiment.ComparisonError, match=words):
        tff_reg.compare(["fedavg"], **given, model=model)
    given["callbacks"] = [_Counting(threading.Lock())]
    with pytest.raises(TypeError, match="one cannot be copied .*on_start"):
        tff_reg.compare(["fedavg"], **given, model=model)
    given.update(callbacks=(), total_rounds=1, partition_seed=3, baseline="fedprox")
    one = tff_reg.compare(METHODS, **given, model=model(0))
    assert "All seeds begin with the same weights" in " ".join(str(one).split())
    assert one.table["difference_seeds"].fillna(0).tolist() == [2, 0]
    for text in ("difference to fedprox (points)", "partition_seed=3"):
        assert text in str(one)
    runs = [run.config for group in one._table.groups.values() for run in group]
    assert len({run[digests.DEALT] for run in runs}) == 1


# Five seconds: a grid is a run more for each of its settings.
def test_a_grid_is_tried_on_held_out_examples(tmp_path):
    given = {**COMPARED, "model": keras_model(), "total_rounds": 1}
    grid = {"client_learning_rate": [1e-9, 0.01]}
    made = tff_reg.compare(["fedavg"], **given, grid=grid, output_dir=str(tmp_path))
    (row,) = made.rows
    assert (tmp_path / "grid.csv").read_text().count("\n") == 3
    assert row["setting"].startswith("client_learning_rate=")
    assert row["settings_tried"] == 2 and row["accuracy_mean"] is not None
    assert row["held_out_mean"] >= row["held_out_worst"]
    both = tff_reg.compare(  # A held-out share does not take the test data's place.
        ["fedavg", "fedprox"],
        **dict(given, max_gradient_norm=0.0, validation_share=0.2),
        drop_remainder=True,
        grid={"fedprox_strength": [1e38], "batch_size": [8, 9]},
    )
    assert both.failed == {"fedprox, seed 0": "no setting of the grid ended finite"}
    assert len(both.rows) == 1
    assert "no results of fedprox, seed 0." in " ".join(str(both).split())
    with pytest.raises(ValueError, match="test_data is missing"):
        missing = dict(given, test_data=None, validation_share=0.2, grid=grid)
        tff_reg.compare(["fedavg"], **missing)
    clients = {"a": (TRAIN[0][:50], TRAIN[1][:50]), "b": (TRAIN[0][50:], TRAIN[1][50:])}
    given.update(client_data=clients, num_clients=None, partition=None)
    with pytest.raises(ValueError, match="grid: client_data=.* no examples to hold"):
        tff_reg.compare(["fedavg"], **given, grid=grid)


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
        ({"baseline": "man"}, "baseline=man: it is not among"),
    ):
        with pytest.raises(ValueError, match=words):
            tff_reg.compare(["fedavg"], **given, **wrong)
