"""What methods of every kind do without a network, without clients, by map-reduce."""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.methods import linear
from tests.methods.probes import (
    _batched,
    _Counting,
    _Following,
    _LookingAhead,
    _measured,
    _minus,
    _Normalised,
    _plus,
    _Priors,
    _Rebelling,
    _Returning,
    _Rolling,
    _start,
    _weights,
)
from tff_reg import methods, training
from tff_reg.lazy import keras

pytestmark = pytest.mark.usefixtures("in_process")

RATE = linear.RATE


# Where the model does not show its network.


class _SquaredLoss(keras.losses.Loss):
    """`linear.squared_loss`, as Keras has losses: one an example."""

    def call(self, labels, logits):
        one_hot = tf.one_hot(
            tf.cast(labels, tf.int32), linear.CLASSES, dtype=tf.float64
        )
        return tf.reduce_sum(tf.math.squared_difference(logits, one_hot), axis=1)


def _keras_model_fn():
    """A model that does not show its network."""
    # Before the layer: Keras 2 has one class of layers in graphs and one outside.
    input_spec = linear.model_fn().input_spec
    layer = keras.layers.Dense(
        linear.CLASSES, input_shape=[linear.FEATURES], dtype="float64"
    )
    return tff.learning.models.from_keras_model(
        keras.Sequential([layer]),
        loss=_SquaredLoss(),
        input_spec=input_spec,
        metrics=[tff.learning.metrics.NumExamplesCounter()],
    )


@pytest.mark.parametrize(
    "part",
    [_Priors(), _Rebelling(), _Counting(), methods.Mixup(), methods.StochDepth()],
    ids=lambda part: part.name,
)
def test_what_looks_inside_the_network_is_refused_without_one(part):
    with pytest.raises(TypeError, match=f"^{part.name} looks inside the network"):
        linear.build(
            part,
            make_model=_keras_model_fn,
            client_data=training.BatchedData(),
            population=None,
        )


def test_a_perturbation_by_memory_needs_no_network():
    process = linear.build(
        _Returning(),
        make_model=_keras_model_fn,
        client_data=training.BatchedData(),
        population=None,
    )
    examples, first = linear.examples(0), _start()
    data_sets = [_batched(*examples, size=8)]
    state, client_states = linear.run(
        process, linear.started(process, first), data_sets, 1
    )
    second = linear.weights_of(process, state)
    output = process.next(state, data_sets, client_states)
    back = _minus(first, second)
    norm = np.sqrt(sum(np.sum(b**2) for b in back))
    there = _plus(second, back, 0.5 / norm)
    expected = _plus(second, linear.gradient(there, *examples), -RATE)
    linear.assert_close(_weights(process, output), expected)
    assert _measured(output)["num_examples"] == 8


# What is true of all of them.

_PROBES = {
    "perturbed by memory": (_Returning(),),
    "perturbed by a second loss": (_Rebelling(),),
    "broadcast": (_LookingAhead(),),
    "replaced": (_Following(),),
    "scaled": (_Normalised(),),
    "kept": (_Rolling(),),
    "many": (_Priors(), _Returning(), _LookingAhead(), _Following(), _Rolling()),
}


@pytest.mark.parametrize("probe", _PROBES)
def test_a_round_in_which_nobody_trains_leaves_everything_as_it_was(probe):
    process = linear.build(*_PROBES[probe], steps=2)
    remembers = isinstance(process, training.StatefulLearningProcess)
    state = linear.started(process, _start())
    client_states = [process.initial_client_state(state)] * 2 if remembers else None

    def run(state, clients, client_states):
        states = [client_states] if remembers else []
        output = process.next(state, clients, *states)
        return output.state, output.client_states if remembers else None

    good = [linear.whole(*linear.examples(seed)) for seed in (0, 1)]
    for _ in range(2):
        state, client_states = run(state, good, client_states)
    after, kept = run(state, [linear.broken(), linear.empty()], client_states)
    for what in ("global_model_weights", "aggregator", "finalizer", "distributor"):
        linear.assert_close(getattr(after, what), getattr(state, what), 0.0)
    if remembers:
        linear.assert_close(kept, client_states, 0.0)
    # And the round after it is as if it had not been.
    again, straight = (run(s, good, client_states)[0] for s in (after, state))
    weights = [linear.weights_of(process, s) for s in (again, straight)]
    linear.assert_close(*weights, 0.0)


_WITHOUT_CLIENT_MEMORY = [
    name
    for name, parts in _PROBES.items()
    if not any(part.client_memory for part in parts)
]


@pytest.mark.parametrize("probe", _WITHOUT_CLIENT_MEMORY)
def test_what_only_the_server_remembers_compiles_to_map_reduce(probe):
    process = linear.build(*_PROBES[probe], steps=2)
    form = tff.backends.mapreduce.get_map_reduce_form_for_computation(process.next)
    state = linear.started(process, _start())
    clients = [linear.whole(*linear.examples(seed)) for seed in (0, 1)]
    for _ in range(2):
        expected = process.next(state, clients).state
        total, sent = form.zero(), form.prepare(state)
        for client in clients:
            update, *_ = form.work(client, sent)
            total = form.accumulate(total, update)
        found = form.update(state, (form.report(total), (), (), ()))["state"]
        for part in ("global_model_weights", "finalizer"):
            linear.assert_close(found[part], getattr(expected, part))
        state = expected
