"""A tiny process of TFF's own and its data for tests of runs, and runs to compare."""

from __future__ import annotations

import collections

import numpy as np
import pytest

from tests.experiment import compared, finished
from tff_reg import curves, experiment, runtime
from tff_reg.experiment.report import comparison
from tff_reg.lazy import tf, tff


class TinyData:
    """Ten clients with a few points of two classes each."""

    def __init__(self):
        generator = np.random.default_rng(7)
        self.x = generator.normal(size=(10, 12, 3)).astype(np.float32)
        self.y = (self.x.sum(axis=-1) > 0).astype(np.int32)
        self.client_ids = [f"client_{index}" for index in range(10)]
        self.asked = []

    def whole_client_dataset(self, client_id, key):
        self.asked.append((client_id, tuple(int(part) for part in key)))
        index = self.client_ids.index(client_id)
        examples = collections.OrderedDict(x=self.x[index], y=self.y[index])
        return tf.data.Dataset.from_tensor_slices(examples).batch(5)


def tiny_model_fn():
    class TinyModel(tff.learning.models.VariableModel):
        def __init__(self):
            self.kernel = tf.Variable(tf.zeros([3, 2]), name="kernel")
            self.bias = tf.Variable(tf.zeros([2]), name="bias")
            self.sums = tf.Variable(tf.zeros([3]), trainable=False, name="sums")

        trainable_variables = property(lambda self: [self.kernel, self.bias])
        non_trainable_variables = property(lambda self: [])
        local_variables = property(lambda self: [self.sums])
        input_spec = property(
            lambda self: collections.OrderedDict(
                x=tf.TensorSpec([None, 3], tf.float32),
                y=tf.TensorSpec([None], tf.int32),
            )
        )

        def predict_on_batch(self, x, training=True):
            return tf.matmul(x, self.kernel) + self.bias

        def forward_pass(self, batch_input, training=True):
            logits = self.predict_on_batch(batch_input["x"])
            labels = batch_input["y"]
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
            right = tf.argmax(logits, -1, output_type=tf.int32) == labels
            count = tf.cast(tf.size(labels), tf.float32)
            right = tf.reduce_sum(tf.cast(right, tf.float32))
            self.sums.assign_add(tf.stack([tf.reduce_sum(losses), right, count]))
            return tff.learning.models.BatchOutput(
                loss=tf.reduce_mean(losses),
                predictions=logits,
                num_examples=tf.size(labels),
            )

        def report_local_unfinalized_metrics(self):
            sums = self.sums.read_value()
            return collections.OrderedDict(
                loss=[sums[0], sums[2]], accuracy=[sums[1], sums[2]]
            )

        def metric_finalizers(self):
            return collections.OrderedDict(
                loss=lambda pair: pair[0] / pair[1],
                accuracy=lambda pair: pair[0] / pair[1],
            )

        def reset_metrics(self):
            self.sums.assign(tf.zeros([3]))

    return TinyModel()


@pytest.fixture(scope="module")
def in_process():
    """Not TFF's own default, whose worker may outlive the tests."""
    with runtime.running("in_process"):
        yield


@pytest.fixture
def no_pictures(monkeypatch):
    """Runs without their pictures, which take longer than such runs."""
    png = tf.io.encode_png(tf.zeros([1, 1, 3], tf.uint8)).numpy()
    monkeypatch.setattr(
        curves, "write_curves", lambda path, *_, **__: path.write_bytes(png)
    )


@pytest.fixture
def tiny_data():
    return TinyData()


@pytest.fixture(scope="session")
def tiny_model():
    return tiny_model_fn


@pytest.fixture(scope="session")
def tiny_process():
    """TFF's own federated averaging with momentum at the server."""
    return tff.learning.algorithms.build_weighted_fed_avg(
        tiny_model_fn,
        client_optimizer_fn=tff.learning.optimizers.build_sgdm(0.1),
        server_optimizer_fn=tff.learning.optimizers.build_sgdm(1.0, momentum=0.5),
    )


@pytest.fixture(scope="session")
def tiny_evaluation():
    data = TinyData()
    x, y = data.x.reshape(-1, 3), data.y.reshape(-1)
    return experiment.CentralEvaluation(tiny_model_fn, x, y, batch_size=50)


@pytest.fixture
def run(tiny_process, tiny_evaluation, tiny_data, no_pictures):
    """Trains the tiny process for six rounds, with other arguments if there are any."""

    def run_with(output_dir=None, **arguments):
        defaults = dict(
            process=tiny_process,
            client_data=tiny_data,
            total_rounds=6,
            clients_per_round=3,
            evaluate=tiny_evaluation,
            output_dir=output_dir,
            progress=finished.Notes(),
            settings={"process": "fedavg", "task": "tiny"},
        )
        return experiment.train(**{**defaults, **arguments})

    return run_with


@pytest.fixture
def drawn(monkeypatch):
    """The pictures that are drawn: (curves, options)."""
    found, draw = [], comparison.curves.draw_curves

    def noting(curves, **options):
        found.append((curves, options))
        return draw(curves, **options)

    monkeypatch.setattr(comparison.curves, "draw_curves", noting)
    return found


@pytest.fixture
def four_runs(tmp_path):
    """FedAvg and FedProx with two seeds each."""
    return [
        compared.write_run(
            tmp_path / "a0", [0.2, 0.4], seed=0, columns={"seconds": 1.0}
        ),
        compared.write_run(tmp_path / "a1", [0.3, 0.6], seed=1),
        compared.write_run(tmp_path / "p0", [0.5, 0.4], seed=0, process="fedprox"),
        compared.write_run(tmp_path / "p1", [0.1, 0.9], seed=1, process="fedprox"),
    ]
