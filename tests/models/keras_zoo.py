"""Networks as users bring them, of either Keras, each with what it takes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tff_reg.lazy import keras as keras_2

if tf.__version__ > "2.16":
    import keras as keras_3

    KERASES = {"keras 3": keras_3, "keras 2": keras_2}
else:
    KERASES = {"keras 2": keras_2}


# For `keras`, one of which runs every day.
ONE_A_DAY = [
    pytest.param(name, marks=[pytest.mark.slow] * (number > 0))
    for number, name in enumerate(KERASES)
]


def cases(names, *, of_keras_2=(), slow=()):
    """Names with each Keras, for `keras` and another argument, some marked as slow.

    Args:
      names: The names.
      of_keras_2: Those that run every day with Keras 2, too.
      slow: Those that no Keras runs every day.
    """
    found = []
    for keras in KERASES:
        is_daily = set(names) if keras == list(KERASES)[0] else set(of_keras_2)
        found += [
            pytest.param(
                keras,
                name,
                marks=[] if name in is_daily - set(slow) else [pytest.mark.slow],
            )
            for name in names
        ]
    return found


IMAGE = tf.TensorSpec([None, 8, 8, 3])
CLASSES = 3


@dataclasses.dataclass(frozen=True)
class Entry:
    """A network.

    Attributes:
      build: Makes it, of a Keras.
      input_spec: Of its input, where the model does not know it.
      integers: How many values its integer inputs have.
    """

    build: Callable[[Any], Any]
    input_spec: Any = None
    integers: int = 20


def _head(keras, x):
    return keras.layers.Dense(CLASSES, name="head")(x)


def _stack(make):
    """A Sequential model of the layers that `make` lists."""
    return lambda keras: keras.Sequential([keras.Input((8, 8, 3)), *make(keras.layers)])


def _not_built(keras):
    L = keras.layers
    return keras.Sequential([L.Flatten(), L.Dense(5, "tanh"), L.Dense(CLASSES)])


def _residual(keras):
    L = keras.layers
    inputs = keras.Input((8, 8, 3))
    x = L.Conv2D(4, 3, padding="same")(inputs)
    for _ in range(3):
        y = L.Activation("relu")(L.BatchNormalization()(x))
        x = L.Add()([x, L.Conv2D(4, 3, padding="same")(y)])
    x = L.GlobalAveragePooling2D()(L.ReLU()(x))
    return keras.Model(inputs, _head(keras, x))


def _residual_by_plus(keras):
    L = keras.layers
    inputs = keras.Input((8, 8, 3))
    x = L.Conv2D(4, 3, padding="same", activation="relu")(inputs)
    for _ in range(2):
        x = x + L.Conv2D(4, 3, padding="same", activation="relu")(x)
    return keras.Model(inputs, _head(keras, L.Flatten()(x)))


def _nested(keras):
    L = keras.layers
    inner = keras.Sequential(
        [
            keras.Input((8, 8, 3)),
            L.Conv2D(4, 3),
            keras.Sequential([L.BatchNormalization(), L.ReLU()]),
        ]
    )
    inputs = keras.Input((8, 8, 3))
    x = L.Flatten()(inner(inputs))
    return keras.Model(inputs, _head(keras, L.Dense(6, activation="elu")(x)))


def _shared(keras):
    L = keras.layers
    inputs = keras.Input((8, 8, 3))
    conv = L.Conv2D(3, 3, padding="same", activation="relu")
    x = L.Flatten()(conv(conv(inputs)))
    return keras.Model(inputs, _head(keras, x))


def _frozen_base(keras):
    L = keras.layers
    base = keras.Sequential(
        [keras.Input((8, 8, 3)), L.Conv2D(4, 3), L.BatchNormalization(), L.ReLU()]
    )
    base.trainable = False
    layers = [keras.Input((8, 8, 3)), base, L.Flatten(), L.Dense(CLASSES)]
    return keras.Sequential(layers)


def _lora(keras):
    """A network whose pretrained kernels are frozen, beside small ones that train."""
    L = keras.layers
    inputs = keras.Input((10,), dtype="int32")
    x = L.Embedding(20, 6)(inputs)
    x = L.Conv1D(6, 3, activation="relu")(x)
    x = L.EinsumDense("abc,cde->abde", (8, 2, 4), bias_axes="de")(x)
    x = L.Dense(5, activation="relu")(L.Flatten()(x))
    model = keras.Model(inputs, _head(keras, x))
    for layer in model.layers[1:-1]:
        if layer.weights:
            layer.enable_lora(2)
    return model


def _regularised(keras):
    L = keras.layers
    inputs = keras.Input((8, 8, 3))
    options = dict(kernel_regularizer="l2", activity_regularizer="l2")
    x = L.Conv2D(4, 3, activation="relu", **options)(inputs)
    x = L.ActivityRegularization(l1=0.1)(L.Flatten()(x))
    x = L.Dense(CLASSES, kernel_regularizer="l1", name="head")(x)
    return keras.Model(inputs, x)


def _groups(keras):
    L = keras.layers
    inputs = keras.Input((8, 8, 3))
    x = L.SeparableConv2D(4, 3, activation="relu")(inputs)
    x = L.GroupNormalization(2)(L.DepthwiseConv2D(3)(x))
    x = L.PReLU()(L.LayerNormalization()(x))
    return keras.Model(inputs, _head(keras, L.Flatten()(x)))


def _normalised(keras):
    L = keras.layers
    inputs = keras.Input((8, 8, 3))
    normalization = L.Normalization(axis=None)
    normalization.adapt(np.random.default_rng(0).normal(2, 3, (50, 8, 8, 3)))
    x = L.Flatten()(L.Rescaling(0.5)(normalization(inputs)))
    return keras.Model(inputs, _head(keras, x))


def _tabular(keras):
    L = keras.layers
    inputs = {
        "age": keras.Input((1,), name="age"),
        "job": keras.Input((4,), name="job"),
    }
    x = L.Concatenate()([inputs["age"], inputs["job"]])
    for _ in range(2):
        x = L.BatchNormalization()(L.Dense(8, activation="relu")(x))
    return keras.Model(inputs, _head(keras, x))


def _two_inputs(keras):
    L = keras.layers
    first, second = keras.Input((6,)), keras.Input((6,))
    tower = L.Dense(5, activation="tanh")
    x = L.Multiply()([tower(first), tower(second)])
    return keras.Model([first, second], _head(keras, x))


def _text(keras, layer):
    L = keras.layers
    inputs = keras.Input((12,), dtype="int32")
    x = L.Embedding(20, 6, mask_zero=True)(inputs)
    return keras.Model(inputs, _head(keras, layer(x)))


def _transformer_block(keras, x, width):
    L = keras.layers
    y = L.LayerNormalization()(x)
    x = L.Add()([x, L.MultiHeadAttention(2, width // 2)(y, y)])
    y = L.Dense(2 * width, activation="gelu")(L.LayerNormalization()(x))
    return L.Add()([x, L.Dense(width)(y)])


def _text_transformer(keras):
    L = keras.layers
    inputs = keras.Input((12,), dtype="int32")
    x = L.Embedding(20, 8)(inputs)
    for _ in range(2):
        x = _transformer_block(keras, x, 8)
    return keras.Model(inputs, _head(keras, L.GlobalAveragePooling1D()(x)))


def _custom_layer(keras):
    """As in Keras's guides: `build` without `super().build`, layers inside, losses."""
    L = keras.layers

    class Linear(L.Layer):
        def __init__(self, units):
            super().__init__()
            self.units = units

        def build(self, input_shape):
            shape = (input_shape[-1], self.units)
            self.w = self.add_weight(shape=shape, initializer="random_normal")
            self.b = self.add_weight(shape=(self.units,), initializer="zeros")

        def call(self, inputs):
            return tf.matmul(inputs, self.w) + self.b

    class Block(L.Layer):
        def __init__(self):
            super().__init__()
            self.first, self.norm = Linear(6), L.BatchNormalization()

        def call(self, inputs):
            x = self.norm(self.first(inputs))
            self.add_loss(0.01 * tf.reduce_sum(tf.square(x)))
            return tf.nn.relu(x)

    layers = [keras.Input((8, 8, 3)), L.Flatten(), Block(), Linear(5), L.Dense(CLASSES)]
    return keras.Sequential(layers)


def _containers(keras):
    """Layers and weights in lists, dicts and tuples, one in another."""
    L = keras.layers

    class Network(keras.Model):
        def __init__(self):
            super().__init__()
            self.parts = {"a": [L.Dense(4), {"b": (L.BatchNormalization(),)}]}
            one = dict(shape=(4,), initializer="ones")
            self.scales = [self.add_weight(name=name, **one) for name in "cd"]
            self.others = ({"e": self.add_weight(name="e", **one)},)
            self.out = L.Dense(CLASSES)

        def call(self, x):
            x = self.parts["a"][0](tf.reshape(x, [-1, 192]))
            x = self.parts["a"][1]["b"][0](x) * self.scales[0] + self.scales[1]
            return self.out(x * self.others[0]["e"])

    return Network()


def _nested_last(keras):
    """Its last layer is inside of another."""
    last = keras.Sequential([keras.Input((4,)), keras.layers.Dense(CLASSES)])
    return _stack(lambda L: [L.Flatten(), L.Dense(4, "relu"), last])(keras)


def _mean_of_softmaxes(keras):
    L = keras.layers
    inputs = keras.Input((8, 8, 3))
    x = L.Flatten()(inputs)
    shares = [L.Dense(CLASSES, activation="softmax")(x) for _ in range(2)]
    return keras.Model(inputs, L.Average()(shares))


def _subclassed(keras):
    L = keras.layers

    class Network(keras.Model):
        def __init__(self):
            super().__init__()
            self.convs = [L.Conv2D(4, 3, activation="relu"), L.Conv2D(5, 3)]
            self.norms = {"one": L.BatchNormalization()}
            self.out = L.Dense(CLASSES)

        def call(self, x, training=False):
            for conv in self.convs:
                x = conv(x)
            x = self.norms["one"](x, training=training)
            return self.out(tf.reduce_mean(tf.nn.relu(x), [1, 2]))

    return Network()


def _subclassed_without_training(keras):
    L = keras.layers

    class Network(keras.Model):
        def __init__(self):
            super().__init__()
            self.dense, self.norm = L.Dense(5), L.BatchNormalization()
            self.scale = self.add_weight(shape=(), initializer="ones", name="scale")
            self.out = L.Dense(CLASSES)

        def call(self, x):
            x = tf.reshape(x, [-1, 192])
            return self.scale * self.out(self.norm(self.dense(x)))

    return Network()


def _random(keras):
    L = keras.layers
    inputs = keras.Input((8, 8, 3))
    x = L.GaussianNoise(0.3)(inputs)
    x = L.SpatialDropout2D(0.3)(L.Conv2D(6, 3, activation="relu")(x))
    x = L.Dropout(0.5)(L.Flatten()(x))
    return keras.Model(inputs, _head(keras, x))


NETWORKS = {
    "sequential": Entry(
        _stack(
            lambda L: [
                L.Conv2D(4, 3, padding="same", use_bias=False),
                *(L.BatchNormalization(), L.ReLU(), L.MaxPooling2D()),
                *(L.Conv2D(6, 3, activation="relu"), L.Flatten()),
                L.Dense(CLASSES, activation="softmax"),
            ]
        )
    ),
    "sequential, not built": Entry(_not_built, IMAGE),
    "softmax as a layer": Entry(
        _stack(lambda L: [L.Flatten(), L.Dense(CLASSES), L.Softmax()])
    ),
    "residual": Entry(_residual),
    "residual by +": Entry(_residual_by_plus),
    "nested BatchNorm": Entry(_nested),
    "shared layer": Entry(_shared),
    "frozen base": Entry(_frozen_base),
    "LoRA": Entry(_lora),
    "regularised": Entry(_regularised),
    "groups and depths": Entry(_groups),
    "Normalization": Entry(_normalised),
    "tabular, dict of inputs": Entry(_tabular),
    "two inputs": Entry(_two_inputs),
    "LSTM with a mask": Entry(lambda k: _text(k, k.layers.LSTM(5))),
    "GRU, both directions": Entry(
        lambda k: _text(k, k.layers.Bidirectional(k.layers.GRU(4)))
    ),
    "text transformer": Entry(_text_transformer),
    "custom layers": Entry(_custom_layer),
    "sub-classed": Entry(_subclassed, IMAGE),
    "sub-classed, no training argument": Entry(_subclassed_without_training, IMAGE),
    "containers": Entry(_containers, IMAGE),
    # A layer that sets a trained weight while it is called.
    "spectral normalization": Entry(
        _stack(
            lambda L: [
                L.SpectralNormalization(L.Conv2D(4, 3)),
                *(L.Flatten(), L.Dense(CLASSES)),
            ]
        )
    ),
    # Its last layer is no `Dense`.
    "pooled last": Entry(
        _stack(
            lambda L: [
                L.Conv2D(4, 3, activation="relu"),
                *(L.Conv2D(CLASSES, 1), L.GlobalAveragePooling2D()),
            ]
        )
    ),
    "nested last layer": Entry(_nested_last),
    "spectral last layer": Entry(
        _stack(
            lambda L: [
                *(L.Flatten(), L.Dense(4, "relu")),
                L.SpectralNormalization(L.Dense(CLASSES)),
            ]
        )
    ),
    "softmax of a regularised layer": Entry(
        _stack(
            lambda L: [
                L.Flatten(),
                L.Dense(CLASSES, "softmax", activity_regularizer="l2"),
            ]
        )
    ),
    # What returns probabilities may end in any layer.
    "softmax, then Reshape": Entry(
        _stack(
            lambda L: [L.Flatten(), L.Dense(CLASSES, "softmax"), L.Reshape((CLASSES,))]
        )
    ),
    "mean of two softmaxes": Entry(_mean_of_softmaxes),
    "dropout and noise": Entry(_random),
}

# By name, the side of the smallest image.
APPLICATIONS = {
    **dict.fromkeys(("MobileNet", "MobileNetV2", "MobileNetV3Small"), 32),
    **dict.fromkeys(("ResNet50", "ResNet50V2", "DenseNet121"), 32),
    **dict.fromkeys(
        ("EfficientNetB0", "EfficientNetV2B0", "VGG16", "NASNetMobile"), 32
    ),
    "Xception": 71,
    "InceptionV3": 75,
}


def application(keras, name: str):
    """One of `keras.applications`, without weights, at a small size."""
    side = APPLICATIONS[name]
    options = {"include_preprocessing": False} if "V3Small" in name else {}
    build = getattr(keras.applications, name)
    shape = (side, side, 3)
    return build(input_shape=shape, weights=None, classes=CLASSES, **options)


def batch(spec: Any, size: int, seed: int, integers: int = 20):
    """Input of a spec: normal numbers, or integers below `integers` that end in 0."""
    generator = np.random.default_rng(seed)

    def one(each: tf.TensorSpec):
        shape = (size, *each.shape[1:])
        if each.dtype.is_integer:
            values = generator.integers(1, integers, shape)
            values[:, -3:] = 0
        else:
            values = generator.normal(size=shape)
        return values.astype(each.dtype.as_numpy_dtype)

    return tf.nest.map_structure(one, spec)
