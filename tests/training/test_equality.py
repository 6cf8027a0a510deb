"""`==` and `!=` of tensors are elementwise in all that users write."""

import collections
import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from tff_reg import methods, models, training
from tff_reg.lazy import keras

pytestmark = pytest.mark.usefixtures("in_process")

LABELS = np.array([0, 1, 1, 2, 1], np.int32)


@dataclasses.dataclass(frozen=True)
class _Equal(methods.Method):
    name = "equal"

    def term(self, step):
        ones = tf.reduce_mean(tf.cast(step.labels == 1, tf.float32))
        others = tf.reduce_mean(tf.cast(step.labels != 1, tf.float32))
        same = step.labels[:, None] == step.labels[None, :]
        norm = tf.add_n([tf.reduce_sum(w**2) for w in step.weights])
        return methods.Term(
            1e-9 * norm,
            measurements={
                "ones": ones,
                "others": others,
                "pairs": tf.reduce_mean(tf.cast(same, tf.float32)),
                "itself": tf.reduce_mean(tf.cast(step.weights[0] == 0.0, tf.float32)),
            },
        )


class _IsOne(keras.layers.Layer):
    def call(self, x):
        return tf.cast(x == 1.0, tf.float32)


def _loss(y_true, y_pred):
    at = tf.cast(y_true[:, None] == tf.range(3)[None, :], tf.float32)
    return -tf.reduce_mean(tf.reduce_sum(at * tf.nn.log_softmax(y_pred), -1))


def _train(loss, parts, **given):
    """Metrics of a client of five equal examples, whose logits are 2, 1, 1."""
    layers = [keras.layers.InputLayer([2]), _IsOne(), keras.layers.Dense(3)]
    model = keras.Sequential(layers)
    model.layers[-1].kernel.assign(tf.ones([2, 3]))
    model.layers[-1].bias.assign([1.0, 0.0, 0.0])
    model_fn = models.from_keras(model, loss_fn=loss, **given)
    process = training.build_regularized(model_fn, parts, training.build_sgd(0.0))
    x = np.array([[1, 0]] * 5, np.float32)
    batch = collections.OrderedDict(x=x, y=LABELS)
    data = [tf.data.Dataset.from_tensors(batch)]
    return process.next(process.initialize(), data).metrics["client_work"]["train"]


def test_hooks_compare_elements():
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    train = _train(loss, [_Equal()])
    assert train["equal/ones"] == pytest.approx(0.6)
    assert train["equal/others"] == pytest.approx(0.4)
    assert train["equal/pairs"] == pytest.approx((1 + 9 + 1) / 25)
    assert train["equal/itself"] == 0.0


@dataclasses.dataclass(frozen=True)
class _Second(methods.Method):
    """Ends at 7 after a round of one client."""

    name = "second"
    server_memory = {"rank": lambda w: tf.where(tf.rank(w[0]) == 4, 5.0, 0.0)}

    def update_memory(self, server):
        return {"rank": server.memory["rank"] + tf.where(server.count == 1, 1.0, 0.0)}

    def next_model(self, server):
        is_first = server.memory["rank"] == 6.0
        return [tf.where(is_first, tf.fill(w.shape, 7.0), w) for w in server.weights]


def test_hooks_of_the_server_compare_elements():
    model_fn = models.build_model_fn("cnn", image_shape=(4, 4, 1), num_classes=2)
    process = training.build_regularized(model_fn, [_Second()], training.build_sgd(0.1))
    batch = collections.OrderedDict(x=np.ones([2, 4, 4, 1], np.float32), y=LABELS[:2])
    state = process.next(
        process.initialize(), [tf.data.Dataset.from_tensors(batch)]
    ).state
    assert np.all(process.get_model_weights(state).trainable[0] == 7.0)
    assert state.finalizer["memory"]["second/rank"] == 6.0


def test_layers_and_losses_compare_elements():
    logits = np.array([2.0, 1.0, 1.0])
    log_p = logits - np.log(np.exp(logits).sum())
    train = _train(_loss, [], label_spec=tf.TensorSpec([None], tf.int32))
    assert train["loss"] == pytest.approx(-log_p[LABELS].mean(), rel=1e-5)


def test_outside_of_our_processes_nothing_changes():
    with tf.Graph().as_default():
        graph_one = tf.constant(1)
        assert (graph_one == 1) is False and graph_one != 1
    assert bool(tf.constant(1) == 1)
