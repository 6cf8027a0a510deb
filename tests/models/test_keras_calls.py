"""A Keras model's own `call`: what `from_keras` makes of it."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tff_reg import models


def test_from_keras_leaves_a_model_as_it_is(keras):
    """One that trains where nothing is said, and counts its calls."""

    class Network(keras.Model):
        def __init__(self):
            super().__init__()
            self.norm, self.out = keras.layers.BatchNormalization(), None
            self.calls = self.add_weight(
                shape=(), initializer="zeros", trainable=False, name="calls"
            )
            self.out = keras.layers.Dense(3)

        def call(self, x, training=True):
            self.calls.assign(self.calls + 1.0)
            return self.out(self.norm(x, training=training))

    model = Network()
    model(np.ones((2, 5), np.float32))
    before = [np.array(v) for v in model.weights]
    models.from_keras(model, input_spec=tf.TensorSpec([None, 5]))
    for one, other in zip(before, model.weights):
        np.testing.assert_array_equal(one, other)


@tf.function
def product(layer, x):
    return x @ tf.convert_to_tensor(layer.kernel)


@tf.function
def doubled(x):
    return 2 * x


CALLS = {
    "a function of the module": product,
    "a call that is a function": tf.function(keras.layers.Dense.call),
    "also without": lambda layer, x: (
        product(layer, x) + x @ tf.convert_to_tensor(layer.kernel)
    ),
}


@pytest.mark.parametrize("name", CALLS)
def test_functions_that_are_traced_with_the_weights_of_one_network_are_refused(name):
    """A teacher and its student would be one."""
    call = lambda layer, x: CALLS[name](layer, x)  # noqa: E731
    traced = type("Traced", (keras.layers.Dense,), {"call": call})
    model = keras.Sequential([keras.Input((3,)), traced(2, use_bias=False)])
    with pytest.raises(ValueError, match="calls a tf.function, which computes with"):
        models.from_keras(model)


def test_functions_without_weights_are_not(keras):
    L = keras.layers
    model = keras.Sequential([keras.Input((3,)), L.Activation(doubled), L.Dense(2)])
    x = np.ones((4, 3), np.float32)
    logits = models.from_keras(model)().network(x, models.ForwardPass()).logits
    np.testing.assert_allclose(logits, model(x), atol=1e-6)
