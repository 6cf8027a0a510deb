"""By which losses a Keras model is trained, and which do not fit its labels."""

import collections

import numpy as np
import pytest
import tensorflow as tf

from tests.models import keras_zoo
from tff_reg import models


def _two(keras, names=("a", "b"), activation=None):
    """Inputs, and an output of one number for each name."""
    inputs = keras.Input((5,))
    made = [keras.layers.Dense(1, activation, name=name)(inputs) for name in names]
    return inputs, made


def _several(loss, loss_weights=None):
    def build(keras):
        model = keras.Model(*_two(keras))
        model.compile(loss=loss, loss_weights=loss_weights)
        return model

    return build


def _one(loss, loss_weights=None, activation=None):
    def build(keras):
        inputs, (output, _) = _two(keras, activation=activation)
        model = keras.Model(inputs, output)
        model.compile(loss=loss, loss_weights=loss_weights)
        return model

    return build


def _named(keras):
    """A list of losses is of the outputs' names in order."""
    names = ("size", "kind")
    inputs, outputs = _two(keras, names)
    model = keras.Model(inputs, dict(zip(names, outputs)))
    model.compile(loss=["mse", "mae"])
    return model


def _masked(loss):
    """What a mask leaves out is left out."""

    def build(keras):
        L = keras.layers
        inputs = keras.Input((4,), dtype="int32")
        x = L.Embedding(2, 3, mask_zero=True)(inputs)
        model = keras.Model(inputs, L.Dense(1)(x))
        model.compile(loss=loss)
        return model

    return build


def _own_kind(keras):
    """Not taken for Keras's own cross-entropy."""

    class Twice(keras.losses.SparseCategoricalCrossentropy):
        def call(self, y_true, y_pred):
            return 2 * super().call(y_true, y_pred)

    inputs = keras.Input((5,))
    model = keras.Model(inputs, keras.layers.Dense(3)(inputs))
    model.compile(loss=Twice(from_logits=True))
    return model


VECTOR, WHOLE = tf.TensorSpec([None]), tf.TensorSpec([None], tf.int32)
# By case: the model, and the labels' spec if it is not the outputs'.
LOSSES = {
    "labels without the last axis": (_one("mse"), VECTOR),
    "whole numbers": (_one("binary_crossentropy", None, "sigmoid"), WHOLE),
    "one for all outputs": (_several("mse"), None),
    "by name": (_several({"a": "mse", "b": "mae"}), None),
    "weights by name": (_several(["mse", "mae"], {"b": 0.5, "a": 2.0}), None),
    "of one output": (_several(["mse", None]), None),
    "the weight of the one output": (_one("mse", [3.0]), None),
    "one weight": (_one("mse", 3.0), None),
    "outputs with names": (_named, None),
    "masked": (_masked("mse"), None),
    "a masked function": (
        _masked(lambda y, z: tf.reduce_mean(tf.abs(y - z), -1)),
        None,
    ),
    "a kind of one's own": (_own_kind, WHOLE),
}
_BY_KERAS_2 = ("by name", "weights by name", "masked", "a kind of one's own")


@pytest.mark.parametrize(
    "keras, what", keras_zoo.cases(LOSSES, of_keras_2=_BY_KERAS_2), indirect=["keras"]
)
def test_a_compiled_loss_is_what_keras_evaluates(keras, what):
    build, label_spec = LOSSES[what]
    model = build(keras)
    learned = models.from_keras(model, label_spec=label_spec)()
    spec = learned.input_spec
    x = keras_zoo.batch(spec["x"], 6, 1, 2)
    generator = np.random.default_rng(2)

    def zeros_and_ones(s):
        values = generator.integers(0, 2, (6, *s.shape[1:]))
        return values.astype(s.dtype.as_numpy_dtype)

    y = tf.nest.map_structure(zeros_and_ones, spec["y"])
    labels = list(y) if isinstance(y, tuple) else y
    expected = np.ravel(model.evaluate(x, labels, verbose=0))[0]
    found = learned.forward_pass(collections.OrderedDict(x=x, y=y), training=False)
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


# The last layers, and whether they give probabilities.
LAST = {
    "softmax": (lambda L: [L.Dense(3, "softmax")], True),
    "softmax without a head": (
        lambda L: [L.Reshape((2, 2)), L.Conv1D(3, 2), L.Flatten(), L.Softmax()],
        True,
    ),
    "sigmoid": (lambda L: [L.Dense(3, "sigmoid")], False),
    "a forgotten softmax": (lambda L: [L.Dense(3)], False),
    "relu": (lambda L: [L.Dense(3, "relu")], False),
    "softmax of pairs": (
        lambda L: [L.Dense(4), L.Reshape((2, 2)), L.Softmax(), L.Flatten()],
        False,
    ),
}


@pytest.mark.parametrize("last", LAST)
def test_a_last_layers_loss_accuracy_and_predictions_are_keras_own(keras, last):
    x = 30 * np.random.default_rng(0).normal(size=(6, 4)).astype(np.float32)
    y = np.arange(6, dtype=np.int32) % 3
    keras.utils.set_random_seed(0)
    layers, from_logits = LAST[last][0](keras.layers), LAST[last][1]
    model = keras.Sequential([keras.Input((4,)), *layers])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=from_logits)
    model.compile(loss=loss, metrics=["accuracy"])
    what = "probabilities" if from_logits else "no probabilities"
    with pytest.warns(UserWarning, match=f"returns {what}"):
        learned = models.from_keras(model)()
        expected = model.evaluate(x, y, verbose=0)
    batch = collections.OrderedDict(x=x, y=y)
    found = learned.forward_pass(batch, training=False)
    correct, count = learned.report_local_unfinalized_metrics()["accuracy"]
    np.testing.assert_allclose([found.loss, correct / count], expected, rtol=1e-6)
    predicted = model.predict(x, verbose=0)
    np.testing.assert_allclose(found.predictions, predicted, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("activation", ["sigmoid", "relu"])
def test_outputs_that_look_like_no_logits_are_taken_as_logits_with_a_word(
    keras, activation
):
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3, activation)])
    with pytest.warns(UserWarning, match="taken as logits. Leave the last layer's"):
        models.from_keras(model)
