"""A Keras model's Hessian: of the loss that Keras would compute, at present weights."""

import numpy as np
import pytest
import tensorflow as tf

from tests.models import keras_zoo
from tff_reg import analysis

X, Y = np.random.default_rng(0).normal(size=(6, 4)), np.arange(6) % 3
X = X.astype(np.float32)


@pytest.fixture(params=keras_zoo.KERASES)
def keras(request):
    return keras_zoo.KERASES[request.param]


def _made(keras, *last):
    L = keras.layers
    keras.utils.set_random_seed(3)
    return keras.Sequential([keras.Input((4,)), L.Dense(3, "tanh"), *last])


def _variables(model):
    return [v if isinstance(v, tf.Variable) else v.value for v in model.weights]


def _exact(model, loss_fn, labels=Y):
    """The Hessian by tapes, one in another, on Keras's own loss of Keras's own call."""
    variables = _variables(model)
    with tf.GradientTape(persistent=True) as outer:
        with tf.GradientTape() as inner:
            loss = tf.reduce_mean(loss_fn(labels, model(X)))
        gradients = inner.gradient(loss, variables)
        flat = tf.concat([tf.reshape(g, [-1]) for g in gradients], 0)
    rows = outer.jacobian(flat, variables, experimental_use_pfor=False)
    return np.concatenate([np.reshape(r, [len(flat), -1]) for r in rows], axis=1)


def _assert_is(found, model, loss_fn, labels=Y):
    expected = _exact(model, loss_fn, labels)
    matrix = np.stack([found.product(unit) for unit in np.eye(found.size)])
    np.testing.assert_allclose(matrix, expected, rtol=1e-3, atol=1e-4)


def _of_logits(labels, outputs):
    return tf.nn.sparse_softmax_cross_entropy_with_logits(labels, outputs)


def _ends(keras):
    """By name: the last layers, and whether these give probabilities."""
    L = keras.layers
    softmax = L.Dense(3, "softmax")
    return {
        "logits": ([L.Dense(3)], False),
        "softmax": ([softmax], True),
        "TensorFlow's softmax": ([L.Dense(3, tf.nn.softmax)], True),
        "softmax, then Reshape": ([softmax, L.Reshape((3,))], True),
        "nested": ([keras.Sequential([keras.Input((3,)), softmax])], True),
    }


CASES = [(end, "neither") for end in _ends(keras_zoo.KERASES["keras 2"])]
CASES += [("logits", "compiled"), ("softmax", "compiled")]


@pytest.mark.parametrize(
    "keras, case", keras_zoo.cases(CASES, of_keras_2=CASES[-1:]), indirect=["keras"]
)
def test_it_is_of_the_loss_that_keras_computes(keras, case):
    end, how = case
    layers, is_softmax = _ends(keras)[end]
    model = _made(keras, *layers)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=not is_softmax)
    if how == "compiled":
        model.compile(loss=loss)
    _assert_is(analysis.Hessian(model, (X, Y)), model, loss)


@pytest.mark.parametrize("keras", keras_zoo.ONE_A_DAY, indirect=True)
def test_other_losses_get_the_models_outputs(keras):
    labels = (Y % 2)[:, np.newaxis].astype(np.float32)
    model = _made(keras, keras.layers.Dense(1, "sigmoid"))
    loss = keras.losses.BinaryCrossentropy()
    model.compile(loss=loss)
    _assert_is(analysis.Hessian(model, (X, labels)), model, loss, labels)
    model = _made(keras, keras.layers.Dense(3, "softmax"))

    def of_shares(labels, shares):
        hot = tf.one_hot(tf.cast(labels, tf.int32), 3)  # Keras gives it floats.
        return tf.reduce_sum(tf.square(shares - hot), -1)

    model.compile(loss=of_shares)
    _assert_is(analysis.Hessian(model, (X, Y)), model, of_shares)


@pytest.mark.parametrize("keras", keras_zoo.ONE_A_DAY, indirect=True)
def test_weights_are_read_at_each_product(keras):
    model = _made(keras, keras.layers.Dense(3))
    found = analysis.Hessian(model, (X, Y))
    _assert_is(found, model, _of_logits)
    model.compile(keras.optimizers.SGD(0.5), keras.losses.MeanSquaredError())
    model.fit(X, np.eye(3)[Y], epochs=3, verbose=0)
    _assert_is(found, model, _of_logits)


def test_training_mode_is_one_function_of_the_weights(keras):
    class Shrinking(keras.layers.Layer):
        def build(self, shape):
            self.scale = self.add_weight(name="scale", shape=(), initializer="ones")

        def call(self, x, training=False):
            if training:
                self.scale.assign(0.9 * self.scale)
            return self.scale * x

    model = _made(keras, Shrinking(), keras.layers.Dropout(0.5), keras.layers.Dense(3))
    before = model.get_weights()
    found = analysis.Hessian(model, (X, Y), training=True)
    one, other = (found.product(np.ones(found.size)) for _ in range(2))
    np.testing.assert_array_equal(one, other)
    np.testing.assert_array_equal(model.get_weights()[2], before[2])


def test_variables_are_chosen_as_the_model_has_them(keras):
    model = _made(keras, keras.layers.Dense(3))
    last = model.layers[-1]
    expected = _exact(model, _of_logits)[15:24, 15:24]
    for variable in (last.kernel, getattr(last.kernel, "value", last.kernel)):
        variable = last.kernel if callable(variable) else variable
        found = analysis.Hessian(model, (X, Y), variables=[variable])
        matrix = np.stack([found.product(unit) for unit in np.eye(9)])
        np.testing.assert_allclose(matrix, expected, rtol=1e-3, atol=1e-4)
    whole = analysis.Hessian(model, (X, Y))
    names = list(whole.trace(max_samples=2, parts="variable"))
    assert [name.split("/")[-1] for name in names] == ["kernel", "bias"] * 2
    assert len(whole.trace(max_samples=2, parts="block")) == 2


def test_a_variable_that_the_loss_does_not_reach_is_refused(keras):
    model = _made(keras, keras.layers.Dense(3))
    with pytest.raises(analysis.UnsuitableModelError, match="does not depend on"):
        analysis.Hessian(model, (X, Y), variables=[tf.Variable(1.0)]).gradient()
