"""Rounds of a linear model in float64, whose values can be had by hand."""

import collections
import functools

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_reg import models, training

FEATURES, CLASSES = 4, 3
RATE = 0.02
UNIFORM = tff.learning.ClientWeighting.UNIFORM


def squared_loss(labels, logits):
    """Mean over the batch of the squared distance from the one-hot label."""
    difference = logits - tf.one_hot(labels, CLASSES, dtype=logits.dtype)
    return tf.reduce_mean(tf.reduce_sum(tf.square(difference), axis=1))


def model_fn(**options):
    """Makes the model, by default of least squares, which has one minimum."""
    network = models.from_keras_blocks(
        [
            tf.keras.layers.Flatten(dtype="float64"),
            tf.keras.layers.Dense(CLASSES, dtype="float64"),
        ],
        input_shape=[FEATURES],
    )
    return models.LearningModel(network, **{"loss_fn": squared_loss, **options})


def examples(seed, count=8):
    """Random features, those of other seeds around another mean, and labels."""
    rng = np.random.default_rng(seed)
    features = rng.normal(seed, 1.0, size=(count, FEATURES))
    return features, rng.integers(0, CLASSES, count).astype(np.int32)


def batch(seed):
    """Examples as one batch."""
    features, labels = examples(seed)
    return collections.OrderedDict(x=features, y=labels)


def whole(features, labels):
    """A client's data set as one element."""
    key = np.array([1, 2], np.int64)
    return tf.data.Dataset.from_tensors(
        collections.OrderedDict(x=features, y=labels, key=key)
    )


def broken(seed=0):
    """The data set of a client that diverges."""
    features, labels = examples(seed)
    return whole(np.where(features > 1, np.nan, features), labels)


def empty():
    """The data set of a client without examples."""
    features, labels = examples(0, 0)
    return whole(features, labels)


@functools.cache
def build(*methods, steps=5, num_clients=3, make_model=model_fn, **arguments):
    """A combination's process, whose clients take whole batches in their own order."""
    given = {
        "client_optimizer_fn": training.build_sgd(RATE),
        "client_weighting": UNIFORM,
        "client_data": training.WholeClientData(
            batch_size=100, local_epochs=steps, shuffle=False
        ),
        "population": training.Population(num_clients, mean_examples=8.0),
        **arguments,
    }
    return training.build_regularized(make_model, methods, **given)


def started(process, weights):
    """The first state, with these trainable weights."""
    return process.set_model_weights(
        process.initialize(), tff.learning.models.ModelWeights(weights, [])
    )


def weights_of(process, state):
    """The trainable weights: the kernel [FEATURES, CLASSES] and the bias."""
    return process.get_model_weights(state).trainable


def run(process, state, data_sets, rounds):
    """Rounds of all clients, from the first, of a process with client state."""
    client_states = [process.initial_client_state(state)] * len(data_sets)
    for _ in range(rounds):
        output = process.next(state, data_sets, client_states)
        state, client_states = output.state, output.client_states
    return state, client_states


def gradient(weights, features, labels):
    """The gradient of `squared_loss` by its formula."""
    difference = features @ weights[0] + weights[1] - np.eye(CLASSES)[labels]
    difference *= 2 / len(labels)
    return [features.T @ difference, difference.sum(axis=0)]


def assert_close(first, second, atol=1e-12):
    """The same tensors, however they are packed."""
    first, second = tf.nest.flatten(first), tf.nest.flatten(second)
    assert len(first) == len(second)
    for a, b in zip(first, second):
        np.testing.assert_allclose(a, b, rtol=0, atol=atol)
