"""Rounds of a `from_keras` network by hand: Keras's own calls, the papers' formulas."""

import collections
import functools

import numpy as np
import pytest
import tensorflow as tf

from tests.models import keras_zoo
from tff_reg import data, experiment, methods, models, runtime, training
from tff_reg.experiment import progress

RATE, BATCH, ROUNDS = 0.1, 4, 2
SHAPE = (6, 6, 2)


def _residual(keras):
    """Blocks that end at 'stem' and 'stage'; activations of two convolutions."""
    L = keras.layers
    inputs = keras.Input(SHAPE)
    options = dict(padding="same", activation="relu")
    x = L.Conv2D(4, 3, name="stem", **options)(inputs)
    x = L.Add(name="stage")([x, L.Conv2D(4, 3, name="inner", **options)(x)])
    x = L.GlobalAveragePooling2D(name="pooled")(x)
    return keras.Model(inputs, L.Dense(keras_zoo.CLASSES, name="head")(x))


def _clients():
    """Two clients of two batches each."""
    generator = np.random.default_rng(0)
    x = generator.normal(size=(4 * BATCH, *SHAPE)).astype(np.float32)
    y = generator.integers(0, keras_zoo.CLASSES, 4 * BATCH).astype(np.int32)
    return data.ArrayClientData(x, y, np.split(np.arange(4 * BATCH), 2))


def _process(model_fn, chosen):
    return training.build_regularized(
        model_fn,
        list(chosen),
        training.build_sgd(RATE),
        client_data=training.WholeClientData(batch_size=BATCH, shuffle=False),
    )


def _train(process, clients, **options):
    settings = dict(total_rounds=ROUNDS, clients_per_round=2, **options)
    return experiment.train(process, clients, progress=progress.Silence(), **settings)


def _cross_entropy(y, logits):
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(y, logits)
    return tf.reduce_mean(losses)


def _looks(keras, model):
    """What a functional model gives inside: a model from its input to that."""
    names = ("stem", "inner", "stage", "pooled", "head")
    outputs = {name: model.get_layer(name).output for name in names}
    return keras.Model(model.inputs[0], outputs)


def _rest(keras, model, name):
    """From the layer's output to the logits."""
    return keras.Model(model.get_layer(name).output, model.output)


def _moon(keras, model, received, previous):
    looks = [_looks(keras, each) for each in (model, received, previous)]

    def term(x, y, logits):
        local, towards, away = [
            tf.math.l2_normalize(look(x)["pooled"], axis=-1) for look in looks
        ]
        other = tf.reduce_sum(local * towards, -1), tf.reduce_sum(local * away, -1)
        shares = tf.nn.softmax(tf.stack(other, -1) / 0.5)
        return 2.0 * tf.reduce_mean(-tf.math.log(shares[:, 0]))

    return term


def _fedmlb(keras, model, received, previous):
    look = _looks(keras, model)
    rests = {name: _rest(keras, received, name) for name in ("stem", "stage")}

    def term(x, y, logits):
        features, total = look(x), 0.0
        log_shares = tf.nn.log_softmax(features["head"])
        for name, rest in rests.items():
            path = tf.nn.log_softmax(rest(features[name]))
            divergence = tf.reduce_sum(tf.exp(path) * (path - log_shares), -1)
            total += _cross_entropy(y, path) + tf.reduce_mean(divergence)
        return total / 2

    return term


def _fitnet(keras, model, received, previous):
    looks = [_looks(keras, each) for each in (model, received)]

    def term(x, y, logits):
        ours, theirs = (look(x) for look in looks)
        squares = [tf.square(ours[n] - theirs[n]) for n in ("stem", "stage")]
        return 3.0 * tf.add_n([tf.reduce_mean(s) for s in squares]) / 2

    return term


def _man(keras, model, received, previous):
    look = _looks(keras, model)

    def term(x, y, logits):
        given = look(x)
        squares = [tf.reduce_mean(tf.square(given[n])) for n in ("stem", "inner")]
        return 0.4 / 2 * tf.add_n(squares)

    return term


def _by_hand(keras, build_term, clients):
    """Two rounds of two clients by Keras; returns the average of the last weights."""
    model, received, previous = (_residual(keras) for _ in range(3))
    start = _start(keras)
    term = build_term(keras, model, received, previous)
    before = dict.fromkeys(clients.client_ids, start)
    for _ in range(ROUNDS):
        ends = []
        for name in clients.client_ids:
            model.set_weights(start)
            received.set_weights(start)
            previous.set_weights(before[name])
            examples = clients.client_examples(name)
            for rows in (slice(0, BATCH), slice(BATCH, 2 * BATCH)):
                x, y = tf.constant(examples["x"][rows]), examples["y"][rows]
                with tf.GradientTape() as tape:
                    logits = model(x, training=True)
                    loss = _cross_entropy(y, logits) + term(x, y, logits)
                found = [getattr(v, "value", v) for v in model.trainable_weights]
                watched = [
                    v if not callable(v) else w
                    for v, w in zip(found, model.trainable_weights)
                ]
                for variable, gradient in zip(
                    model.trainable_weights, tape.gradient(loss, watched)
                ):
                    variable.assign(variable - RATE * gradient)
            before[name] = model.get_weights()
            ends.append(before[name])
        start = [np.mean(each, axis=0) for each in zip(*ends)]
    return start


@functools.cache
def _fedavg_by_hand(keras):
    return _by_hand(keras, lambda *_: lambda x, y, logits: 0.0, _clients())


def _start(keras):
    keras.utils.set_random_seed(3)
    return _residual(keras).get_weights()


BY_HAND = {
    "MOON": (methods.MOON(2.0, temperature=0.5), _moon),
    "FedMLB": (methods.FedMLB(1.0), _fedmlb),
    "FitNet": (methods.FitNet(3.0), _fitnet),
    "MAN": (methods.MAN(0.4), _man),
}


@pytest.mark.parametrize(
    "keras, name",
    keras_zoo.cases(BY_HAND, of_keras_2=["FitNet"]),
    indirect=["keras"],
)
def test_two_rounds_of_a_method_that_looks_inside_are_its_formula(keras, name):
    method, build_term = BY_HAND[name]
    clients = _clients()
    model = _residual(keras)
    model.set_weights(_start(keras))
    model_fn = models.from_keras(model, blocks=["stem", "stage"])
    with runtime.running("in_process"):
        found = _train(_process(model_fn, [method]), clients).weights.trainable
    expected = _by_hand(keras, build_term, clients)
    plain = _fedavg_by_hand(keras)
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-6)
    assert any(np.max(np.abs(a - b)) > 1e-4 for a, b in zip(found, plain))


@pytest.mark.parametrize(
    "is_masked, is_softmax",
    [
        (True, True),
        pytest.param(False, False, marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("keras", keras_zoo.ONE_A_DAY, indirect=True)
def test_a_language_model_trains_as_keras_fits_it(keras, is_masked, is_softmax):
    """Three batches: the mean over the tokens, of which a mask leaves some out."""
    L = keras.layers
    keras.utils.set_random_seed(0)
    inputs = keras.Input((5,), dtype="int32")
    x = L.Embedding(7, 4, mask_zero=is_masked)(inputs)
    x = L.GRU(4, return_sequences=True)(x)
    outputs = L.Dense(7, "softmax" if is_softmax else None)(x)
    model = keras.Model(inputs, outputs)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=not is_softmax)
    model.compile(optimizer=keras.optimizers.SGD(RATE), loss=loss)
    model_fn = models.from_keras(model)
    spec = model_fn().input_spec
    assert spec["y"] == tf.TensorSpec([None, 5], tf.int32)
    x = keras_zoo.batch(spec["x"], 3 * BATCH, 0, 7)
    y = np.random.default_rng(1).integers(0, 7, x.shape).astype(np.int32)
    client = collections.OrderedDict(x=x, y=y, key=np.array([1, 2]))
    process = _process(model_fn, [])
    with runtime.running("in_process"):
        dataset = tf.data.Dataset.from_tensors(client)
        state = process.next(process.initialize(), [dataset]).state
    for rows in (slice(n, n + BATCH) for n in range(0, len(x), BATCH)):
        model.train_on_batch(x[rows], y[rows])
    found = process.get_model_weights(state).trainable
    for ours, theirs in zip(found, model.trainable_weights, strict=True):
        np.testing.assert_allclose(ours, np.asarray(theirs), rtol=0, atol=1e-6)


def test_fedasam_measures_weights_by_their_axes_whatever_their_names(keras):
    """A step at w + rho t^2 g / |t g|, t = |w| + eta of a table and 1 of a shift."""

    class Own(keras.layers.Layer):
        def build(self, shape):
            options = dict(initializer="ones")
            self.table = self.add_weight(shape=(shape[-1], 3), name="t1", **options)
            self.shift = self.add_weight(shape=(3,), name="kernelish", **options)

        def call(self, x):
            return tf.matmul(x, self.table) + self.shift

    flatten = keras.layers.Flatten()
    model = keras.Sequential([keras.Input(SHAPE), flatten, Own(name="own")])
    clients = _clients()
    examples = clients.client_examples(clients.client_ids[0])
    x, y = tf.reshape(examples["x"][:BATCH], [BATCH, -1]), examples["y"][:BATCH]

    def gradients(table, shift):
        table, shift = tf.constant(table), tf.constant(shift)
        with tf.GradientTape() as tape:
            tape.watch([table, shift])
            loss = _cross_entropy(y, tf.matmul(x, table) + shift)
        return [np.asarray(g) for g in tape.gradient(loss, [table, shift])]

    before = [np.ones((x.shape[1], 3), np.float32), np.ones(3, np.float32)]
    first = gradients(*before)
    sizes = [np.abs(before[0]) + 0.2, np.ones(3)]
    norm = np.sqrt(sum(np.sum(np.square(t * g)) for t, g in zip(sizes, first)))
    moved = [
        (w + 0.5 * t**2 * g / norm).astype(np.float32)
        for w, t, g in zip(before, sizes, first)
    ]
    expected = [w - RATE * g for w, g in zip(before, gradients(*moved))]
    one = data.ArrayClientData(examples["x"][:BATCH], y, [np.arange(BATCH)])
    process = _process(models.from_keras(model), [methods.FedASAM(0.5, offset=0.2)])
    with runtime.running("in_process"):
        state = process.initialize()
        dataset = one.whole_client_dataset(one.client_ids[0], np.array([0, 1]))
        state = process.next(state, [dataset]).state
    found = process.get_model_weights(state).trainable
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-6)


def _random(keras):
    L = keras.layers
    layers = [L.Conv2D(4, 3), L.BatchNormalization(), L.ReLU(), L.Dropout(0.4)]
    return keras.Sequential([keras.Input(SHAPE), *layers, L.Flatten(), L.Dense(3)])


def _bytes(weights):
    values = (*weights.trainable, *weights.non_trainable)
    return [np.asarray(v).tobytes() for v in values]


@pytest.mark.parametrize("keras", keras_zoo.ONE_A_DAY, indirect=True)
def test_a_run_that_was_stopped_and_built_anew_ends_with_the_same_bytes(
    keras, tmp_path
):
    """As in another Python process, where the model has to begin with the same."""

    def build():
        keras.utils.set_random_seed(0)
        return _process(models.from_keras(_random(keras)), [])

    def stop(row):
        raise KeyboardInterrupt

    first, clients, stopped = build(), _clients(), tmp_path / "stopped"
    with runtime.running("in_process"):
        whole = _train(first, clients, output_dir=tmp_path / "whole")
        with pytest.raises(KeyboardInterrupt):
            _train(first, clients, output_dir=stopped, on_round=stop)
        resumed = _train(build(), clients, output_dir=stopped)
    assert _bytes(resumed.weights) == _bytes(whole.weights)
    assert resumed.rows[-1]["training/loss"] == whole.rows[-1]["training/loss"]


@pytest.mark.parametrize("keras", keras_zoo.ONE_A_DAY, indirect=True)
def test_two_clients_at_a_time_draw_what_one_at_a_time_draws(keras, contexts):
    keras.utils.set_random_seed(0)
    process = _process(models.from_keras(_random(keras)), [])
    found = []
    for kind in ("in_process", "two_at_a_time", "two_at_a_time"):
        with contexts(kind):
            found.append(_bytes(_train(process, _clients()).weights))
    assert found[0] == found[1] == found[2]


def test_a_central_evaluation_takes_several_inputs_and_any_loss(keras):
    L = keras.layers
    inputs = {name: keras.Input((2,), name=name) for name in ("b", "a")}
    both = L.Concatenate()([inputs["a"], inputs["b"]])
    size = L.Dense(1, kernel_regularizer="l2")(both)  # Which Keras's evaluate adds.
    model = keras.Model(inputs, size)
    model.compile(loss="mse")
    model_fn = models.from_keras(model)
    spec = model_fn().input_spec
    x, y = keras_zoo.batch(spec["x"], 7, 0), keras_zoo.batch(spec["y"], 7, 1)
    evaluate = experiment.CentralEvaluation(model_fn, x, y, batch_size=3)
    found = evaluate(models.initial_weights(model_fn))
    expected = np.mean(np.square(np.asarray(model(x)) - y))
    assert list(found) == ["loss"]
    np.testing.assert_allclose(found["loss"], expected, rtol=1e-5)
    assert np.ravel(model.evaluate(x, y, verbose=0))[0] > found["loss"] + 1e-4
