"""Which models `from_keras` refuses, and why."""

import pytest
import tensorflow as tf

from tests.models import keras_zoo
from tff_reg import models, training
from tff_reg.methods import catalogue


def _of(keras, *layers, **options):
    return keras.Sequential([keras.Input((8, 8, 3)), *layers], **options)


def _own(keras, name, in_class=True):
    """A model that overrides a method, in its class or by itself."""
    own = {name: lambda *_, **__: None}
    kind = type("Own", (keras.Model,), own if in_class else {})
    inputs = keras.Input((5,))
    model = kind(inputs, keras.layers.Dense(3)(inputs))
    if not in_class:
        setattr(model, name, own[name])
    return model


def _calling(keras, function):
    """A model of a layer that calls a function of its `Dense` layer and the input."""

    class Calling(keras.layers.Layer):
        def build(self, shape):
            options = dict(kernel_regularizer="l2", bias_regularizer="l2")
            self.dense = keras.layers.Dense(3, **options)
            self.dense.build(shape)

        def call(self, x):
            return function(self.dense, x)

    return keras.Sequential([keras.Input((5,)), Calling()])


def _looking_up(keras):
    L = keras.layers
    inputs = keras.Input((4,), dtype="int64")
    x = L.Embedding(5, 3)(L.IntegerLookup(vocabulary=[1, 2])(inputs))
    return keras.Model(inputs, L.Dense(3)(L.Flatten()(x)))


AWAY = tf.Variable(2.0)


def _compiled(keras, loss):
    inputs = keras.Input((5,))
    outputs = [keras.layers.Dense(1, name=name)(inputs) for name in "ab"]
    model = keras.Model(inputs, outputs)
    model.compile(loss=loss)
    return model


def _stateful(keras):
    inputs = keras.Input(batch_shape=(4, 8, 3))
    x = keras.layers.LSTM(4, stateful=True)(inputs)
    return keras.Model(inputs, keras.layers.Dense(3)(x))


def _of_strings(keras):
    inputs = keras.Input((), dtype="string")
    x = keras.layers.TextVectorization(max_tokens=5, output_sequence_length=4)(inputs)
    x = keras.layers.GlobalAveragePooling1D()(keras.layers.Embedding(5, 4)(x))
    return keras.Model(inputs, keras.layers.Dense(3)(x))


BAD = {
    "train_step": (lambda k: _own(k, "train_step"), "has a train_step of its own"),
    "compute_loss of an instance": (
        lambda k: _own(k, "compute_loss", in_class=False),
        "has a compute_loss of its",
    ),
    "a lost gradient": (
        lambda k: _calling(k, lambda dense, x: tf.stop_gradient(dense(x))),
        r"not depend on the weights [\w/]*kernel, .*or their gradient is lost",
    ),
    "a weight that nothing reads": (
        lambda k: _calling(k, lambda dense, x: tf.matmul(x, dense.kernel)),
        r"not depend on the weights [\w/]*bias, or their gradient",
    ),
    "a variable of no layer": (
        lambda k: _calling(k, lambda dense, x: dense(x) * AWAY),
        "reads the variable 'Variable:0', which is no weight of it",
    ),
    "a lookup table": (_looking_up, "reads a lookup table"),
    "a loss per example": (
        lambda k: _compiled(k, k.losses.MeanSquaredError(reduction="none")),
        "was compiled with reduction=None, and Keras trains the sum",
    ),
    "losses of others": (
        lambda k: _compiled(k, {"a": "mse", "c": "mse"}),
        r"losses of \['a', 'c'\], and its outputs are \['a', 'b'\]",
    ),
    "stateful": (_stateful, "keeps its state from batch to batch"),
    "no weights yet": (
        lambda k: k.Sequential([k.layers.Flatten(), k.layers.Dense(3)]),
        "give input_spec",
    ),
    "nothing is trained": (
        lambda k: _of(k, k.layers.Flatten(), k.layers.Dense(3, trainable=False)),
        "Nothing of the model .* is trained",
    ),
    "no vector of logits": (
        lambda k: _of(k, k.layers.Dense(3)),
        "flatten before the last layer",
    ),
    "one number": (
        lambda k: _of(k, k.layers.Flatten(), k.layers.Dense(1)),
        r"gives \(None, 1\)",
    ),
    "constraint": (
        lambda k: _of(
            k, k.layers.Flatten(), k.layers.Dense(3, kernel_constraint="max_norm")
        ),
        "has a constraint",
    ),
    "float32 and float64": (
        lambda k: _of(
            k,
            k.layers.Conv2D(3, 3),
            k.layers.Flatten(),
            k.layers.Dense(3, dtype="float64"),
        ),
        "weights are float32 and float64: give all layers the same dtype",
    ),
    "strings": (_of_strings, "takes strings, .* vectorise the text before"),
    "mixed precision": (
        lambda k: _of(k, k.layers.Flatten(), k.layers.Dense(3, dtype="mixed_float16")),
        "mixed precision",
    ),
}


@pytest.mark.parametrize("what", BAD)
def test_bad_models_are_refused_in_one_sentence(keras, what):
    build, message = BAD[what]
    with pytest.raises(ValueError, match=message) as raised:
        models.from_keras(build(keras))
    assert "\n" not in str(raised.value)


# Of Keras 3 alone: Keras 2 does it rightly, refuses it, or has no such thing.
BAD_OF_KERAS_3 = {
    "a space in a name": (
        lambda k: _of(k, k.layers.Flatten(), k.layers.Dense(3), name="My net"),
        "take no name like 'My net'",
    ),
    "tf.recompute_grad": (
        lambda k: _calling(
            k, lambda dense, x: tf.recompute_grad(lambda x: dense(x))(x)
        ),
        r"not depend on the weights .*call the others without tf\.recompute_grad",
    ),
    "keras.random without a seed": (
        lambda k: _calling(k, lambda dense, x: dense(x) + k.random.normal((3,))),
        r"draws random numbers by keras\.random without a seed",
    ),
}


@pytest.mark.skipif("keras 3" not in keras_zoo.KERASES, reason="of Keras 3")
@pytest.mark.parametrize("what", BAD_OF_KERAS_3)
def test_bad_models_of_keras_3_are_refused_in_one_sentence(what):
    build, message = BAD_OF_KERAS_3[what]
    with pytest.raises(ValueError, match=message) as raised:
        models.from_keras(build(keras_zoo.KERASES["keras 3"]))
    assert "\n" not in str(raised.value)


def test_weights_that_are_made_in_training_alone_are_refused(keras):
    class Late(keras.Model):
        def __init__(self):
            super().__init__()
            self.one, self.other = keras.layers.Dense(3), keras.layers.Dense(3)

        def call(self, x, training=False):
            return self.one(x) + self.other(x) if training else self.one(x)

    with pytest.raises(ValueError, match="makes weights in its first pass in training"):
        models.from_keras(Late(), input_spec=tf.TensorSpec([None, 5]))


@pytest.mark.parametrize("is_made_inside", [False, True])
def test_from_keras_inside_a_model_fn_is_refused(keras, is_made_inside):
    def make():
        return _of(keras, keras.layers.Flatten(), keras.layers.Dense(3))

    made = make()
    model_fn = lambda: models.from_keras(make() if is_made_inside else made)  # noqa: E731
    with pytest.raises(ValueError, match="write model_fn = from_keras"):
        training.build("fedavg", model_fn)


def test_a_model_fn_that_gives_a_model_fn_is_refused(keras):
    model_fn = models.from_keras(
        _of(keras, keras.layers.Flatten(), keras.layers.Dense(3))
    )
    for name in catalogue.methods():
        with pytest.raises(TypeError, match="model_fn returned a KerasModelFn"):
            training.build(name, lambda: model_fn, num_clients=4, total_rounds=3)


def test_what_is_no_keras_model_is_refused():
    with pytest.raises(TypeError, match="takes a Keras model, not a list"):
        models.from_keras([1])
