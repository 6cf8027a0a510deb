import collections
import dataclasses

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.methods import linear, one_weight
from tff_reg import methods, models, training

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


def _softmax_regression(weights, x, y):
    """The gradient of the mean cross-entropy at (kernel, bias)."""
    logits = x @ weights[0] + weights[1]
    shares = np.exp(logits - logits.max(1, keepdims=True))
    shares /= shares.sum(1, keepdims=True)
    shares[np.arange(len(y)), y] -= 1
    return [x.T @ shares / len(y), shares.mean(0)]


@pytest.mark.usefixtures("in_process")
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_rounds_of_unequal_work_are_those_of_the_paper_in_numpy(momentum):
    """Wang et al. (2020): w + tau_eff sum_i p_i (w_i - w) / |a_i|."""
    rng, rate, sizes, works = np.random.default_rng(0), 0.1, (7, 12, 5, 9), (1, 0.2)
    data = [(rng.normal(size=(n, 3)), rng.integers(0, 4, n)) for n in sizes]
    clients = [
        tf.data.Dataset.from_tensors(
            collections.OrderedDict(
                x=x.astype(np.float32),
                y=y.astype(np.int32),
                key=np.array([i, 1], np.int64),
                work=np.float64(works[i % 2]),
            )
        )
        for i, (x, y) in enumerate(data)
    ]
    keras = tf.keras
    dense = keras.layers.Dense(4, kernel_initializer="zeros")
    process = training.build_regularized(
        models.from_keras(
            keras.Sequential([keras.Input([3]), dense]),
            loss_fn=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        ),
        [methods.FedNova()],
        training.build_sgd(rate, momentum),
        client_data=training.WholeClientData(4, 5, shuffle=False, told=("work",)),
        population=training.Population(4),
    )
    state, expected = process.initialize(), [np.zeros([3, 4]), np.zeros(4)]
    shares = np.array(sizes) / sum(sizes)
    for _ in range(3):
        state = process.next(state, clients).state
        moves, norms = [], []
        for i, (x, y) in enumerate(data):
            own, per_epoch = [w.copy() for w in expected], -(-len(y) // 4)
            buffers, factor, norm = [0.0, 0.0], 0.0, 0.0
            for step in range(int(np.ceil(works[i % 2] * 5 * per_epoch - 1e-6))):
                rows = slice(step % per_epoch * 4, step % per_epoch * 4 + 4)
                gradients = _softmax_regression(own, x[rows], y[rows])
                buffers = [momentum * b + g for b, g in zip(buffers, gradients)]
                own = [w - rate * b for w, b in zip(own, buffers)]
                factor = momentum * factor + 1
                norm += factor
            moves.append([new - old for new, old in zip(own, expected)])
            norms.append(norm)
        tau = shares @ norms
        for k, weights in enumerate(expected):
            steps = (p * m[k] / a for p, m, a in zip(shares, moves, norms))
            expected[k] = weights + tau * sum(steps)
    found = process.get_model_weights(state).trainable
    for weights, right in zip(found, expected):
        np.testing.assert_allclose(weights, right, rtol=0, atol=1e-6)
