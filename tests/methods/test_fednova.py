import dataclasses

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.methods import linear, one_weight
from tff_reg import methods, training

pytestmark = pytest.mark.usefixtures("in_process")

BY_EXAMPLES = tff.learning.ClientWeighting.NUM_EXAMPLES


def _scale(method, steps, **hparams):
    hparams = {k: tf.constant(v, tf.float64) for k, v in hparams.items()}
    start = [tf.zeros([2], tf.float64)]
    local = one_weight.local(
        start=start,
        hparams=hparams,
        num_steps=steps,
        weight=tf.constant(steps, tf.float64),
    )
    local = dataclasses.replace(local, state=method.begin(local))
    for _ in range(steps):
        local = dataclasses.replace(local, state=method.keep(local, start))
    return float(method.finish(local).scale)


@pytest.mark.parametrize(
    "proximal, hparams, length",
    [
        (0.0, {}, 3.0),
        (0.0, {"learning_rate": 0.1}, 3.0),
        # 1 + 1.5 + 1.75.
        (0.0, {"momentum": 0.5}, 4.25),
        # 1; 1 * 0.8 + 1; 1.8 * 0.8 + 1.
        (2.0, {"learning_rate": 0.1}, 2.44),
        # 1 * 0.8 + 1; (1.8 + 1.5) * 0.8 + 1; (3.64 + 1.75) * 0.8 + 1.
        (2.0, {"learning_rate": 0.1, "momentum": 0.5}, 5.312),
    ],
)
def test_three_steps_go_together_by_the_optimizer(proximal, hparams, length):
    found = _scale(methods.FedNova(proximal=proximal), 3, **hparams)
    assert found == pytest.approx(1 / length, rel=1e-12)


def _batched(features, labels):
    element = {"x": features, "y": labels}
    return tf.data.Dataset.from_tensor_slices(element).batch(4)


def _start():
    rng = np.random.default_rng(6)
    return [
        rng.normal(size=(linear.FEATURES, linear.CLASSES)),
        rng.normal(size=linear.CLASSES),
    ]


def test_weighs_by_the_number_of_examples_of_batched_data():
    process = linear.build(
        methods.FedNova(),
        client_data=training.BatchedData(),
        client_weighting=BY_EXAMPLES,
        population=None,
    )
    assert isinstance(process, tff.learning.templates.LearningProcess)
    clients = [linear.examples(seed, count) for seed, count in ((0, 5), (1, 9))]
    total = [np.zeros_like(w) for w in _start()]
    for features, labels in clients:
        weights, count = _start(), len(labels)
        for rows in (slice(i, i + 4) for i in range(0, count, 4)):
            gradient = linear.gradient(weights, features[rows], labels[rows])
            weights = [w - linear.RATE * g for w, g in zip(weights, gradient)]
        share = count / 14 / -(-count // 4)
        total = [t + share * (w - s) for t, w, s in zip(total, weights, _start())]
    steps = (5 * 2 + 9 * 3) / 14
    expected = [s + steps * t for s, t in zip(_start(), total)]
    data_sets = [_batched(*own) for own in (*clients, linear.examples(0, 0))]
    output = process.next(linear.started(process, _start()), data_sets)
    linear.assert_close(linear.weights_of(process, output.state), expected)
    measured = output.metrics["client_work"]["train"]
    assert measured["rejected_clients"] == 0
