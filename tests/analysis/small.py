"""Small models and examples of the tests of this folder."""

import numpy as np
import tensorflow as tf

LAYERS = tf.keras.layers


def make_examples(count=11, shape=(5,), classes=3, seed=0):
    random = np.random.default_rng(seed)
    return (
        random.normal(size=(count, *shape)),
        random.integers(0, classes, count).astype(np.int32),
    )


def perceptron(dtype="float64"):
    model = tf.keras.Sequential(
        [
            tf.keras.Input([5], dtype=dtype),
            LAYERS.Dense(4, "tanh", dtype=dtype, name="hidden"),
            LAYERS.Dense(3, dtype=dtype, name="logits"),
        ]
    )
    randomize(model)
    return model


def randomize(model, seed=1):
    """Weights that are always the same; scales of norms around 1."""
    random = np.random.default_rng(seed)
    for variable in model.trainable_variables:
        middle = 1.0 if "gamma" in variable.name else 0.0
        variable.assign(middle + 0.5 * random.normal(size=variable.shape))


def cross_entropy(model, x, y, training=False):
    logits = model(x, training=training)
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(y, logits))
