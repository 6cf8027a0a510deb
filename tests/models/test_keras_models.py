"""`from_keras` trains as a plain loop of Keras does, and all methods train it."""

import collections

import numpy as np
import pytest
import tensorflow as tf

from tests.models import keras_zoo
from tff_reg import methods, models, runtime, training
from tff_reg.data import keys
from tff_reg.models import block_model, keras_calls
from tff_reg.seam import keras_internals

RATE, MOMENTUM, BATCH, STEPS = 0.1, 0.9, 4, 3
KEY = np.array([5, 7], np.int64)


def _made(keras, entry, seed=1):
    keras.utils.set_random_seed(seed)
    model = entry.build(keras)
    return model, models.from_keras(model, input_spec=entry.input_spec)


def _client(spec, integers, examples=BATCH * STEPS):
    x = keras_zoo.batch(spec, examples, 2, integers)
    y = np.random.default_rng(3).integers(0, keras_zoo.CLASSES, examples)
    return collections.OrderedDict(x=x, y=y.astype(np.int32), key=KEY)


def _trained(model_fn, client, chosen=(), rounds=1, **options):
    """Weights and metrics after rounds of one client."""
    process = training.build_regularized(
        model_fn,
        list(chosen),
        training.build_sgd(RATE, momentum=MOMENTUM),
        client_data=training.WholeClientData(
            batch_size=BATCH, local_epochs=1, shuffle=False
        ),
        **options,
    )
    with runtime.running("in_process"):
        state = process.initialize()
        for _ in range(rounds):
            dataset = tf.data.Dataset.from_tensors(client)
            output = process.next(state, [dataset])
            state = output.state
    return process.get_model_weights(state), output.metrics["client_work"]["train"]


def _train_by_keras(model, client, steps=STEPS):
    """Keras's own loop: the loss with the model's losses, SGD with momentum."""
    loss_fn = tf.nn.sparse_softmax_cross_entropy_with_logits
    variables = model.trainable_weights
    velocities = [np.zeros(v.shape, np.float32) for v in variables]
    for step in range(steps):
        rows = slice(step * BATCH, (step + 1) * BATCH)
        x = tf.nest.map_structure(
            lambda a, rows=rows: tf.constant(a[rows]), client["x"]
        )
        key = keys.part_key(keys.step_key(KEY, step), "the network's layers")
        for number, seed in enumerate(keras_calls.seeds_of(model)):
            own = tf.random.experimental.stateless_fold_in(key, number)
            seed.assign(tf.cast(own, seed.dtype))
        with tf.GradientTape() as tape:
            output = model(x, training=True)
            if np.allclose(np.sum(output, -1), 1) and np.min(output) >= 0:
                output = tf.math.log(output)
            loss = tf.reduce_mean(loss_fn(client["y"][rows], output))
            loss += sum(model.losses)
        values = [getattr(v, "value", v) for v in variables]
        values = [v() if callable(v) else v for v in values]
        watched = [
            v if isinstance(v, tf.Variable) else w for v, w in zip(values, variables)
        ]
        gradients = tape.gradient(loss, watched)
        for n, (variable, gradient) in enumerate(zip(variables, gradients)):
            velocities[n] = MOMENTUM * velocities[n] + np.asarray(
                tf.convert_to_tensor(gradient)
            )
            variable.assign(np.asarray(variable) - RATE * velocities[n])


def _assert_as_keras(model, model_fn, client, tolerance=1e-6, steps=STEPS):
    start = [np.asarray(v) for v in model.weights]
    weights, _ = _trained(model_fn, client)
    assert all(np.array_equal(a, b) for a, b in zip(start, model.weights))
    _train_by_keras(model, client, steps)
    plan = model_fn.plan
    # What is frozen is not among the weights of the process.
    constants = [plan.variables[n] for n in plan.constants]
    held = [v for n, v in enumerate(plan.variables) if n not in plan.constants]
    pairs = [*zip(held, [*weights.trainable, *weights.non_trainable], strict=True)]
    pairs += zip(constants, [plan.values[n] for n in plan.constants])
    assert len(weights.trainable) == len(model.trainable_weights)
    assert len(pairs) == len(model.weights)
    for expected, found in pairs:
        scale = max(1.0, float(np.max(np.abs(expected), initial=0)))
        np.testing.assert_allclose(
            found, np.asarray(expected), rtol=0, atol=tolerance * scale
        )
    changed = [not np.array_equal(a, b) for a, b in zip(start, model.weights)]
    assert any(changed)


# Traced for seconds, or like another one, or in test_keras_losses.py.
_SLOW = ("GRU, both directions", "text transformer", "residual by +")
_SLOW += ("groups and depths", "softmax as a layer", "softmax, then Reshape")
_SLOW += ("spectral last layer", "spectral normalization")
_SLOW += ("shared layer", "frozen base", "regularised", "Normalization")
_KERAS_2 = ("nested BatchNorm", "custom layers", "containers")


@pytest.mark.parametrize(
    "keras, name",
    keras_zoo.cases(keras_zoo.NETWORKS, of_keras_2=_KERAS_2, slow=_SLOW),
    indirect=["keras"],
)
def test_three_steps_are_keras_own(keras, name):
    entry = keras_zoo.NETWORKS[name]
    is_2 = keras is keras_zoo.KERASES["keras 2"]
    if is_2 and name == "dropout and noise":
        pytest.skip("Keras 2 takes no key; its layers' draws have a test of their own")
    if is_2 and name.startswith("spectral"):
        # tf_keras makes this layer with `tf.keras`, which must then be Keras 2; that of
        # 2.14 needs AutoGraph, and from_keras refuses it.
        pytest.skip("Keras 2's own layer fails where tf.keras is Keras 3, and in 2.14")
    if is_2 and name == "LoRA":
        pytest.skip("Keras 2 has no enable_lora")
    model, model_fn = _made(keras, entry)
    client = _client(model_fn().input_spec["x"], entry.integers)
    _assert_as_keras(model, model_fn, client)
    if name in LAST:
        has_head = model_fn.plan.head is not None
        assert (has_head, model_fn().network.block_names) == LAST[name]


@pytest.mark.filterwarnings("ignore:The model .* returns no probabilities")
def test_the_accuracy_in_training_is_of_what_the_model_returns(keras):
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)])
    model.compile(loss="sparse_categorical_crossentropy")
    model.layers[-1].bias.assign([2.0, 3.0, 4.0])
    client = _client(tf.TensorSpec([None, 4]), 2, BATCH)
    client["y"] = np.argmax(model(client["x"]), axis=-1).astype(np.int32)
    _, metrics = _trained(models.from_keras(model), client)
    assert metrics["accuracy"] == 1.0


# Whether the last `Dense` layer is seen, and the blocks.
LAST = {
    "pooled last": (False, ["block1", "classifier"]),
    "nested last layer": (True, ["body", "classifier"]),
    "spectral last layer": (False, ["block1", "classifier"]),
}
# The others multiply a last bit's difference by 10^10 in three steps: batches of four.
STEADY = ("MobileNet", "MobileNetV3Small", "ResNet50V2", "VGG16", "Xception")


@pytest.mark.slow
@pytest.mark.parametrize("name", keras_zoo.APPLICATIONS)
def test_steps_of_keras_applications_are_keras_own(keras, name):
    """In float64, so that what is left is no rounding."""
    before = keras.backend.floatx()
    keras.backend.set_floatx("float64")
    try:
        keras.utils.set_random_seed(1)
        model = keras_zoo.application(keras, name)
        if keras is keras_zoo.KERASES["keras 2"]:
            for layer in keras_internals.layers_of(model):
                if hasattr(layer, "rate"):
                    layer.rate = 0.0  # Of Dropout; see above.
        model_fn = models.from_keras(model)
        steps = STEPS if name in STEADY else 1
        client = _client(model_fn().input_spec["x"], 0, examples=BATCH * steps)
        _assert_as_keras(model, model_fn, client, steps=steps)
    finally:
        keras.backend.set_floatx(before)


def _bytes(weights):
    values = (*weights.trainable, *weights.non_trainable)
    return [np.asarray(v).tobytes() for v in values]


@pytest.mark.parametrize("keras", keras_zoo.ONE_A_DAY, indirect=True)
def test_two_passes_of_a_step_draw_once_and_move_the_statistics_once(keras):
    """FedSAM takes the gradient twice; at radius 0 it is FedAvg, to the bit."""
    L = keras.layers

    def build(_):
        layers = [L.Conv2D(4, 3), L.BatchNormalization(momentum=0.5), L.ReLU()]
        rest = [L.Dropout(0.5), L.Flatten(), L.Dense(keras_zoo.CLASSES)]
        return keras.Sequential([keras.Input((8, 8, 3)), *layers, *rest])

    _, model_fn = _made(keras, keras_zoo.Entry(build))
    client = _client(keras_zoo.IMAGE, 0, examples=BATCH)
    plain, _ = _trained(model_fn, client)
    same, sharp = (
        _trained(model_fn, client, [methods.FedSAM(radius)])[0] for radius in (0.0, 0.1)
    )
    assert _bytes(plain) == _bytes(same)
    assert _bytes(plain)[0] != _bytes(sharp)[0]
    for one, other in zip(plain.non_trainable, sharp.non_trainable):
        np.testing.assert_array_equal(one, other)


def test_what_layers_draw_differs_from_step_to_step_and_is_the_clients(keras):
    L = keras.layers

    def build(_):
        layers = [keras.Input((8, 8, 3)), L.RandomFlip(), L.Reshape((8, 24))]
        layers += [L.LSTM(4, dropout=0.5), L.Dropout(0.5)]
        return keras.Sequential([*layers, L.Dense(keras_zoo.CLASSES)])

    _, model_fn = _made(keras, keras_zoo.Entry(build))
    network = model_fn().network
    assert network.is_random
    x = np.ones((2, 8, 8, 3), np.float32)

    def logits(*key):
        key = tf.constant(key, tf.int64)
        return network(x, models.ForwardPass(training=True, key=key)).logits.numpy()

    np.testing.assert_array_equal(logits(1, 2), logits(1, 2))
    assert not np.allclose(logits(1, 2), logits(1, 3))
    np.testing.assert_array_equal(
        network(x, models.ForwardPass()).logits, network(x, models.ForwardPass()).logits
    )


@pytest.mark.parametrize("keras", keras_zoo.ONE_A_DAY, indirect=True)
def test_a_teacher_is_the_received_model_frozen_layers_and_draws_among_it(keras):
    """In a client's first step it says what the student says: KD's term is 0."""
    L = keras.layers

    def build(_):
        base = keras.Sequential([keras.Input((8, 8, 3)), L.Conv2D(4, 3)])
        base.add(L.BatchNormalization())
        base.trainable = False
        layers = [keras.Input((8, 8, 3)), base, L.Flatten(), L.Dropout(0.3)]
        return keras.Sequential([*layers, L.Dense(5, "relu"), L.Dense(3)])

    _, model_fn = _made(keras, keras_zoo.Entry(build))
    _, metrics = _trained(
        model_fn, _client(keras_zoo.IMAGE, 0, BATCH), [methods.KD(0.5)]
    )
    assert abs(metrics["kd/term"]) < 1e-6


def _block(keras, activation, inside=None):
    """A layer that applies its activation, or a layer's, before its last product."""
    L = keras.layers

    class Block(L.Layer):
        def __init__(self):
            super().__init__()
            self.activation = activation
            self.first, self.last = L.Dense(6, inside), L.Dense(5)

        def call(self, x):
            x = self.first(x)
            return self.last(x if inside else self.activation(x))

    return Block()


def _functional(keras, function, *options):
    x = keras.Input((3, 4))
    return keras.Model(x, function(keras.layers.Dense(8)(x), *options))


# Layers before the last one, each of an input [batch, 3, 4].
ACTIVATIONS = {
    "layer in Dense": lambda k, L: [L.Dense(8, activation=L.LeakyReLU())],
    "layer in Activation": lambda k, L: [L.Activation(L.LeakyReLU())],
    "Activation in Dense": lambda k, L: [L.Dense(8, activation=L.Activation("relu"))],
    "own layer, a layer": lambda k, L: [_block(k, L.ReLU())],
    "own layer, a function": lambda k, L: [_block(k, tf.nn.relu)],
    "own layer, for a layer inside": lambda k, L: [_block(k, "relu", "relu")],
    "shared": lambda k, L: [layer := L.Dense(4, "relu"), layer],
    "nested": lambda k, L: [
        k.Sequential([L.Dense(8), k.Sequential([L.BatchNormalization(), L.ReLU()])])
    ],
    "steps": lambda k, L: [
        L.TimeDistributed(k.Sequential([L.Dense(8, "relu"), L.Dense(5, "tanh")]))
    ],
    "recurrent": lambda k, L: [L.GRU(8, return_sequences=True), L.LSTM(5, unroll=True)],
    "softmax last": lambda k, L: [L.Dense(5, "relu")],
    "softmax as a layer": lambda k, L: [L.Dense(8), L.Softmax()],
    "function": lambda k, L: [_functional(k, k.activations.relu)],
    "a leaky relu": lambda k, L: [_functional(k, k.activations.relu, 0.1)],
    "a relu to 6": lambda k, L: [_functional(k, k.activations.relu, 0.0, 6.0)],
    "attention": lambda k, L: [
        k.Model(x := k.Input((3, 4)), L.MultiHeadAttention(1, 2)(x, x)),
        L.Dense(8, "relu"),
    ],
}
SIZES = {
    "layer in Activation": [2 * 3 * 4],
    "shared": 2 * [2 * 3 * 4],
    "steps": [2 * 3 * 8, 2 * 3 * 5],
    "recurrent": [2 * 3 * 8, 2 * 5],
    "softmax last": [2 * 3 * 5],
    **dict.fromkeys([n for n in ACTIVATIONS if n.startswith("own")], [2 * 3 * 6]),
}
_BY_2 = ("layer in Dense", "own layer, a function", "nested", "attention")


@pytest.mark.parametrize(
    "keras, name", keras_zoo.cases(ACTIVATIONS, of_keras_2=_BY_2), indirect=["keras"]
)
def test_each_activation_counts_once(keras, name):
    L = keras.layers
    layers = [*ACTIVATIONS[name](keras, L), L.Flatten(), L.Dense(3)]
    if name == "softmax last":
        layers.append(L.Activation("softmax"))
    model = keras.Sequential([keras.Input((3, 4)), *layers])
    network = models.from_keras(model)().network
    settings = models.ForwardPass(record_activations=True)
    found = network(np.ones((2, 3, 4), np.float32), settings).activations
    assert [int(tf.size(a)) for a in found] == SIZES.get(name, [2 * 3 * 8])


def test_activations_in_a_loop_of_tensorflow_are_refused(keras):
    L = keras.layers
    if keras is keras_zoo.KERASES["keras 2"]:
        pytest.skip("Keras 2 runs all steps as one batch.")
    steps = L.TimeDistributed(L.Dense(8, "relu"))
    layers = [keras.Input((None, 4)), steps, L.GRU(5), L.Dense(3)]
    model_fn = models.from_keras(keras.Sequential(layers))
    with tf.Graph().as_default():
        network = model_fn().network
        x = tf.compat.v1.placeholder(tf.float32, [None, None, 4])
        passed = network(x, models.ForwardPass(record_activations=True))
    with pytest.raises(
        block_model.MissingCapabilityError, match="a known number of steps"
    ):
        list(passed.activations)


@pytest.mark.parametrize("name", ["residual", "residual by +", "shared layer"])
def test_blocks_are_found_where_one_tensor_carries_everything(keras, name):
    _, model_fn = _made(keras, keras_zoo.NETWORKS[name])
    network = model_fn().network
    x = keras_zoo.batch(keras_zoo.IMAGE, 2, 0)
    whole = network(x, models.ForwardPass())
    count = {"residual": 4, "residual by +": 4, "shared layer": 2}[name]
    if keras is not keras_zoo.KERASES["keras 2"] and name == "residual by +":
        count = 3  # What Keras 3 adds by `+` is no layer that a block could end at.
    assert len(network.blocks) == len(whole.block_outputs) == count
    feature = x
    for index in range(count):
        rest = network.run_from(index, feature, models.ForwardPass())
        np.testing.assert_allclose(rest.logits, whole.logits, rtol=1e-4, atol=1e-5)
        feature = network.run_block(index, feature, models.ForwardPass())
        np.testing.assert_allclose(
            feature, whole.block_outputs[index], rtol=1e-4, atol=1e-5
        )
    inside = [v for block in network.blocks for v in block.trainable_variables]
    assert {id(v) for v in inside} == {id(v) for v in network.trainable_variables}


def test_blocks_can_be_named(keras):
    L = keras.layers
    layers = [L.Conv2D(4, 3, name="stem"), L.ReLU(name="stage1")]
    layers += [L.Conv2D(4, 3, name="stage2"), L.Flatten(), L.Dense(3, name="head")]
    model = keras.Sequential([keras.Input((8, 8, 3)), *layers])
    names = ["stage1", "stage2", "head"]
    network = models.from_keras(model, blocks=names)().network
    assert network.block_names == ["stage1", "stage2", "classifier"]
    with pytest.raises(ValueError, match=r"can end at \['stage3'\].* stem, stage1"):
        models.from_keras(model, blocks=["stage1", "stage3"])
    entry = keras_zoo.NETWORKS["sub-classed"]
    options = dict(input_spec=entry.input_spec, blocks=["conv2d"])
    with pytest.raises(ValueError, match="shows no graph, so that it has no blocks"):
        models.from_keras(entry.build(keras), **options)


@pytest.mark.parametrize("keras", keras_zoo.ONE_A_DAY, indirect=True)
def test_the_keras_model_comes_back_with_the_weights(keras):
    model, model_fn = _made(keras, keras_zoo.NETWORKS["sequential"])
    client = _client(keras_zoo.IMAGE, 0)
    for chosen in ([], [methods.Freeze()]):
        weights, _ = _trained(model_fn, client, chosen)
        assert model_fn.keras_model(weights) is model
        if not chosen:
            for one, other in zip(model.trainable_weights, weights.trainable):
                np.testing.assert_array_equal(one, other)
        probabilities = np.asarray(model(client["x"]))
        np.testing.assert_allclose(probabilities.sum(-1), 1, rtol=1e-5)
        network = model_fn().network
        if chosen:
            network.freeze_classifier()
        pairs = [
            *zip(network.trainable_variables, weights.trainable),
            *zip(network.non_trainable_variables, weights.non_trainable),
        ]
        for variable, value in pairs:
            variable.assign(value)
        logits = network(client["x"], models.ForwardPass()).logits
        np.testing.assert_allclose(tf.nn.softmax(logits), probabilities, atol=1e-5)
    with pytest.raises(ValueError, match="are not of the model 'sequential"):
        model_fn.keras_model(tf.nest.map_structure(lambda v: v[:1], weights))


def test_what_is_made_trainable_after_from_keras_is_refused(keras):
    L = keras.layers
    norm = L.BatchNormalization()
    layers = [L.Flatten(), L.Dense(4), norm, L.Dense(keras_zoo.CLASSES)]
    model = keras.Sequential([keras.Input((8, 8, 3)), *layers])
    model_fn = models.from_keras(model)
    norm.trainable = False
    model_fn().predict_on_batch(keras_zoo.batch(keras_zoo.IMAGE, 2, 0), False)
    with pytest.raises(ValueError, match="was changed after from_keras"):
        _trained(model_fn, _client(keras_zoo.IMAGE, 0))


def test_several_outputs_have_the_loss_that_the_model_was_compiled_with(keras):
    L = keras.layers
    inputs = keras.Input((8, 8, 3))
    x = L.Dense(5, activation="tanh")(L.Flatten()(inputs))
    outputs = {"size": L.Dense(1, name="size")(x), "kind": L.Dense(2, name="kind")(x)}
    model = keras.Model(inputs, outputs)
    model.compile(
        loss={"size": "mse", "kind": "mae"}, loss_weights={"size": 2.0, "kind": 0.5}
    )
    model_fn = models.from_keras(model)
    spec = model_fn().input_spec
    assert {n: s.shape.as_list() for n, s in spec["y"].items()} == {
        "size": [None, 1],
        "kind": [None, 2],
    }
    x = keras_zoo.batch(keras_zoo.IMAGE, BATCH, 0)
    y = keras_zoo.batch(spec["y"], BATCH, 1)
    # Far away, so that the absolute errors' signs never cancel.
    y["kind"] = y["kind"] + 100.0
    client = collections.OrderedDict(x=x, y=y, key=KEY)
    start = [np.asarray(v) for v in model.trainable_weights]
    given = model(x)
    size = np.mean(np.square(given["size"] - y["size"]))
    kind = np.mean(np.abs(given["kind"] - y["kind"]))
    weights, metrics = _trained(model_fn, client, [methods.FedProx(0.1)])
    np.testing.assert_allclose(metrics["loss"], 2 * size + kind / 2, rtol=1e-5)
    assert "accuracy" not in metrics
    assert all(not np.array_equal(a, b) for a, b in zip(start, weights.trainable))
    with pytest.raises(ValueError, match="moon needs a classifier"):
        _trained(model_fn, client, [methods.MOON(1.0)])


def test_a_model_with_its_own_forward_pass_is_trained_by_it():
    class Doubled(models.LearningModel):
        def forward_pass(self, batch_input, training=True):
            given = super().forward_pass(batch_input, training)
            return given._replace(loss=2 * given.loss)

    plain = models.build_model_fn("cnn", image_shape=(8, 8, 3), num_classes=3)
    client = _client(keras_zoo.IMAGE, 0, examples=BATCH)

    def moved(model_fn):
        weights, _ = _trained(model_fn, client)
        start = models.initial_weights(model_fn).trainable
        return [np.asarray(w) - s for w, s in zip(weights.trainable, start)]

    once, twice = moved(plain), moved(lambda: Doubled(plain().network))
    for one, other in zip(once, twice):
        np.testing.assert_allclose(2 * one, other, rtol=1e-3, atol=1e-5)
    with pytest.raises(TypeError, match="with its own forward_pass"):
        _trained(lambda: Doubled(plain().network), client, [methods.MOON(1.0)])


def test_weights_that_the_loss_does_not_reach_are_named(keras):
    L = keras.layers
    inputs = keras.Input((8, 8, 3))
    x = L.Flatten()(inputs)
    outputs = [L.Dense(3, name=name)(x) for name in ("read", "idle")]
    model_fn = models.from_keras(
        keras.Model(inputs, outputs),
        loss_fn=lambda y, z: tf.reduce_mean(tf.square(z[0])),
        label_spec=tf.TensorSpec([None], tf.int32),
    )
    with pytest.raises(ValueError, match="does not depend on the weights .*idle"):
        _trained(model_fn, _client(keras_zoo.IMAGE, 0))


class _Away(methods.Method):
    """Gradients at weights moved by 0.1, in one pass, as FedLESAM's."""

    name = "away"

    def gradient(self, local, gradient_at):
        return gradient_at([tf.fill(w.shape, 0.1) for w in local.weights])


@pytest.mark.parametrize("keras", keras_zoo.ONE_A_DAY, indirect=True)
def test_what_a_layer_sets_during_a_moved_pass_stays_set(keras):
    entry = keras_zoo.NETWORKS["spectral normalization"]
    model, model_fn = _made(keras, entry)
    client = _client(model_fn().input_spec["x"], 0, BATCH)
    weights, _ = _trained(model_fn, client, [_Away()])
    for sign in (1, -1):
        for variable in model.trainable_weights:
            variable.assign(np.asarray(variable) + sign * np.float32(0.1))
        if sign == 1:
            _train_by_keras(model, client, steps=1)
    for expected, found in zip(model.trainable_weights, weights.trainable):
        np.testing.assert_allclose(found, np.asarray(expected), rtol=0, atol=1e-5)


def test_orthogonal_classifiers_differ_from_seed_to_seed(keras):
    found = []
    for seed in (1, 2):
        _, model_fn = _made(keras, keras_zoo.NETWORKS["sequential"], seed)
        model = training.adapt_model_fn(model_fn, [methods.FedETF()])()
        found.append(model.network.constants[-1].numpy())
    assert not np.allclose(*found)


def _sub_classed(keras, value):
    class Own(keras.Model):
        def __init__(self, given):
            super().__init__()
            self.dense = keras.layers.Dense(3)
            self.dropout = keras.layers.Dropout(given[0])

        def call(self, x, training=False):
            return self.dense(self.dropout(x, training=training))

    return Own(collections.deque([value]))  # No value of a config of Keras 3.


def _with_layer(keras, value):
    class Own(keras.layers.Layer):
        def __init__(self, function, power):
            super().__init__()
            self.function, self.power = function, power

        def call(self, x):
            return self.function(x) ** self.power

    function = tf.nn.relu if value == 0.1 else tf.nn.tanh
    return keras.Sequential([Own(function, 2), keras.layers.Dense(3)])


def _with_activation(keras, value):
    function = "relu" if value == 0.1 else "tanh"
    layers = [_with_layer(keras, 0.1), keras.layers.Dense(3, function)]
    return keras.Sequential([*layers, keras.layers.Dense(3)])


def _with_regularizer(keras, value):
    class Own(keras.regularizers.Regularizer):
        def __init__(self, strength):
            self.strength = strength

        def __call__(self, weights):
            return self.strength * tf.reduce_sum(weights**2)

    return keras.Sequential([keras.layers.Dense(3, kernel_regularizer=Own(value))])


def _with_loss(make):
    """Returns what builds a model whose loss holds an array or so of a value."""

    def build(keras, value):
        class Own(keras.losses.Loss):
            def __init__(self):
                super().__init__()
                self.held = make(value)

            def call(self, y_true, y_pred):
                return tf.reduce_mean(y_pred, -1) * tf.reduce_sum(self.held)

        model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(3)])
        model.compile(loss=Own())
        return model

    return build


def _with_array(keras, value):
    class Own(keras.layers.Layer):
        def __init__(self):
            super().__init__()
            self.held = [np.array([1.0, value], np.float32)]

        def call(self, inputs):
            return inputs * tf.reduce_sum(self.held[0])

    return keras.Sequential([keras.Input((5,)), Own(), keras.layers.Dense(3)])


def _with_huber(keras, value):
    model = _plain(keras, value)
    model.compile(loss=keras.losses.Huber(delta=value))
    return model


def _plain(keras, value):
    layers = [keras.layers.Dense(3, name=f"hidden{n}") for n in (1, 2)]
    # The first of its kind is called as a setting of other layers is.
    layers += [keras.layers.Activation("relu"), keras.layers.Dense(3)]
    return keras.Sequential([keras.Input((5,)), *layers])


@pytest.mark.parametrize(
    "build, given",
    [
        (_sub_classed, {}),
        (_with_layer, {}),
        (_with_activation, {}),
        (_with_regularizer, {}),
        (_with_array, {}),
        (_with_huber, {}),
        *[
            (_with_loss(make), {})
            for make in (
                lambda value: np.array([1.0, value], np.float32),
                lambda value: tf.constant([1.0, value]),
                lambda value: (1.0, value),
            )
        ],
        (_plain, {"loss_fn": lambda n: lambda y, p: n * tf.reduce_mean(p)}),
        (_plain, {"blocks": lambda n: [f"hidden{int(10 * n)}"]}),
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_what_a_model_computes_with_is_part_of_its_digests(keras, build, given):
    found = []
    for value in (0.1, 0.1, 0.2):
        keras.utils.set_random_seed(1)
        options = {name: made(value) for name, made in given.items()}
        if "loss_fn" in given:
            options["label_spec"] = tf.TensorSpec([None], tf.int32)
        spec = tf.TensorSpec([None, 5])
        model = build(keras, value)
        found.append(models.from_keras(model, input_spec=spec, **options).digests)
    assert found[0] == found[1] != found[2]


def test_the_first_pass_alone_moves_the_statistics_of_norms(keras):
    class Twice(methods.Method):
        name = "twice"

        def term(self, step):
            forward = models.ForwardPass(training=True)
            return 0.0 * tf.reduce_mean(step.network(step.features, forward).logits)

    class Own(methods.Method):
        name = "own"

        def change_pass(self, forward, network, key):
            return methods.Change(models.ForwardPass(training=True), {})

    _, model_fn = _made(keras, keras_zoo.NETWORKS["nested BatchNorm"])
    client, first = _client(model_fn().input_spec["x"], 0), model_fn()
    once, *others = (
        _trained(model_fn, client, own)[0].non_trainable
        for own in ([], [Twice()], [Own()])
    )
    assert all(map(np.array_equal, once, others[0]))
    # The first pass moves them, also as a method makes it.
    assert all(map(np.array_equal, once, others[1]))
    assert not any(map(np.array_equal, once, first.non_trainable_variables))


def test_a_term_that_moves_the_statistics_of_norms_is_told_so_in_debug_eager(keras):
    class Moving(methods.Method):
        name = "moving"

        def term(self, step):
            forward = models.ForwardPass(training=True, update_statistics=True)
            return tf.reduce_mean(step.network(step.features, forward).logits)

    _, model_fn = _made(keras, keras_zoo.NETWORKS["nested BatchNorm"])
    with pytest.raises(ValueError, match="moving.term .*without update_statistics"):
        training.build_regularized(
            model_fn, [Moving()], training.build_sgd(RATE), debug_eager=True
        )
