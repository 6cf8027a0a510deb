"""In which directories a run is refused, and what makes it another run."""

import collections
import json
import os
import subprocess
import sys
import types

import keras
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff
from absl import flags

from tests.experiment import finished
from tests.experiment.stopping import StopHere, StopsAfter
from tff_reg import data, experiment, methods, models, training
from tff_reg.data import digests

pytestmark = pytest.mark.usefixtures("in_process")


def test_other_settings_in_the_same_directory_are_refused_by_name(run, tmp_path):
    run(tmp_path / "a", total_rounds=1)
    with pytest.raises(experiment.DirectoryError) as caught:
        run(tmp_path / "a", total_rounds=1, clients_per_round=2)
    message = str(caught.value)
    assert message.startswith(f"output_dir={tmp_path}/a: it has a run with ")
    assert "run with clients_per_round=3, not 2; give another" in message
    assert "\n" not in message
    result = run(tmp_path / "a", total_rounds=1, clients_per_round=2, overwrite=True)
    assert result.summary["clients_per_round"] == 2


def test_fewer_rounds_than_done_are_refused_and_nothing_is_changed(run, tmp_path):
    with pytest.raises(StopHere):
        run(tmp_path / "a", progress=StopsAfter(4))
    with pytest.raises(experiment.DirectoryError, match="has done 4 rounds already"):
        run(tmp_path / "a", total_rounds=3)
    run(tmp_path / "a")
    before = {
        path: path.read_bytes() for path in (tmp_path / "a").iterdir() if path.is_file()
    }
    with pytest.raises(experiment.DirectoryError, match="has done 6 rounds already"):
        run(tmp_path / "a", total_rounds=3)
    assert {path: path.read_bytes() for path in before} == before
    # As many are read back.
    assert run(tmp_path / "a").summary["rounds"] == 6


def test_more_rounds_of_a_cosine_schedule_are_refused(run, tmp_path):
    cosine = {"learning_rate_schedule": "cosine"}
    run(tmp_path / "a", total_rounds=2, settings=cosine)
    with pytest.raises(experiment.DirectoryError, match="cosine"):
        run(tmp_path / "a", total_rounds=3, settings=cosine)


def test_a_state_of_another_process_is_refused(run, tmp_path, tiny_model):
    run(tmp_path / "a", total_rounds=1)
    other = tff.learning.algorithms.build_weighted_fed_avg(
        tiny_model,
        client_optimizer_fn=tff.learning.optimizers.build_sgdm(0.1),
        server_optimizer_fn=tff.learning.optimizers.build_adam(0.1),
    )
    with pytest.raises(experiment.DirectoryError, match="process.hparams=.*beta_1"):
        run(tmp_path / "a", total_rounds=2, process=other)
    config = tmp_path / "a" / "config.json"  # Of a run that did not record it.
    older = json.loads(config.read_text())
    del older["process.hparams"]
    config.write_text(json.dumps(older))
    with pytest.raises(experiment.StateMismatchError, match="another process"):
        run(tmp_path / "a", total_rounds=2, process=other)


def _built(prox=0.1, rate=0.1, batch_size=5, weights_of=0, **more):
    keras.utils.set_random_seed(weights_of)
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    return training.build_regularized(
        models.from_keras(model),
        [] if prox is None else [methods.FedProx(prox)],
        training.build_sgd(rate),
        client_data=training.WholeClientData(batch_size, **more),
    )


# Five seconds: a process is built for each.
def test_another_process_is_refused_by_what_differs(run, tmp_path):
    x, y = np.eye(6, 3, dtype=np.float32), np.zeros(6, np.int32)
    clients = data.ArrayClientData(x, y, [np.arange(3), np.arange(3, 6)])
    given = dict(client_data=clients, clients_per_round=2, evaluate=None)
    run(tmp_path / "a", process=_built(), **given, total_rounds=1)
    run(tmp_path / "a", process=_built(), **given, total_rounds=2)
    for changed, what in (
        ({"prox": 100.0}, r"methods=\(FedProx\(strength=0.1\)\), not .*100"),
        ({"prox": None}, "process.methods="),
        ({"rate": 0.2}, "process.client_optimizer_fn=.*0.1.*, not .*0.2"),
        ({"batch_size": 4}, "process.client_data=.*batch_size=5.* not .*=4"),
        ({"local_epochs": 2}, "process.client_data="),
        ({"weights_of": 1}, "in the initial weights of the Keras model .call"),
    ):
        with pytest.raises(experiment.DirectoryError, match=what):
            run(tmp_path / "a", process=_built(**changed), **given, total_rounds=2)


def test_a_directory_in_use_is_refused(run, tmp_path):
    first = experiment.RunDirectory(tmp_path / "a")
    first.begin({})
    with pytest.raises(experiment.DirectoryError, match="another process"):
        run(tmp_path / "a")
    first.close()
    run(tmp_path / "a", total_rounds=1)


def test_a_run_on_other_data_is_another_where_the_data_have_digests(
    run, tiny_data, tmp_path
):
    tiny_data.digests = {digests.EXAMPLES: "a", digests.SPLIT: "b"}
    run(tmp_path / "a", total_rounds=1)
    tiny_data.digests = {digests.EXAMPLES: "a", digests.SPLIT: "c"}
    with pytest.raises(
        experiment.DirectoryError, match="differs in the split of the data"
    ):
        run(tmp_path / "a", total_rounds=3)


class _Scaled:
    def __init__(self, factor):
        self.factor = factor

    def __call__(self, weights):
        return {"loss": 1.0, "accuracy": self.factor[0]}

    def method(self, weights):
        return self(weights)


def _normalization(values):
    layer = keras.layers.Normalization(axis=None)
    layer.adapt(np.asarray([*values, 1.0]))
    return layer


def _class_of(values):
    class Own(keras.losses.Loss):
        factor = values[0]

        def call(self, labels, predictions):
            return self.factor * predictions

    return Own


def _global(values):
    name = {"factor": values[0], "__name__": __name__}
    exec("def scaled(x):\n    return [each * factor for each in x]", name)
    return name["scaled"]


class _Above(keras.metrics.Metric):
    def __init__(self, threshold):
        super().__init__()
        self.threshold = threshold

    def update_state(self, labels, predictions):
        pass

    def result(self):
        return 0.0


KINDS = (
    list,
    np.asarray,
    tf.Variable,
    collections.deque,
    _class_of,
    _global,
    _normalization,
    lambda n: {0: n[0]},
    lambda n: _Above(n[0]),
    lambda n: _class_of(n)(),
    lambda n: _Scaled(n),
)


def _with_default(chosen):
    def evaluate(weights, *, factor=chosen):
        return {"loss": 1.0, "accuracy": factor[0]}

    return evaluate


@pytest.mark.parametrize("made", [_Scaled, lambda f: _Scaled(f).method, _with_default])
@pytest.mark.parametrize("kind", KINDS)
def test_what_a_function_computes_with_is_part_of_its_digest(made, kind):
    found = [digests.of_value(made(kind([n]))) for n in (0.1, 0.1, 0.2)]
    assert found[0] == found[1] != found[2]


# Classes that reach each other are in a set in the order of their addresses.
_AWKWARD = """
from tff_reg.data import digests
between = []
for n in range(6):
    between.append(bytearray(hash(str(n)) % 5000))
    exec(f"class C{n}:\\n  def call(self): return C{(n + 1) % 6}")
def even(n): return n == 0 or odd(n - 1)
def odd(n): return n > 0 and even(n - 1)
names = frozenset({"alpha", "beta", "gamma"})
awkward = [{C0, C1, C2, C3, C4, C5}, {even, odd}, {names: 1}, {even: 1, odd: 2}]
print([digests.of_value(lambda x, each=each: x in {"a", "b"}) for each in awkward])
"""


def test_another_process_finds_the_same_digests():
    found = [
        subprocess.run(
            [sys.executable, "-c", _AWKWARD],
            env={**os.environ, "PYTHONHASHSEED": seed},
            check=True,
            capture_output=True,
        ).stdout
        for seed in ("1", "2", "3")
    ]
    assert len(set(found)) == 1


def test_parsed_flags_are_no_part_of_a_function():
    found, parsed = [], flags.FlagValues()
    for output_dir in ("a", "b"):
        flags.DEFINE_string(output_dir, "1", "", parsed, allow_override=True)
        values = {"__name__": __name__, "FLAGS": parsed}
        exec("def scaled(x):\n    return x * FLAGS.power", values)
        found.append(digests.of_value(values["scaled"]))
    assert found[0] == found[1]


def test_a_changed_file_of_the_users_is_told_where_the_run_has_own_objects(
    run, tmp_path, monkeypatch
):
    def told(rounds):
        notes = finished.Notes()
        run(tmp_path / "a", total_rounds=rounds, progress=notes)
        return [line for line in notes.lines if "other code: file clipping.py" in line]

    module = types.ModuleType("clipping")
    module.__file__ = str(tmp_path / "clipping.py")
    monkeypatch.setitem(sys.modules, "clipping", module)
    (tmp_path / "clipping.py").write_text("NORM = 1")
    assert not told(1) and not told(2)
    (tmp_path / "clipping.py").write_text("NORM = 2")
    assert len(told(3)) == 1
    monkeypatch.delitem(sys.modules, "clipping")
    assert not told(4)


def test_a_function_of_another_name_is_refused(run, tmp_path):
    def first(round_num, ids):
        return ids[:2]

    def last(round_num, ids):
        return ids[-2:]

    run(tmp_path / "a", total_rounds=1, sample_fn=first)
    run(tmp_path / "a", total_rounds=2, sample_fn=first)
    with pytest.raises(experiment.DirectoryError, match="sample_fn=first, not last"):
        run(tmp_path / "a", total_rounds=3, sample_fn=last)
