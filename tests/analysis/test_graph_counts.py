"""Multiply-adds of layers as Keras makes them, against the formulas."""

import pytest

from tests.models import keras_zoo
from tff_reg import models, training
from tff_reg.analysis import cost, graph_counts

# By layer: the input's shape, and the multiply-adds with two classes behind it.
LAYERS = {
    "Conv1D": (lambda L: L.Conv1D(4, 3), (8, 2), 6 * 4 * 3 * 2 + 24 * 2),
    "Conv3D": (lambda L: L.Conv3D(2, 3), (5, 5, 5, 1), 27 * 2 * 27 + 54 * 2),
    "groups": (
        lambda L: L.Conv2D(4, 3, groups=2, padding="same"),
        (4, 4, 4),
        16 * 4 * 9 * 2 + 64 * 2,
    ),
}


@pytest.fixture(params=keras_zoo.KERASES)
def keras(request):
    return keras_zoo.KERASES[request.param]


def _count(keras, layer, shape):
    L = keras.layers
    layers = [keras.Input(shape), layer, L.Flatten(), L.Dense(2)]
    model_fn = models.from_keras(keras.Sequential(layers))
    return cost.count_multiply_adds(training.build("fedavg", model_fn))


@pytest.mark.parametrize("name", LAYERS)
def test_layers_are_counted(keras, name):
    make, shape, forward = LAYERS[name]
    found = _count(keras, make(keras.layers), shape)
    assert (found.layers, found.rest) == (forward, 0)
    assert found.backward >= forward


def test_what_cannot_be_counted_is_named(keras):
    recurrent = keras.layers.SimpleRNN(3)  # The quickest to trace.
    for layer in (recurrent, keras.layers.Bidirectional(recurrent)):
        with pytest.raises(graph_counts.UncountableError, match="cannot be counted"):
            _count(keras, layer, (6, 4))
