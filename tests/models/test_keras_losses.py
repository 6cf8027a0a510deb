"""By which losses a Keras model is trained, and which do not fit its labels."""

import collections

import numpy as np
import pytest
import tensorflow as tf

from tests.models import keras_zoo
from tff_reg import models

VECTOR, COLUMN = tf.TensorSpec([None]), tf.TensorSpec([None, 1])
# By case: the loss, its weights and the labels' spec.
LOSSES = {
    "labels without the last axis": ("mse", None, VECTOR),
    "whole numbers as labels": (
        "binary_crossentropy",
        None,
        tf.TensorSpec([None], tf.int32),
    ),
    "one for all outputs": ("mse", None, (COLUMN, COLUMN)),
    "by name": ({"a": "mse", "b": "mae"}, None, (COLUMN, COLUMN)),
    "weights by name": (["mse", "mae"], {"b": 0.5, "a": 2.0}, (COLUMN, COLUMN)),
    "of one output": (["mse", None], None, (COLUMN, COLUMN)),
    "the weight of the one output": ("mse", [3.0], COLUMN),
    "one weight": ("mse", 3.0, COLUMN),
}


@pytest.mark.parametrize("what", LOSSES)
def test_a_compiled_loss_is_what_keras_evaluates(keras, what):
    loss, loss_weights, spec = LOSSES[what]
    inputs = keras.Input((5,))
    outputs = [keras.layers.Dense(1, "sigmoid", name=name)(inputs) for name in "ab"]
    model = keras.Model(inputs, outputs if isinstance(spec, tuple) else outputs[0])
    model.compile(loss=loss, loss_weights=loss_weights)
    x = keras_zoo.batch(tf.TensorSpec([None, 5]), 6, 1)
    y = tf.nest.map_structure(
        lambda s: (
            np.random.default_rng(2)
            .integers(0, 2, (6, *s.shape[1:]))
            .astype(s.dtype.as_numpy_dtype)
        ),
        spec,
    )
    labels = list(y) if isinstance(spec, tuple) else y
    expected = np.ravel(model.evaluate(x, labels, verbose=0))[0]
    learned = models.from_keras(model, label_spec=spec)()
    found = learned.forward_pass(collections.OrderedDict(x=x, y=y), training=False)
    np.testing.assert_allclose(found.loss, expected, rtol=1e-5)


@pytest.mark.parametrize("is_function", [False, True])
def test_what_a_mask_leaves_out_is_left_out_of_a_compiled_loss(keras, is_function):
    L = keras.layers
    inputs = keras.Input((4,), dtype="int32")
    x = L.GRU(3, return_sequences=True)(L.Embedding(9, 3, mask_zero=True)(inputs))
    model = keras.Model(inputs, L.Dense(1)(x))
    loss = (lambda y, z: tf.reduce_mean(tf.abs(y - z), -1)) if is_function else "mse"
    model.compile(loss=loss)
    x = np.array([[1, 2, 0, 0], [3, 4, 5, 0]], np.int32)
    y = keras_zoo.batch(tf.TensorSpec([None, 4, 1]), 2, 1)
    expected = np.ravel(model.evaluate(x, y, verbose=0))[0]
    learned = models.from_keras(model)()
    found = learned.forward_pass(collections.OrderedDict(x=x, y=y), training=False)
    np.testing.assert_allclose(found.loss, expected, rtol=1e-5)


def test_losses_in_a_list_are_of_the_names_of_outputs_in_order(keras):
    inputs = keras.Input((5,))
    names = ("size", "kind")
    outputs = {name: keras.layers.Dense(1, name=name)(inputs) for name in names}
    model = keras.Model(inputs, outputs)
    model.compile(loss=["mse", "mae"])
    x = keras_zoo.batch(tf.TensorSpec([None, 5]), 6, 1)
    y = dict.fromkeys(names, x[:, :1] * 3)
    expected = np.ravel(model.evaluate(x, y, verbose=0))[0]
    learned = models.from_keras(model)()
    found = learned.forward_pass(collections.OrderedDict(x=x, y=y), training=False)
    np.testing.assert_allclose(found.loss, expected, rtol=1e-5)


def test_a_users_kind_of_cross_entropy_is_not_taken_for_keras_own(keras):
    class Twice(keras.losses.SparseCategoricalCrossentropy):
        def call(self, y_true, y_pred):
            return 2 * super().call(y_true, y_pred)

    inputs = keras.Input((5,))
    model = keras.Model(inputs, keras.layers.Dense(3)(inputs))
    model.compile(loss=Twice(from_logits=True))
    x = keras_zoo.batch(tf.TensorSpec([None, 5]), 6, 1)
    y = np.arange(6, dtype=np.int32) % 3
    learned = models.from_keras(model, label_spec=tf.TensorSpec([None], tf.int32))()
    found = learned.forward_pass(collections.OrderedDict(x=x, y=y), training=False)
    expected = np.ravel(model.evaluate(x, y, verbose=0))[0]
    np.testing.assert_allclose(found.loss, expected, rtol=1e-5)


# By case: the loss, the labels' spec, and what is said.
MISFITS = {
    "labels of another structure": (
        lambda y, z: tf.reduce_mean(y["a"] - z),
        None,
        r"labels float32 \(None, 3\) and outputs float32 \(None, 3\), cannot be",
    ),
    "no mean": (
        lambda y, z: tf.square(y - z),
        None,
        r"is float32 \(None, 3\), not a float scalar",
    ),
    "no tensor": (lambda y, z: 0, None, r"is int32 \(\), not a float scalar"),
    "labels of another size": (
        "mse",
        tf.TensorSpec([None, 2]),
        r"labels float32 \(None, 2\) .* say with label_spec",
    ),
}


@pytest.mark.parametrize("what", MISFITS)
def test_a_loss_that_does_not_fit_the_outputs_is_refused(keras, what):
    loss, label_spec, message = MISFITS[what]
    inputs = keras.Input((5,))
    model = keras.Model(inputs, keras.layers.Dense(3)(inputs))
    if isinstance(loss, str):
        model.compile(loss=loss)
    loss_fn = None if isinstance(loss, str) else loss
    label_spec = label_spec or tf.TensorSpec([None, 3])
    with pytest.raises(ValueError, match=message) as raised:
        models.from_keras(model, loss_fn=loss_fn, label_spec=label_spec)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("dtype", [tf.float32, tf.int32])
def test_a_loss_that_mixes_examples_is_refused(keras, dtype):
    inputs = keras.Input((5,))
    model = keras.Model(inputs, keras.layers.Dense(1)(inputs))

    def of_labels(label_spec, change):
        def loss(y, z):
            return tf.reduce_mean(tf.square(tf.cast(y, z.dtype) - change(z)))

        return models.from_keras(model, loss_fn=loss, label_spec=label_spec)

    of_rows, of_columns = (tf.TensorSpec(shape, dtype) for shape in ([None], [None, 1]))
    of_labels(of_rows, lambda z: z[:, 0])
    of_labels(of_columns, lambda z: z)
    with pytest.raises(ValueError, match="compares each label with the outputs of all"):
        of_labels(of_rows, lambda z: z)
    # Nothing is said of a loss without labels.
    unread = models.from_keras(
        model, loss_fn=lambda y, z: tf.reduce_mean(z), label_spec=of_rows
    )
    assert not unread().has_accuracy
