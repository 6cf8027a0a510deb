import collections
import functools

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tff_reg import data, methods, models, runtime, training
from tff_reg.lazy import keras
from tff_reg.runtime import visits
from tff_reg.training import client_work, numbers

MODEL_FN = models.build_model_fn("cnn", image_shape=(4, 4, 1), num_classes=3)
SGD = training.build_sgd(0.1, 0.9, nesterov=True, weight_decay=1e-3)


@pytest.fixture(scope="module", autouse=True)
def _runtime():
    with runtime.running("in_process"):
        yield
    _fed_avg.cache_clear()  # Before TensorFlow's own end.


def _examples(count, seed=0):
    rng = np.random.default_rng(seed)
    return collections.OrderedDict(
        x=rng.normal(size=(count, 4, 4, 1)).astype(np.float32),
        y=rng.integers(0, 3, count).astype(np.int32),
    )


def _whole(count, key=(0, 0), seed=0):
    element = _examples(count, seed)
    element["key"] = np.array(key, np.int64)
    return tf.data.Dataset.from_tensors(element)


def _weights(process, state):
    weights = process.get_model_weights(state)
    return [*weights.trainable, *weights.non_trainable]


@functools.cache
def _fed_avg(weighting):
    """A process that tests share."""
    return training.build_regularized(
        MODEL_FN,
        [],
        SGD,
        client_weighting=weighting,
        client_data=training.WholeClientData(batch_size=4),
    )


def _assert_equal(first, second):
    for a, b in zip(first, second):
        np.testing.assert_array_equal(a, b)


def test_clipping_scales_to_the_norm_and_leaves_small_gradients():
    gradients = [tf.constant([3.0, 0.0]), tf.constant([[4.0]])]
    clipped, norm = numbers.clip_by_global_norm(gradients, 1.0)
    assert norm == 5.0
    np.testing.assert_allclose(clipped[0], [0.6, 0.0], rtol=1e-6)
    same, _ = numbers.clip_by_global_norm(gradients, 6.0)
    _assert_equal(same, gradients)


def test_both_forms_train_alike():
    examples = _examples(10)
    arrays = data.ArrayClientData(examples["x"], examples["y"], [np.arange(10)])
    key = data.client_key(1, 2, "3")
    (client_id,) = arrays.client_ids
    batched = arrays.batched_dataset(client_id, key, batch_size=4, local_epochs=2)
    empty = batched.take(1).map(
        lambda b: collections.OrderedDict(b, x=b["x"][:0], y=b["y"][:0])
    )
    batched = empty.concatenate(batched)  # Which ends no process, and is no step.
    forms = [
        (training.WholeClientData(batch_size=4, local_epochs=2), _whole(10, key)),
        (training.BatchedData(keyed="key" in batched.element_spec), batched),
    ]
    results = []
    for form, data_set in forms:
        process = training.build_regularized(
            MODEL_FN,
            [methods.FedProx(0.1)],
            SGD,
            client_data=form,
        )
        output = process.next(process.initialize(), [data_set])
        results.append(_weights(process, output.state))
    for a, b in zip(*results):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("count", [0, 2])
def test_a_batch_is_empty_where_it_has_no_examples(count):
    x = {"a": tf.zeros([count, 3]), "no columns": tf.zeros([count, 0])}
    found = client_work._has_examples(x, tf.zeros([count]), tf.zeros([]))
    assert bool(found) == (count > 0)


def test_a_client_that_diverges_is_rejected_and_counted():
    form = training.WholeClientData(batch_size=4)
    process = training.build_regularized(
        MODEL_FN, [methods.FedProx(0.1)], SGD, client_data=form
    )
    start = process.initialize()
    alone = process.next(start, [_whole(6)])
    broken = _examples(6)
    broken["x"][2] = np.nan
    broken["key"] = np.zeros([2], np.int64)
    nan_client = tf.data.Dataset.from_tensors(broken)
    both = process.next(start, [_whole(6), nan_client])
    _assert_equal(_weights(process, both.state), _weights(process, alone.state))
    train = both.metrics["client_work"]["train"]
    assert train["rejected_clients"] == 1
    assert train["num_examples"] == 6
    assert train["loss"] == alone.metrics["client_work"]["train"]["loss"]
    assert np.isfinite(train["fedprox/term"])


@pytest.mark.parametrize("weighting", list(tff.learning.ClientWeighting))
def test_an_empty_client_weighs_nothing(weighting):
    process = _fed_avg(weighting)
    start = process.initialize()
    alone = process.next(start, [_whole(6)])
    with_empty = process.next(start, [_whole(0), _whole(6).take(0), _whole(6)])
    _assert_equal(_weights(process, with_empty.state), _weights(process, alone.state))


def test_whole_client_data_in_several_elements_are_refused():
    process = _fed_avg(tff.learning.ClientWeighting.NUM_EXAMPLES)
    start = process.initialize()
    with pytest.raises(visits.ClientError, match="give all of its examples as one"):
        process.next(start, [_whole(6), _whole(6).concatenate(_whole(6))])


def test_the_schedule_changes_the_rate_and_hparams_keep_the_undecayed_one():
    process = training.build_regularized(
        MODEL_FN,
        [],
        training.build_sgd(0.1),
        client_data=training.WholeClientData(batch_size=8),
        learning_rate_schedule=training.exponential(0.5),
    )
    moves, state = [], process.initialize()
    start = process.get_model_weights(state)
    for _ in range(3):
        output = process.next(state, [_whole(8)])
        moved = process.get_model_weights(output.state).trainable
        moves.append(moved[-1] - start.trainable[-1])
        # Only the round number goes on: every round starts from the same weights.
        state = process.set_model_weights(output.state, start)
    np.testing.assert_allclose(moves[1], 0.5 * moves[0], rtol=1e-4, atol=1e-7)
    np.testing.assert_allclose(moves[2], 0.25 * moves[0], rtol=1e-4, atol=1e-7)
    hparams = process.get_hparams(state)
    assert hparams["client_work"]["learning_rate"] == np.float32(0.1)
    hparams["client_work"]["learning_rate"] = np.float32(0.0)
    state = process.set_hparams(state, hparams)
    output = process.next(state, [_whole(8)])
    _assert_equal(_weights(process, output.state), _weights(process, state))


def test_any_tff_model_trains_with_methods_that_need_no_network():
    def model_fn():
        keras_model = keras.Sequential(
            [
                keras.layers.Flatten(input_shape=(4, 4, 1)),
                keras.layers.Dense(3, kernel_initializer="zeros"),
            ]
        )
        return tff.learning.models.from_keras_model(
            keras_model,
            loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            input_spec=collections.OrderedDict(
                x=tf.TensorSpec([None, 4, 4, 1]), y=tf.TensorSpec([None], tf.int32)
            ),
            metrics=[keras.metrics.SparseCategoricalAccuracy()],
        )

    sgd = tff.learning.optimizers.build_sgdm(0.1)
    theirs = tff.learning.algorithms.build_weighted_fed_avg(model_fn, sgd)
    ours = training.build_regularized(model_fn, [], sgd)
    batches = tf.data.Dataset.from_tensor_slices(_examples(12)).batch(4)
    outputs = [p.next(p.initialize(), [batches]) for p in (theirs, ours)]
    weights = [_weights(p, o.state) for p, o in zip((theirs, ours), outputs)]
    for a, b in zip(*weights):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7)
    first, second = (o.metrics["client_work"]["train"] for o in outputs)
    assert first["loss"] == pytest.approx(second["loss"])
    with pytest.raises(TypeError, match="man looks inside the network.*LearningModel"):
        training.build_regularized(model_fn, [methods.MAN(0.1)], SGD)


def _passed_on(name):
    return property(lambda self: getattr(self.model, name))


def test_a_wrapped_model_trains_by_its_own_forward_pass():
    wanted = tff.learning.models.VariableModel.__abstractmethods__
    passed_on = {name: _passed_on(name) for name in {*wanted, "network", "loss_fn"}}

    class Reversed(tff.learning.models.VariableModel):
        """Climbs where the model descends."""

        locals().update(passed_on)

        def __init__(self):
            self.model = MODEL_FN()

        def forward_pass(self, batch_input, training=True):
            output = self.model.forward_pass(batch_input, training)
            return output._replace(loss=-output.loss)

    sgd = training.build_sgd(0.1)
    batches = tf.data.Dataset.from_tensor_slices(_examples(12)).batch(12)
    moves = []
    for model_fn in (MODEL_FN, Reversed):
        process = training.build_regularized(model_fn, [], sgd)
        state = process.initialize()
        after = _weights(process, process.next(state, [batches]).state)
        moves.append([new - old for new, old in zip(after, _weights(process, state))])
    for there, back in zip(*moves):
        np.testing.assert_allclose(there, -back, rtol=1e-5, atol=1e-7)
    with pytest.raises(TypeError, match="LearningModel, but returned Reversed"):
        training.build_regularized(Reversed, [methods.MAN(0.1)], sgd)


def test_a_teacher_has_the_received_models_frozen_layers():
    form = training.WholeClientData(batch_size=4)
    chosen = methods.build("fedetf+kd", {})
    process = training.build_regularized(MODEL_FN, chosen, SGD, client_data=form)
    state = process.initialize()
    weights = process.get_model_weights(state)
    # As after `set_model_weights`: not what the model begins with.
    other = [-2 * weight for weight in weights.non_trainable]
    assert other
    state = process.set_model_weights(
        state, tff.learning.models.ModelWeights(weights.trainable, other)
    )
    train = process.next(state, [_whole(4)]).metrics["client_work"]["train"]
    # In the only step the client is still what it received.
    np.testing.assert_allclose(train["kd/term"], 0, atol=1e-6)


class _TimesSeen(keras.layers.Layer):
    """Multiplies by the number of batches that it has seen before."""

    def build(self, input_shape):
        self.seen = self.add_weight("seen", (), tf.int64, "zeros", trainable=False)

    def compute_output_shape(self, input_shape):
        return input_shape

    def call(self, inputs, training=None):
        factor = tf.identity(self.seen)
        if training:
            self.seen.assign_add(1)
        return inputs * tf.cast(factor, inputs.dtype)


def test_integer_statistics_stay_as_the_server_has_them():
    def model_fn():
        layers = [keras.layers.Flatten(), keras.layers.Dense(3), _TimesSeen()]
        norm = [keras.layers.BatchNormalization(), keras.layers.Dense(3)]
        network = models.from_keras_blocks([layers, norm], input_shape=(4, 4, 1))
        return models.LearningModel(network)

    process = training.build_regularized(
        model_fn, [], SGD, client_data=training.WholeClientData(batch_size=10)
    )
    state = process.initialize()
    before = process.get_model_weights(state)
    before.non_trainable[0] = np.int64(5)
    state = process.set_model_weights(state, before)
    state = process.next(state, [_whole(10), _whole(10, seed=1)]).state
    after = process.get_model_weights(state)
    assert after.non_trainable[0] == 5 and after.non_trainable[0].dtype == np.int64
    # One step: the first layer's gradient is times the factor.
    kernels = [weights.trainable[0] for weights in (before, after)]
    assert not np.allclose(*kernels, atol=2e-3)
    assert not np.allclose(*(w.non_trainable[2] for w in (before, after)))
