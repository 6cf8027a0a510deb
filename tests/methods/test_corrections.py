"""The formulae by hand, and whole rounds of a strongly convex problem."""

import collections
import dataclasses
import functools

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tff_reg import methods, models, runtime, training
from tff_reg.methods import catalogue, drift
from tff_reg.methods import method as method_lib

FEATURES, CLASSES = 4, 3
UNIFORM = tff.learning.ClientWeighting.UNIFORM
CORRECTIONS = {
    "feddyn": methods.FedDyn(strength=0.3),
    "feddc": methods.FedDC(strength=0.3),
    "fedspeed": methods.FedSpeed(strength=0.3),
    "scaffold": methods.Scaffold(),
}


@pytest.fixture(scope="module", autouse=True)
def _runtime():
    with runtime.running("in_process"):
        yield
    _build.cache_clear()


# The formulae, on one weight: w = 3, cloud = 1, h_i = 0.5, s_i = 0.25, s = 2,
# wt_i = 4, K lr0 = 0.8.


def _local(**changes):
    fields = dict(
        weights=[3.0],
        cloud=[1.0],
        client=dict(h=[0.5], s=[0.25]),
        server=dict(s=[2.0]),
        relative_size=tf.constant(4.0, tf.float64),
        step_size=tf.constant(0.8, tf.float64),
    )
    fields.update(changes)
    return method_lib.Local(**fields)


def _assert_values(tensors, expected):
    (tensor,) = tensors
    assert float(tensor) == pytest.approx(expected, rel=1e-12)


def test_feddyn_splits_the_proximal_term_around_the_clipping():
    feddyn = methods.FedDyn(strength=0.4)
    # alpha_i = 0.4 / 4.
    _assert_values(feddyn.before_clipping(_local()), 0.1 * (0.5 - 1))
    _assert_values(feddyn.after_clipping(_local()), 0.1 * 3)
    memories, uploads = feddyn.finish(_local())
    assert memories == {"h": [0.5 + 3 - 1]}
    assert not uploads


def test_feddc_adds_everything_before_the_clipping():
    feddc = methods.FedDC(strength=0.4)
    expected = 0.1 * (3 - (1 - 0.5)) - 0.25 + 2 / 4
    _assert_values(feddc.before_clipping(_local()), expected)
    assert feddc.after_clipping(_local()) is None
    memories, uploads = feddc.finish(_local())
    assert memories["h"] == [0.5 + 3 - 1]
    change = -2 / 4 + (1 - 3) / 0.8
    _assert_values(memories["s"], 0.25 + change)
    assert list(uploads) == ["s"]
    _assert_values(uploads["s"], 4 * change)


def test_scaffold_divides_by_the_relative_size_in_training_alone():
    scaffold = methods.Scaffold()
    _assert_values(scaffold.before_clipping(_local()), 2 / 4 - 0.25)
    assert scaffold.after_clipping(_local()) is None
    memories, uploads = scaffold.finish(_local())
    change = -2 + (1 - 3) / 0.8
    _assert_values(memories["s"], 0.25 + change)
    assert list(uploads) == ["s"]
    _assert_values(uploads["s"], 4 * change)


@pytest.mark.parametrize("ascent, added", [("code", 2.0), ("clean", 0.0)])
def test_fedspeed_climbs_along_the_gradient_and_its_previous_one(ascent, added):
    fedspeed = methods.FedSpeed(strength=0.4, radius=0.5, ascent=ascent)
    feddyn = methods.FedDyn(strength=0.4)
    for part in ("before_clipping", "after_clipping"):
        ours, (expected,) = getattr(fedspeed, part), getattr(feddyn, part)(_local())
        _assert_values(ours(_local()), float(expected))
    weight = tf.Variable([1.0, -1.0], dtype=tf.float64)
    rule = fedspeed.gradient_rule
    slots = rule.make_slots([weight])
    gradient = lambda: [tf.constant([1.0, 0.0], tf.float64) * weight]
    first = rule(gradient, [weight], slots)
    # At first there is no previous gradient: along (1, 0) by 0.5.
    np.testing.assert_allclose(first[0], [1.5, 0], rtol=1e-6)
    rule.after_clipping([tf.constant([0.0, 2.0], tf.float64)], slots)
    direction = np.array([1.0, added])
    second = rule(gradient, [weight], slots)
    expected = 1 + 0.5 / np.linalg.norm(direction)
    np.testing.assert_allclose(second[0], [expected, 0], rtol=1e-6)
    np.testing.assert_array_equal(weight, [1, -1])


def test_alpha_keeps_all_digits_in_float64():
    local = _local(relative_size=tf.constant(1.0, tf.float64))
    assert float(drift.alpha_of(0.1, local)) == 0.1


# Whole rounds: least squares, which has one minimum.


def _squared_loss(labels, logits):
    difference = logits - tf.one_hot(labels, CLASSES, dtype=logits.dtype)
    return tf.reduce_mean(tf.reduce_sum(tf.square(difference), axis=1))


def _model_fn():
    """A linear model."""
    network = models.from_keras_blocks(
        [
            tf.keras.layers.Flatten(dtype="float64"),
            tf.keras.layers.Dense(CLASSES, dtype="float64"),
        ],
        input_shape=[FEATURES],
    )
    return models.LearningModel(network, loss_fn=_squared_loss)


def _examples(seed, count=8):
    rng = np.random.default_rng(seed)
    features = rng.normal(seed, 1.0, size=(count, FEATURES))
    return features, rng.integers(0, CLASSES, count).astype(np.int32)


def _data_set(features, labels):
    key = np.array([1, 2], np.int64)
    return tf.data.Dataset.from_tensors(
        collections.OrderedDict(x=features, y=labels, key=key)
    )


@functools.lru_cache(maxsize=None)
def _build(correction, num_clients, steps=5, rate=0.02, **arguments):
    defaults = dict(
        optimizer=training.build_sgd(rate),
        data_form=training.WholeClientData(batch_size=100, local_epochs=steps),
        correction=correction,
        population=training.Population(num_clients, mean_examples=8.0),
        averages_all_clients=True,
    )
    names = {field.name for field in dataclasses.fields(client_work.LocalTraining)}
    given = {name: arguments.pop(name) for name in names & set(arguments)}
    training = client_work.LocalTraining(**{**defaults, **given})
    arguments.setdefault("client_weighting", UNIFORM)
    return processes.build_process(_model_fn, training, **arguments)


def _weights(process, state):
    return process.get_model_weights(state).trainable


def _assert_close(first, second, atol):
    first, second = tf.nest.flatten(first), tf.nest.flatten(second)
    assert len(first) == len(second)
    for a, b in zip(first, second):
        np.testing.assert_allclose(a, b, rtol=0, atol=atol)


def _run(process, state, data_sets, rounds):
    client_states = [process.initial_client_state(state)] * len(data_sets)
    for _ in range(rounds):
        output = process.next(state, data_sets, client_states)
        state, client_states = output.state, output.client_states
    return state, client_states


@pytest.mark.parametrize("name", CORRECTIONS)
def test_a_client_that_diverges_or_is_empty_keeps_its_memories_and_uploads_nothing(
    name,
):
    process = _build(CORRECTIONS[name], num_clients=3)
    features, labels = _examples(0)
    good = _data_set(features, labels)
    other = _data_set(*_examples(1))
    empty = _data_set(features[:0], labels[:0])
    broken = _data_set(np.where(features > 1, np.nan, features), labels)
    state, (first, second, third) = _run(
        process, process.initialize(), [good, other, other], 1
    )
    alone = process.next(state, [good], [first])
    output = process.next(state, [good, broken, empty], [first, second, third])
    _assert_close(output.state.finalizer, alone.state.finalizer, 0.0)
    _assert_close(_weights(process, output.state), _weights(process, alone.state), 0.0)
    _assert_close(output.client_states, [alone.client_states[0], second, third], 0.0)
    assert any(np.any(value) for value in tf.nest.flatten(second))


@pytest.mark.parametrize("name", CORRECTIONS)
def test_a_round_in_which_nobody_trained_changes_nothing(name):
    process = _build(CORRECTIONS[name], num_clients=3)
    features, labels = _examples(0)
    broken = _data_set(np.where(features > 1, np.nan, features), labels)
    empty = _data_set(features[:0], labels[:0])
    state, client_states = _run(
        process,
        process.initialize(),
        [_data_set(features, labels), _data_set(*_examples(1))],
        2,
    )
    for data_set in (broken, empty):
        output = process.next(state, [data_set], client_states[:1])
        _assert_close(output.state.finalizer["memory"], state.finalizer["memory"], 0.0)
        _assert_close(_weights(process, output.state), _weights(process, state), 0.0)
        _assert_close(output.client_states, client_states[:1], 0.0)


def test_fedspeed_with_radius_0_is_feddyn_to_the_bit():
    data_sets = [_data_set(*_examples(seed)) for seed in range(2)]
    feddyn = _build(CORRECTIONS["feddyn"], num_clients=3)
    start = feddyn.initialize()
    expected = _run(feddyn, start, data_sets, 2)
    results = {}
    for radius in (0.0, 0.1):
        fedspeed = _build(methods.FedSpeed(strength=0.3, radius=radius), 3)
        results[radius] = _run(fedspeed, start, data_sets, 2)
    _assert_close(results[0.0], expected, 0.0)
    assert np.any(results[0.1][1][0]["h"][0] != expected[1][0]["h"][0])


def test_scaffold_with_identical_clients_is_fedavg():
    data_sets = [_data_set(*_examples(0))] * 3
    scaffold = _build(CORRECTIONS["scaffold"], num_clients=3)
    fedavg = _build(None, num_clients=3)
    start = scaffold.initialize()
    initial = scaffold.get_model_weights(start)
    ours, client_states = _run(scaffold, start, data_sets, 4)
    plain, _ = _run(
        fedavg, fedavg.set_model_weights(fedavg.initialize(), initial), data_sets, 4
    )
    # The control variates are not 0, but cancel.
    assert np.abs(ours.finalizer["memory"]["s"][0]).max() > 1e-3
    _assert_close(client_states[0]["s"], ours.finalizer["memory"]["s"], 1e-12)
    _assert_close(_weights(scaffold, ours), _weights(fedavg, plain), 1e-12)


def _minimum(examples):
    """Where the mean of the clients' losses is least, as our weights."""
    features = np.concatenate([x for x, _ in examples])
    labels = np.concatenate([y for _, y in examples])
    with_one = np.c_[features, np.ones(len(features))]
    solution = np.linalg.lstsq(with_one, np.eye(CLASSES)[labels], rcond=None)[0]
    return [solution[:-1], solution[-1]]


def _gradient(weights, features, labels):
    difference = features @ weights[0] + weights[1] - np.eye(CLASSES)[labels]
    difference *= 2 / len(labels)
    return [features.T @ difference, difference.sum(axis=0)]


def _memories_at(minimum, name, strength, examples):
    """With which a client's gradient is 0 at the minimum."""
    gradient = _gradient(minimum, *examples)
    zeros = [np.zeros_like(g) for g in gradient]
    drift = [-g / strength for g in gradient]
    return {
        "feddyn": dict(h=drift),
        "feddc": dict(h=drift, s=zeros),
        "scaffold": dict(s=gradient),
        "fedavg": {},
    }[name]


@pytest.mark.parametrize("name", ["feddyn", "feddc", "scaffold", "fedavg"])
def test_the_minimum_of_unlike_clients_is_a_fixed_point_of_the_corrections(name):
    examples = [_examples(seed) for seed in range(3)]
    minimum = _minimum(examples)
    process = _build(CORRECTIONS.get(name), num_clients=3)
    state = process.set_model_weights(
        process.initialize(), tff.learning.models.ModelWeights(minimum, [])
    )
    client_states = []
    for own in examples:
        memories = dict(process.initial_client_state(state))
        memories.update(_memories_at(minimum, name, 0.3, own))
        client_states.append(collections.OrderedDict(memories))
    for _ in range(2):
        output = process.next(
            state, [_data_set(*own) for own in examples], client_states
        )
        state, client_states = output.state, output.client_states
    if name == "fedavg":
        difference = _weights(process, state)[0] - minimum[0]
        assert np.abs(difference).max() > 1e-2
    else:
        _assert_close(_weights(process, state), minimum, 1e-12)
        _assert_close(client_states[0][method_lib.PREVIOUS], minimum, 1e-12)


# What is refused.


@pytest.mark.parametrize(
    "process", ["feddyn+feddc", "scaffold+man+fedspeed", "fedspeed+fedsam"]
)
def test_two_that_do_the_same_are_refused_by_name(process):
    with pytest.raises(
        catalogue.UnknownProcessError, match="both .*leave one"
    ) as caught:
        catalogue.parse(process)
    assert "\n" not in str(caught.value)


def test_fedspeed_refuses_another_gradient_rule():
    with pytest.raises(
        method_lib.IncompatibleMethodsError,
        match="fedspeed takes gradients in its own way, and fedsam in another",
    ):
        _build(CORRECTIONS["fedspeed"], 2, gradient_rule=methods.FedSAM())


@pytest.mark.parametrize("name", ["feddyn", "feddc", "fedspeed"])
def test_corrections_of_the_model_refuse_a_server_optimizer(name):
    momentum = tff.learning.optimizers.build_sgdm(1.0, 0.9)
    slow = tff.learning.optimizers.build_sgdm(0.5)
    for optimizer in (momentum, slow, tff.learning.optimizers.build_adam(1.0)):
        with pytest.raises(ValueError, match="a server optimiser has no place"):
            _build(CORRECTIONS[name], 2, server_optimizer_fn=optimizer)


def test_scaffold_goes_with_a_server_optimizer():
    data_sets = [_data_set(*_examples(seed)) for seed in range(2)]
    whole = _build(CORRECTIONS["scaffold"], 2)
    half = _build(
        CORRECTIONS["scaffold"],
        2,
        server_optimizer_fn=tff.learning.optimizers.build_sgdm(0.5),
    )
    start = whole.initialize()
    initial = whole.get_model_weights(start)
    there, _ = _run(whole, start, data_sets, 1)
    halfway, _ = _run(
        half, half.set_model_weights(half.initialize(), initial), data_sets, 1
    )
    expected = [
        (first + last) / 2
        for first, last in zip(initial.trainable, _weights(whole, there))
    ]
    _assert_close(_weights(half, halfway), expected, 1e-12)


@pytest.mark.parametrize("name", ["feddyn", "feddc", "fedspeed"])
def test_corrections_of_the_model_refuse_a_weighted_mean(name):
    with pytest.raises(ValueError, match=f"{name} takes the plain mean"):
        _build(
            CORRECTIONS[name],
            2,
            client_weighting=tff.learning.ClientWeighting.NUM_EXAMPLES,
        )


@pytest.mark.parametrize("name", CORRECTIONS)
def test_a_correction_without_a_population_is_refused(name):
    with pytest.raises(ValueError, match=f"{name} has to know of all clients"):
        _build(CORRECTIONS[name], 2, population=None)


def test_mean_examples_are_refused_with_batches():
    with pytest.raises(ValueError, match="mean_examples needs to know how large"):
        _build(CORRECTIONS["scaffold"], 2, data_form=training.BatchedData())


class _SignDescent(tff.learning.optimizers.Optimizer):
    """An optimiser without a learning rate."""

    def initialize(self, specs):
        return ()

    def next(self, state, weights, gradients):
        return state, tf.nest.map_structure(
            lambda w, g: w - 0.01 * tf.sign(g), weights, gradients
        )

    def get_hparams(self, state):
        return collections.OrderedDict()

    def set_hparams(self, state, hparams):
        return state


@pytest.mark.parametrize("name", CORRECTIONS)
def test_a_client_optimizer_without_learning_rate_is_refused(name):
    with pytest.raises(ValueError, match=f"{name} needs a client optimiser with a"):
        _build(CORRECTIONS[name], 2, optimizer=_SignDescent())


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: methods.FedDyn(strength=-1.0), "feddyn: strength must be"),
        (lambda: methods.FedDC(strength=np.nan), "feddc: strength must be"),
        (lambda: methods.FedSpeed(radius=-0.1), "fedspeed: radius must be"),
        (lambda: methods.FedSpeed(ascent="up"), "must be one of code, clean"),
        (lambda: training.Population(0), "num_clients must be a whole number"),
        (lambda: training.Population(2, 0.0), "mean_examples must be above 0"),
        (lambda: training.Population(2, local_steps=0), "local_steps must be"),
    ],
)
def test_values_out_of_range_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
