import collections
import functools

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tff_reg import models, runtime, training
from tff_reg.training import finalizer

BATCH_NORM = models.build_model_fn(
    "cnn", image_shape=(4, 4, 1), num_classes=3, norm="batch"
)


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


@pytest.mark.parametrize("part", ["trainable", "non_trainable"])
def test_non_finite_updates_leave_their_part_unchanged(part):
    finalizer = training.build_finalizer(
        tff.learning.optimizers.build_sgdm(1.0, 0.5),
        tff.learning.models.weights_type_from_model(BATCH_NORM),
    )
    process = _process()
    weights = process.get_model_weights(process.initialize())
    update = tf.nest.map_structure(np.ones_like, weights)
    getattr(update, part)[1].flat[0] = np.nan
    state = finalizer.initialize()
    output = finalizer.next(state, weights, update)
    is_rejected = part == "trainable"
    assert output.measurements["update_non_finite"] == is_rejected
    for name in ("trainable", "non_trainable"):
        step = 0 if name == part else 1
        for old, new in zip(getattr(weights, name), getattr(output.result, name)):
            np.testing.assert_array_equal(new, old - step)
    for old, new in zip(tf.nest.flatten(state), tf.nest.flatten(output.state)):
        assert is_rejected == np.array_equal(old, new) or np.ndim(old) == 0


class _Halving(tff.learning.optimizers.Optimizer):
    """Goes half the way where the first update points up, and all of it elsewhere."""

    def initialize(self, specs):
        return tf.constant(0)

    def next(self, state, weights, gradients):
        if tf.reduce_sum(gradients[0]) < 0:  # Which is a tensor.
            gradients = tf.nest.map_structure(lambda g: g / 2, gradients)
        return state + 1, tf.nest.map_structure(tf.subtract, weights, gradients)


def test_a_server_optimizer_may_branch_on_a_tensor():
    finalizer = training.build_finalizer(
        _Halving(), tff.learning.models.weights_type_from_model(BATCH_NORM)
    )
    process = _process()
    weights = process.get_model_weights(process.initialize())
    for sign, step in ((1, 1), (-1, -0.5)):
        ones = tf.nest.map_structure(np.ones_like, weights)
        update = tf.nest.map_structure(functools.partial(np.multiply, sign), ones)
        output = finalizer.next(finalizer.initialize(), weights, update)
        assert output.state == 1
        for old, new in zip(weights.trainable, output.result.trainable):
            np.testing.assert_array_equal(new, old - np.float32(step))


@pytest.mark.parametrize(
    "optimizer",
    [
        tff.learning.optimizers.build_sgdm(0.8, 0.9),
        tff.learning.optimizers.build_sgdm(0.8),
        training.build_sgd(0.8),
    ],
)
def test_a_rate_is_not_rounded_to_float32_for_float64_weights(optimizer):
    weights = tff.learning.models.ModelWeights([np.float64([1.0, 2.0])], [])
    kind = tff.types.to_type(tff.learning.models.ModelWeights([(np.float64, [2])], []))
    process = finalizer.build_finalizer(optimizer, kind)
    output = process.next(process.initialize(), weights, [np.float64([1.0, 1.0])])
    np.testing.assert_allclose(output.result.trainable[0], [0.2, 1.2], rtol=1e-15)
