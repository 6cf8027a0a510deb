import numpy as np
import pytest
import tensorflow as tf

from tff_reg import models
from tff_reg.models import forward

L = tf.keras.layers


def _blocks():
    return [
        [L.Conv2D(4, 3, padding="same"), L.BatchNormalization(), L.ReLU()],
        tf.keras.Sequential([L.Conv2D(6, 3, activation="relu"), L.MaxPool2D()]),
        [L.Flatten(), L.Dense(8, "tanh"), L.Dense(5)],
    ]


def _flat(blocks):
    for block in blocks:
        if isinstance(block, tf.keras.Sequential):
            yield from block.layers
        else:
            yield from block


def _images(count=2):
    values = np.random.default_rng(0).normal(size=(count, 8, 8, 3))
    return tf.constant(values, tf.float32)


@pytest.mark.parametrize("training", [False, True])
def test_computes_what_the_layers_compute(training):
    blocks = _blocks()
    network = models.from_keras_blocks(blocks, input_shape=(8, 8, 3))
    settings = forward.ForwardPass(training=training, record_activations=True)
    outputs = network(_images(), settings)
    assert [a.shape[-1] for a in outputs.activations] == [4, 6, 8]
    assert outputs.activations[1].shape == [2, 6, 6, 6]  # Before pooling.
    # Before the ReLU that a block ends in, with pooling or without.
    for before, after in zip(outputs.preactivations, outputs.activations):
        assert np.min(before) < 0
        np.testing.assert_array_equal(np.maximum(before, 0), after)
    assert len(outputs.preactivations) == 2
    assert outputs.embedding.shape == [2, 8]
    x = _images()
    for layer in _flat(blocks):
        if isinstance(layer, L.BatchNormalization):
            x = layer(x, training=training)
        else:
            x = layer(x)
    np.testing.assert_allclose(outputs.logits, x, rtol=1e-5)
    assert network.num_classes == 5
    assert network.block_names == ["block1", "block2", "classifier"]
    names = [v.name for v in network.trainable_variables]
    assert len(set(names)) == 10 and len(network.non_trainable_variables) == 2


@pytest.mark.parametrize(
    "blocks, message",
    [
        ([[L.Flatten(), L.Dense(3)]], "at least two blocks"),
        ([[L.Flatten()], []], r"blocks of \[1, 0\] layers"),
        ([[L.ReLU()], [L.Dense(3)]], "one output for each class"),
    ],
)
def test_raises_on_blocks_that_make_no_classifier(blocks, message):
    with pytest.raises(ValueError, match=message):
        models.from_keras_blocks(blocks, input_shape=(8, 8, 3))
