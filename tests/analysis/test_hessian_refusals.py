"""What the Hessian tools refuse, each in one sentence."""

import types

import numpy as np
import pytest
import tensorflow as tf

from tests.analysis import small
from tff_reg import analysis, models
from tff_reg.analysis import hessian


def wrapped():
    """What has a network, but a loss of which nobody knows."""
    layers = [small.LAYERS.Dense(4), small.LAYERS.Dense(3)]
    network = models.from_keras_blocks(layers, input_shape=[5])
    return types.SimpleNamespace(network=network)


def with_a_sum():
    model = small.perceptron()
    model.compile(loss=_LOSS(True, reduction="sum"))
    return models.from_keras(model)()


def with_a_class_left_out():
    model = small.perceptron()
    model.compile(loss=_LOSS(True, ignore_class=0))
    return model


def with_a_mask():
    layers = small.LAYERS
    model = tf.keras.Sequential([layers.Masking(), layers.Dense(3)])
    model.compile(loss=_LOSS(True))
    return model


def of_keras_with_a_mask():
    return models.from_keras(with_a_mask(), input_spec=tf.TensorSpec([None, 1, 5]))()


X, Y = small.make_examples()
_LOST = tf.Variable(1.0, name="v")
_LOSS = tf.keras.losses.SparseCategoricalCrossentropy
# What is called: `trace` of a perceptron on (X, Y), but where something else stands.
WRONG = [
    (dict(model="model"), "not a str"),
    (dict(model=wrapped), "not a SimpleNamespace"),
    (dict(loss=0.0), "needs variables"),
    (dict(loss=0.0, variables=[]), "no variables"),
    (dict(loss=np.ones(2), variables=[_LOST]), "one real number"),
    (dict(loss=0.0, variables=[_LOST]), "does not depend on the variable 'v'"),
    (dict(loss=0.0, variables=[_LOST], training=True), "is for models"),
    (dict(model=with_a_sum), "must be a mean"),
    (dict(model=with_a_class_left_out), "must be a mean"),
    (dict(model=with_a_mask, data=(X[:, None], Y[:, None])), "a mask that reaches"),
    (
        dict(model=of_keras_with_a_mask, data=(X[:, None], Y[:, None])),
        "ignore_class and a mask",
    ),
    (dict(data=X), "not a ndarray"),
    (dict(data=(X, Y, Y)), "got a tuple"),
    (dict(data=dict(a=X)), "got a dict"),
    (dict(data=(X, Y[:5])), "one row for each example"),
    (dict(data=(X[:0], Y[:0])), "no examples"),
    (dict(data=[]), "no examples"),
    (dict(data=tf.data.Dataset.from_tensor_slices((X, Y))), "is the data batched"),
    (dict(data=tf.data.Dataset.from_tensors((X, Y)).repeat()), "for ever"),
    (dict(data=(X, Y.astype(np.float32))), "takes integer labels"),
    (dict(data=(X, np.stack([Y, Y], 1))), "one label"),
    (dict(data=(np.nan * X, Y)), "not finite"),
    (dict(parts="layers"), '"block", "variable"'),
    (dict(parts=[[]]), "is empty"),
    (dict(parts=[[_LOST]]), "v:0"),
    (dict(what="top_eigenvalues", k=40), "39 eigenvalues, not 40"),
    (
        dict(what="top_eigenvalues", k=20, parts="block"),
        "15 eigenvalues in 'logits', not 20",
    ),
    (dict(max_samples=0), "2 samples or more, not 0"),
    (dict(what="diagonal", samples=1), "2 samples or more, not 1"),
    (dict(what="product", vector=np.ones(3)), "39 numbers"),
    (dict(what="product", vector=[np.ones(3)]), "variables' shapes"),
]


@pytest.mark.parametrize("given,words", WRONG, ids=[words for _, words in WRONG])
def test_wrong_input_gives_one_clear_sentence(given, words):
    options = {"model": small.perceptron(), "data": (X, Y), "what": "trace", **given}
    model, data, what = (options.pop(name) for name in ("model", "data", "what"))
    if "loss" in options:
        value = options.pop("loss")
        model = lambda batch: tf.constant(value)  # noqa: E731
    elif isinstance(model, types.FunctionType):
        model = model()
    names = ("variables", "training", "batch_size")
    of_hessian = {name: options.pop(name) for name in names if name in options}
    with pytest.raises((TypeError, ValueError)) as caught:
        getattr(hessian.Hessian(model, data, **of_hessian), what)(**options)
    message = str(caught.value)
    assert words in message
    assert "\n" not in message and len(message) < 300


def test_a_loss_function_has_no_blocks():
    variable = tf.Variable(1.0)
    of_loss = hessian.Hessian(lambda batch: variable, [X], variables=[variable])
    with pytest.raises(ValueError, match="has no blocks"):
        of_loss.trace(parts="block")


def _moments(variable, batch):
    mean, variance = tf.nn.moments(batch * variable, axes=[0])
    return mean**3 + variance**2


# By name in the message: an operation whose gradient has no right derivative.
NOT_TWICE = {
    "ResizeBicubicGrad": lambda v, _: tf.raw_ops.ResizeBicubic(
        images=tf.reshape(v**2, [1, 2, 2, 1]), size=[3, 3]
    ),
    "FakeQuantWithMinMax": lambda v, _: tf.quantization.fake_quant_with_min_max_args(
        v**2
    ),
    "tf.nn.moments": tf.function(_moments),
}


@pytest.mark.parametrize("name", NOT_TWICE)
def test_an_operation_without_second_derivative_is_named(name):
    variable = tf.Variable(np.ones(4, np.float32))

    def loss_fn(batch):
        given = NOT_TWICE[name](variable, batch)
        return tf.reduce_mean(batch) * tf.reduce_sum(given**2)

    data = [np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)]
    with pytest.raises(analysis.NoSecondDerivativeError, match=name):
        hessian.Hessian(loss_fn, data, variables=[variable]).trace()
