import collections
import functools

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tff_reg import methods, models, runtime, training
from tff_reg.training import local_training, server

BATCH_NORM = models.build_model_fn(
    "cnn", image_shape=(4, 4, 1), num_classes=3, norm="batch"
)
SGD = training.build_sgd(0.1)


@pytest.fixture(scope="module", autouse=True)
def _runtime():
    with runtime.running("in_process"):
        yield
    _process.cache_clear()  # Before TensorFlow's own end.


def _client(count, seed):
    rng = np.random.default_rng(seed)
    return tf.data.Dataset.from_tensors(
        collections.OrderedDict(
            x=(3 + rng.normal(size=(count, 4, 4, 1))).astype(np.float32),
            y=rng.integers(0, 3, count).astype(np.int32),
            key=np.zeros([2], np.int64),
        )
    )


@functools.cache
def _process(server_optimizer=None):
    return training.build_regularized(
        BATCH_NORM,
        [],
        training.build_sgd(0.1),
        server_optimizer,
        client_data=training.WholeClientData(batch_size=4),
    )


def test_statistics_become_the_clients_weighted_average():
    process = _process()
    start = process.initialize()
    clients = [_client(4, 0), _client(12, 1)]
    alone = [process.get_model_weights(process.next(start, [c]).state) for c in clients]
    both = process.get_model_weights(process.next(start, clients).state)
    initial = process.get_model_weights(start)
    assert both.non_trainable
    for value, first, second, before in zip(
        both.non_trainable,
        alone[0].non_trainable,
        alone[1].non_trainable,
        initial.non_trainable,
    ):
        np.testing.assert_allclose(value, (first + 3 * second) / 4, rtol=1e-5)
        assert not np.allclose(value, before)


def test_statistics_stay_out_of_the_server_optimizer():
    plain = _process()
    adam = _process(tff.learning.optimizers.build_adam(0.01))
    clients = [_client(8, 0), _client(8, 1)]
    outputs = [
        p.get_model_weights(p.next(p.initialize(), clients).state)
        for p in (plain, adam)
    ]
    for a, b in zip(outputs[0].non_trainable, outputs[1].non_trainable):
        np.testing.assert_array_equal(a, b)
    assert not np.allclose(outputs[0].trainable[0], outputs[1].trainable[0])


def test_server_momentum_is_fedavgm():
    process = _process(tff.learning.optimizers.build_sgdm(1.0, 0.5))
    plain = _process()
    clients = [_client(8, 0)]
    state = process.initialize()
    start = process.get_model_weights(state)
    first = process.next(state, clients)
    again = process.next(process.set_model_weights(first.state, start), clients)
    one_step = plain.get_model_weights(plain.next(plain.initialize(), clients).state)
    for a, b, w0 in zip(
        process.get_model_weights(again.state).trainable,
        one_step.trainable,
        start.trainable,
    ):
        np.testing.assert_allclose(a - w0, 1.5 * (b - w0), rtol=1e-3, atol=1e-6)


def _server(optimizer):
    return server.Server(optimizer, local_training.LocalTraining(SGD))


def _ones(sign=1.0):
    """A model's weights, and an update of ones or minus ones."""
    model = BATCH_NORM()
    weights = tff.learning.models.ModelWeights.from_model(model)
    weights = tf.nest.map_structure(tf.identity, weights)
    return weights, tf.nest.map_structure(lambda w: sign * tf.ones_like(w), weights)


@pytest.mark.parametrize("part", ["trainable", "non_trainable"])
def test_non_finite_updates_leave_their_part_unchanged(part):
    own = _server(tff.learning.optimizers.build_sgdm(1.0, 0.5))
    weights, update = _ones()
    getattr(update, part)[1] *= np.nan
    state = own.first(weights)
    after, new, metrics = own.step(state, weights, update, ())
    is_rejected = part == "trainable"
    assert metrics["finalizer"]["update_non_finite"] == is_rejected
    for name in ("trainable", "non_trainable"):
        step = 0 if name == part else 1
        for old, value in zip(getattr(weights, name), getattr(new, name)):
            np.testing.assert_array_equal(value, old - step)
    for old, value in zip(tf.nest.flatten(state), tf.nest.flatten(after)):
        assert is_rejected == np.array_equal(old, value) or np.ndim(old) == 0


class _Halving(tff.learning.optimizers.Optimizer):
    """Goes half the way where the first update points up, and all of it elsewhere."""

    def initialize(self, specs):
        return collections.OrderedDict(steps=tf.constant(0))

    def next(self, state, weights, gradients):
        if tf.reduce_sum(gradients[0]) < 0:  # Which is a tensor.
            gradients = tf.nest.map_structure(lambda g: g / 2, gradients)
        steps = collections.OrderedDict(steps=state["steps"] + 1)
        return steps, tf.nest.map_structure(tf.subtract, weights, gradients)

    def get_hparams(self, state):
        return collections.OrderedDict()

    def set_hparams(self, state, hparams):
        return state


@pytest.mark.parametrize("sign, step", [(1.0, 1.0), (-1.0, -0.5)])
def test_a_server_optimizer_may_branch_on_a_tensor(sign, step):
    own = _server(_Halving())
    weights, update = _ones(sign)
    run = tf.function(own.step, autograph=False)
    state, new, _ = run(own.first(weights), weights, update, ())
    assert state["optimizer"]["steps"] == 1
    for old, value in zip(weights.trainable, new.trainable):
        np.testing.assert_array_equal(value, old - np.float32(step))


@pytest.mark.parametrize(
    "optimizer",
    [
        tff.learning.optimizers.build_sgdm(0.8, 0.9),
        tff.learning.optimizers.build_sgdm(0.8),
        training.build_sgd(0.8),
    ],
)
def test_a_rate_is_not_rounded_to_float32_for_float64_weights(optimizer):
    weights = tff.learning.models.ModelWeights(
        [tf.constant([1.0, 2.0], tf.float64)], []
    )
    own = _server(optimizer)
    state, update = own.first(weights), [tf.ones([2], tf.float64)]
    _, new, _ = own.step(state, weights, update, ())
    np.testing.assert_allclose(new.trainable[0], [0.2, 1.2], rtol=1e-15)


def _models(num_models, values):
    """What clients get of `recent`, and the memory, round by round."""
    methods_, seen = [methods.FedGKD(averaged_rounds=num_models)], []
    own = server.Server(
        tff.learning.optimizers.build_sgdm(1.0),
        local_training.LocalTraining(SGD, methods_),
    )
    weights = tff.learning.models.ModelWeights([tf.fill([2], float(values[0]))], [])
    state = own.first(weights)
    for now, following in zip(values, [*values[1:], 0]):
        _, memory = own.send(state, weights)
        seen.append(float(memory["averaged"][0][1]))
        update = [tf.fill([2], float(now - following))]
        state, weights, _ = own.step(state, weights, update, ())
    return seen, state["memory"]["averaged"]


@pytest.mark.parametrize(
    "num_models, values, means",
    [
        (3, [1, 4, 7, 1, 4], [1, 2.5, 4, 4, 4]),
        # A round that leaves the model as it is does not count.
        (3, [1, 4, 4, 4, 7], [1, 2.5, 2.5, 2.5, 4]),
        (1, [3, 5], [3, 5]),
    ],
)
def test_clients_get_the_mean_of_the_last_models(num_models, values, means):
    seen, memory = _models(num_models, values)
    assert seen == means
    assert memory["count"] == num_models
