"""What a method may do, by methods made for it, against values by hand.

The methods of the catalogue, all but FedProx, use other parts of the mechanism.
"""

import dataclasses
import functools

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.methods import linear
from tff_reg import methods, training
from tff_reg.lazy import keras
from tff_reg.methods import fedsam, method
from tff_reg.models import learning_model

pytestmark = pytest.mark.usefixtures("in_process")

RATE = linear.RATE
BY_EXAMPLES = tff.learning.ClientWeighting.NUM_EXAMPLES
# Batches of at most four, one pass.
BATCHES = training.WholeClientData(batch_size=4, shuffle=False)


def _start():
    """Weights to begin with."""
    rng = np.random.default_rng(6)
    return [
        rng.normal(size=(linear.FEATURES, linear.CLASSES)),
        rng.normal(size=linear.CLASSES),
    ]


def _plus(first, second, factor=1.0):
    return [a + factor * b for a, b in zip(first, second)]


def _minus(first, second):
    return _plus(first, second, -1.0)


def _train(weights, examples, steps, correct=lambda w, gradient: gradient):
    """Gradient descent on the whole batch."""
    for _ in range(steps):
        gradient = correct(weights, linear.gradient(weights, *examples))
        weights = _plus(weights, gradient, -RATE)
    return weights


def _batched(features, labels, size=4):
    """A client's data set as batches."""
    element = {"x": features, "y": labels}
    return tf.data.Dataset.from_tensor_slices(element).batch(size)


# The data forms, and a client's data in them.
_FORMS = {
    "whole": (BATCHES, linear.whole),
    "batched": (training.BatchedData(), _batched),
}
in_both_forms = pytest.mark.parametrize("form", _FORMS)


def _measured(output):
    return output.metrics["client_work"]["train"]


def _weights(process, output):
    return linear.weights_of(process, output.state)


# Class counts, and the logits before the loss.


@dataclasses.dataclass(frozen=True)
class _Priors(method.Method):
    """Adds to each logit the logarithm of how many examples of its class there are."""

    name = "priors"

    def change_logits(self, logits, class_counts):
        return logits + tf.math.log(tf.cast(class_counts, logits.dtype))


@dataclasses.dataclass(frozen=True)
class _Onlooker(method.Method):
    """A term of no weight that says what terms see."""

    name = "onlooker"

    def term(self, step):
        value = tf.reduce_mean(step.outputs.logits[:, 2])
        return method.Term(
            raw=value,
            weighted=0.0 * value,
            measurements={"first": step.class_counts[0], "last": step.class_counts[2]},
        )


# Five of the first class, three of the second, none of the third; each batch has
# counts of its own.
_LABELS = np.array([0, 0, 0, 0, 0, 1, 1, 1], np.int32)


def _cross_entropy(weights, features, labels, shift):
    """Of shifted logits, with its gradient."""
    logits = features @ weights[0] + weights[1] + shift
    exponents = np.exp(logits)
    probabilities = exponents / exponents.sum(1, keepdims=True)
    rows = np.arange(len(labels))
    loss = -np.log(probabilities[rows, labels]).mean()
    probabilities[rows, labels] -= 1
    difference = probabilities / len(labels)
    return loss, [features.T @ difference, difference.sum(0)]


def _build_priors(form):
    make = functools.partial(
        linear.model_fn, loss_fn=learning_model.sparse_cross_entropy
    )
    return linear.build(
        _Priors(),
        _Onlooker(),
        make_model=make,
        client_data=_FORMS[form][0],
        population=None,
    )


@in_both_forms
def test_the_loss_sees_logits_changed_by_the_class_counts_of_the_whole_client(form):
    process = _build_priors(form)
    features, _ = linear.examples(0)
    output = process.next(
        linear.started(process, _start()), [_FORMS[form][1](features, _LABELS)]
    )
    with np.errstate(divide="ignore"):
        shift = np.log(np.bincount(_LABELS, minlength=linear.CLASSES))
    weights, losses, plain = _start(), [], []
    for rows in (slice(0, 4), slice(4, 8)):
        plain.append(features[rows] @ weights[0] + weights[1])
        loss, gradient = _cross_entropy(weights, features[rows], _LABELS[rows], shift)
        losses.append(loss)
        weights = _plus(weights, gradient, -RATE)
    linear.assert_close(_weights(process, output), weights)
    # The class that is not there has no gradient.
    for ours, start in zip(_weights(process, output), _start()):
        np.testing.assert_array_equal(ours[..., 2], start[..., 2])
    # Metrics and terms see the model's own logits; the loss is that of training.
    measured = _measured(output)
    assert measured["loss"] == pytest.approx(np.mean(losses), rel=1e-6)
    plain = np.concatenate(plain)
    accuracies = [np.mean(z.argmax(1) == _LABELS) for z in (plain, plain + shift)]
    assert measured["accuracy"] == pytest.approx(accuracies[0])
    assert accuracies[0] != accuracies[1]
    assert measured["onlooker/term"] == pytest.approx(plain[:, 2].mean(), rel=1e-5)
    assert (measured["onlooker/first"], measured["onlooker/last"]) == (5, 0)
    assert measured["num_examples"] == 8


@dataclasses.dataclass(frozen=True)
class _Counting(method.Method):
    """Keeps the class counts that a client begins with, and scales gradients by one."""

    name = "counting"

    def begin(self, local):
        return local.class_counts

    def correct(self, local, gradient):
        factor = tf.cast(local.state[1], gradient[0].dtype)
        return [factor * g for g in gradient]


@in_both_forms
def test_class_counts_are_known_where_a_client_begins(form):
    process = linear.build(_Counting(), client_data=_FORMS[form][0], population=None)
    features, _ = linear.examples(0)
    output = process.next(
        linear.started(process, _start()), [_FORMS[form][1](features, _LABELS)]
    )
    weights = _start()
    for rows in (slice(0, 4), slice(4, 8)):
        examples = features[rows], _LABELS[rows]
        weights = _train(weights, examples, 1, lambda w, g: [3.0 * each for each in g])
    linear.assert_close(_weights(process, output), weights)


@in_both_forms
def test_a_client_without_examples_counts_no_class_and_changes_nothing(form):
    process, make = _build_priors(form), _FORMS[form][1]
    features, _ = linear.examples(0)
    client, empty = make(features, _LABELS), make(features[:0], _LABELS[:0])
    state = linear.started(process, _start())
    alone, both = (process.next(state, c) for c in ([client], [client, empty]))
    linear.assert_close(_weights(process, both), _weights(process, alone), 0.0)
    assert _measured(both) == _measured(alone)
    assert _measured(both)["rejected_clients"] == 0


# Gradients that are taken elsewhere.


@dataclasses.dataclass(frozen=True)
class _Returning(method.Method):
    """Takes the gradient nearer to the model that the client received before."""

    name = "returning"
    client_memory = {
        "old": methods.initial_weights,
        "first": methods.initial_weights,
        "visits": lambda weights: tf.constant(0),
    }
    radius: float = 0.5

    def gradient(self, local, gradient_at):
        back = [old - s for old, s in zip(local.memory["old"], local.start)]
        norm = fedsam.global_norm(back)
        return gradient_at([tf.math.divide_no_nan(self.radius * b, norm) for b in back])

    def finish(self, local):
        visits = local.memory["visits"] + 1
        return methods.Finished(memory={"old": list(local.start), "visits": visits})


def test_a_perturbation_by_memory_is_one_pass_of_the_batch():
    process, examples = linear.build(_Returning(), steps=2), linear.examples(0)
    first, data_set = _start(), linear.whole(*examples)
    state, client_states = linear.run(
        process, linear.started(process, first), [data_set], 1
    )
    second = _train(first, examples, 2)
    linear.assert_close(linear.weights_of(process, state), second)
    linear.assert_close(client_states[0]["returning/old"], first)
    output = process.next(state, [data_set], client_states)
    back = _minus(first, second)
    norm = np.sqrt(sum(np.sum(b**2) for b in back))
    weights, losses = second, []
    for _ in range(2):
        there = _plus(weights, back, 0.5 / norm)
        losses.append(_loss(there, *examples))
        weights = _plus(weights, linear.gradient(there, *examples), -RATE)
    linear.assert_close(_weights(process, output), weights)
    linear.assert_close(output.client_states[0]["returning/old"], second)
    # What the method says nothing of stays as it is.
    linear.assert_close(output.client_states[0]["returning/first"], first, 0.0)
    assert output.client_states[0]["returning/visits"] == 2
    # The one pass is there.
    assert _measured(output)["num_examples"] == 16
    assert _measured(output)["loss"] == pytest.approx(np.mean(losses), rel=1e-6)


def _loss(weights, features, labels):
    difference = features @ weights[0] + weights[1] - np.eye(linear.CLASSES)[labels]
    return np.sum(difference**2) / len(labels)


@dataclasses.dataclass(frozen=True)
class _Rebelling(method.Method):
    """Takes the gradient further from the global model, in weights and in logits."""

    name = "rebelling"
    radius: float = 0.1

    def gradient(self, local, gradient_at):
        away = gradient_at(loss=self._loss)
        return gradient_at([self.radius * g for g in away])

    def _loss(self, step):
        received = step.outputs_of(method.GLOBAL).logits
        away = [
            tf.reduce_sum(tf.math.squared_difference(w, g))
            for w, g in zip(step.weights, step.start)
        ]
        gap = tf.math.squared_difference(step.outputs.logits, received)
        return tf.reduce_mean(gap) + 0.5 * tf.add_n(away)


def test_a_second_loss_of_the_batch_says_where_the_gradient_is_taken():
    strength, steps = 0.3, 3
    process = linear.build(
        _Rebelling(), methods.FedProx(strength=strength), steps=steps
    )
    examples = features, _ = linear.examples(0)
    received = _start()
    output = process.next(linear.started(process, received), [linear.whole(*examples)])
    weights, losses, distances = received, [], []
    for _ in range(steps):
        away = _minus(weights, received)
        gap = 2 * (features @ away[0] + away[1]) / features.shape[0] / linear.CLASSES
        second = _plus([features.T @ gap, gap.sum(0)], away)
        losses.append(_loss(weights, *examples))
        distances.append(sum(np.sum(a**2) for a in away))
        there = _plus(weights, second, 0.1)
        gradient = linear.gradient(there, *examples)
        # All terms of the combination are taken there.
        gradient = _plus(gradient, _minus(there, received), strength)
        weights = _plus(weights, gradient, -RATE)
    linear.assert_close(_weights(process, output), weights)
    # Metrics are those of the first pass.
    measured = _measured(output)
    assert measured["num_examples"] == 8 * steps
    assert measured["loss"] == pytest.approx(np.mean(losses), rel=1e-6)
    assert measured["fedprox/term"] == pytest.approx(np.mean(distances), rel=1e-5)
    straight = _train(
        received,
        examples,
        steps,
        lambda w, g: _plus(g, _minus(w, received), strength),
    )
    assert np.abs(straight[0] - weights[0]).max() > 1e-5


# The server's memory, without one of the clients.


@dataclasses.dataclass(frozen=True)
class _LookingAhead(method.Method):
    """Server momentum whose next step clients have before them."""

    name = "ahead"
    server_memory = {"momentum": methods.zeros}
    server_step = "momentum of its own"
    decay: float = 0.8

    def broadcast(self, weights, memory):
        return _plus(weights, memory["momentum"], self.decay)

    def update_memory(self, server):
        decayed = [self.decay * momentum for momentum in server.memory["momentum"]]
        return {"momentum": _plus(decayed, server.mean_delta)}

    def next_model(self, server):
        return _plus(server.weights, server.old_memory["momentum"], self.decay)


def test_updates_are_relative_to_a_broadcast_that_is_not_the_model():
    strength, steps = 0.3, 4
    parts = [_LookingAhead(), methods.FedProx(strength=strength)]
    process = linear.build(*parts, steps=steps)
    assert isinstance(process, tff.learning.templates.LearningProcess)
    clients = [linear.examples(seed) for seed in (0, 1)]
    weights, state = _start(), linear.started(process, _start())
    momentum = [np.zeros_like(w) for w in weights]
    for _ in range(3):
        state = process.next(state, [linear.whole(*own) for own in clients]).state
        sent = _plus(weights, momentum, 0.8)

        def proximal(w, gradient, sent=sent):
            return _plus(gradient, _minus(w, sent), strength)

        ends = [_train(sent, own, steps, proximal) for own in clients]
        mean = [np.mean(both, axis=0) for both in zip(*ends)]
        momentum = _minus(mean, weights)
        weights = mean
        linear.assert_close(linear.weights_of(process, state), weights)
        linear.assert_close(state.finalizer["memory"]["ahead/momentum"], momentum)


@dataclasses.dataclass(frozen=True)
class _Following(method.Method):
    """Mixes every gradient with the direction of the last round."""

    name = "following"
    exclusive = (method.DRIFT,)
    server_memory = {
        "direction": methods.sent(methods.zeros),
        "rounds": lambda weights: tf.constant(0),
        "first": methods.initial_weights,
    }
    share: float = 0.3
    step_size: float = 4 * RATE

    def correct(self, local, gradient):
        assert list(local.server_memory) == ["direction"]
        return [
            self.share * g + (1 - self.share) * d
            for g, d in zip(gradient, local.server_memory["direction"])
        ]

    def update_memory(self, server):
        size = self.step_size * tf.cast(server.count, tf.float64)
        direction = [-moved / size for moved in server.delta_sum]
        return {"direction": direction, "rounds": server.memory["rounds"] + 1}


def test_the_servers_memory_is_replaced_and_what_is_named_is_sent():
    process = linear.build(_Following(), steps=4)
    assert isinstance(process, tff.learning.templates.LearningProcess)
    clients = [linear.examples(seed) for seed in (0, 1)]
    weights, state = _start(), linear.started(process, _start())
    direction = [np.zeros_like(w) for w in weights]
    for round_num in range(1, 4):
        state = process.next(state, [linear.whole(*own) for own in clients]).state

        def mixed(w, gradient, direction=direction):
            return _plus([0.3 * g for g in gradient], direction, 0.7)

        ends = [_train(weights, own, 4, mixed) for own in clients]
        mean = [np.mean(both, axis=0) for both in zip(*ends)]
        direction = [d / (4 * RATE) for d in _minus(weights, mean)]
        weights = mean
        linear.assert_close(linear.weights_of(process, state), weights)
        linear.assert_close(state.finalizer["memory"]["following/direction"], direction)
        assert state.finalizer["memory"]["following/rounds"] == round_num
        # What the method says nothing of stays as it is.
        linear.assert_close(state.finalizer["memory"]["following/first"], _start(), 0.0)


# Averaging by each client's steps.


@dataclasses.dataclass(frozen=True)
class _Normalised(method.Method):
    """Averages the clients' steps, and takes as many of them as they do on average."""

    name = "normalised"
    uploads = ("steps",)

    def finish(self, local):
        share = local.relative_weight
        steps = share * tf.cast(local.num_steps, share.dtype)
        return methods.Finished(
            upload={"steps": {"all": steps, "shares": share}},
            scale=1 / tf.cast(local.num_steps, tf.float64),
        )

    def next_model(self, server):
        steps = server.uploads["steps"]["all"] / server.uploads["steps"]["shares"]
        step = _minus(server.weights, server.before)
        return _plus(server.before, step, steps)


def _build_normalised():
    return linear.build(
        _Normalised(),
        client_data=BATCHES,
        client_weighting=BY_EXAMPLES,
        population=training.Population(2, mean_examples=7.0),
    )


def test_clients_are_averaged_by_the_step():
    process = _build_normalised()
    assert isinstance(process, tff.learning.templates.LearningProcess)
    clients = [linear.examples(seed, count) for seed, count in ((0, 5), (1, 9))]
    data_sets = [linear.whole(*own) for own in clients]
    output = process.next(
        linear.started(process, _start()), [*data_sets, linear.empty()]
    )
    total = [np.zeros_like(w) for w in _start()]
    for features, labels in clients:
        weights, count = _start(), len(labels)
        for rows in (slice(i, i + 4) for i in range(0, count, 4)):
            weights = _train(weights, (features[rows], labels[rows]), 1)
        steps = -(-count // 4)
        total = _plus(total, _minus(weights, _start()), count / 14 / steps)
    expected = _plus(_start(), total, (5 * 2 + 9 * 3) / 14)
    linear.assert_close(_weights(process, output), expected)
    # A client without a step has nothing to divide, and is no worse for it.
    assert _measured(output)["rejected_clients"] == 0


def test_with_equal_steps_that_is_fedavg():
    clients = [linear.whole(*linear.examples(seed, 6)) for seed in (0, 1)]
    plain = linear.build(client_data=BATCHES, client_weighting=BY_EXAMPLES)
    results = []
    for process in (_build_normalised(), plain):
        output = process.next(linear.started(process, _start()), clients)
        results.append(_weights(process, output))
    linear.assert_close(*results)


# What a client keeps while it trains.


@dataclasses.dataclass(frozen=True)
class _Rolling(method.Method):
    """Adds a part of the last step's clipped gradient to each gradient."""

    name = "rolling"

    def begin(self, local):
        zeros = [tf.zeros_like(c) for c in local.start]
        return {"last": zeros, "steps": tf.constant(0)}

    def correct(self, local, gradient):
        return _plus(gradient, local.state["last"], 0.5)

    def keep(self, local, gradient):
        return {"last": list(gradient), "steps": local.state["steps"] + 1}

    def correct_clipped(self, local, gradient):
        # Those before this one.
        factor = 1 + 0.1 * tf.cast(local.state["steps"], gradient[0].dtype)
        return [factor * g for g in gradient]


@pytest.mark.parametrize("loop", list(tff.learning.LoopImplementation))
@in_both_forms
def test_what_is_kept_goes_from_step_to_step_and_ends_with_the_round(form, loop):
    norm = 3.0
    process = linear.build(
        _Rolling(),
        client_data=_FORMS[form][0],
        loop_implementation=loop,
        max_gradient_norm=norm,
        population=None,
    )
    assert isinstance(process, tff.learning.templates.LearningProcess)
    features, labels = linear.examples(0, 11)
    weights, state, clipped = _start(), linear.started(process, _start()), 0
    for _ in range(2):
        state = process.next(state, [_FORMS[form][1](features, labels)]).state
        last = [np.zeros_like(w) for w in weights]
        for step, rows in enumerate((slice(0, 4), slice(4, 8), slice(8, 11))):
            gradient = linear.gradient(weights, features[rows], labels[rows])
            gradient = _plus(gradient, last, 0.5)
            length = np.sqrt(sum(np.sum(g**2) for g in gradient)) + 1e-6
            clipped += length > norm
            last = [g * min(1, norm / length) for g in gradient]
            weights = _plus(weights, last, -RATE * (1 + 0.1 * step))
        linear.assert_close(linear.weights_of(process, state), weights)
    assert clipped > 0


# What is refused.


class _SquaredLoss(keras.losses.Loss):
    """`linear.squared_loss`, as Keras has losses: one an example."""

    def call(self, labels, logits):
        one_hot = tf.one_hot(
            tf.cast(labels, tf.int32), linear.CLASSES, dtype=tf.float64
        )
        return tf.reduce_sum(tf.math.squared_difference(logits, one_hot), axis=1)


def _keras_model_fn():
    """A model that does not show its network."""
    # Before the layer: Keras 2 has one class of layers in graphs and one outside.
    input_spec = linear.model_fn().input_spec
    layer = keras.layers.Dense(
        linear.CLASSES, input_shape=[linear.FEATURES], dtype="float64"
    )
    return tff.learning.models.from_keras_model(
        keras.Sequential([layer]),
        loss=_SquaredLoss(),
        input_spec=input_spec,
        metrics=[tff.learning.metrics.NumExamplesCounter()],
    )


def test_a_papers_symbol_is_answered_by_what_it_is_called():
    with pytest.raises(TypeError, match=r"no setting 'mu' \(did you mean strength\?\)"):
        methods.FedProx(mu=0.1)
    with pytest.raises(TypeError, match="FedProx has no setting 'rho'; it has strengt"):
        methods.FedProx(rho=0.1)
    assert methods.FedProx(0.5) == methods.FedProx(strength=0.5)
    assert dataclasses.replace(methods.FedProx(), strength=0.5).strength == 0.5


@pytest.mark.parametrize(
    "part",
    [_Priors(), _Rebelling(), _Counting(), methods.Mixup(), methods.StochDepth()],
    ids=lambda part: part.name,
)
def test_what_looks_inside_the_network_is_refused_without_one(part):
    with pytest.raises(TypeError, match=f"^{part.name} looks inside the network"):
        linear.build(
            part,
            make_model=_keras_model_fn,
            client_data=training.BatchedData(),
            population=None,
        )


def test_a_perturbation_by_memory_needs_no_network():
    process = linear.build(
        _Returning(),
        make_model=_keras_model_fn,
        client_data=training.BatchedData(),
        population=None,
    )
    examples, first = linear.examples(0), _start()
    data_sets = [_batched(*examples, size=8)]
    state, client_states = linear.run(
        process, linear.started(process, first), data_sets, 1
    )
    second = linear.weights_of(process, state)
    output = process.next(state, data_sets, client_states)
    back = _minus(first, second)
    norm = np.sqrt(sum(np.sum(b**2) for b in back))
    there = _plus(second, back, 0.5 / norm)
    expected = _plus(second, linear.gradient(there, *examples), -RATE)
    linear.assert_close(_weights(process, output), expected)
    assert _measured(output)["num_examples"] == 8


# What is true of all of them.

_PROBES = {
    "perturbed by memory": (_Returning(),),
    "perturbed by a second loss": (_Rebelling(),),
    "broadcast": (_LookingAhead(),),
    "replaced": (_Following(),),
    "scaled": (_Normalised(),),
    "kept": (_Rolling(),),
    "many": (_Priors(), _Returning(), _LookingAhead(), _Following(), _Rolling()),
}


@pytest.mark.parametrize("probe", _PROBES)
def test_a_round_in_which_nobody_trains_leaves_everything_as_it_was(probe):
    process = linear.build(*_PROBES[probe], steps=2)
    remembers = isinstance(process, training.StatefulLearningProcess)
    state = linear.started(process, _start())
    client_states = [process.initial_client_state(state)] * 2 if remembers else None

    def run(state, clients, client_states):
        states = [client_states] if remembers else []
        output = process.next(state, clients, *states)
        return output.state, output.client_states if remembers else None

    good = [linear.whole(*linear.examples(seed)) for seed in (0, 1)]
    for _ in range(2):
        state, client_states = run(state, good, client_states)
    after, kept = run(state, [linear.broken(), linear.empty()], client_states)
    for what in ("global_model_weights", "aggregator", "finalizer", "distributor"):
        linear.assert_close(getattr(after, what), getattr(state, what), 0.0)
    if remembers:
        linear.assert_close(kept, client_states, 0.0)
    # And the round after it is as if it had not been.
    again, straight = (run(s, good, client_states)[0] for s in (after, state))
    weights = [linear.weights_of(process, s) for s in (again, straight)]
    linear.assert_close(*weights, 0.0)


_WITHOUT_CLIENT_MEMORY = [
    name
    for name, parts in _PROBES.items()
    if not any(part.client_memory for part in parts)
]


@pytest.mark.parametrize("probe", _WITHOUT_CLIENT_MEMORY)
def test_what_only_the_server_remembers_compiles_to_map_reduce(probe):
    process = linear.build(*_PROBES[probe], steps=2)
    form = tff.backends.mapreduce.get_map_reduce_form_for_computation(process.next)
    state = linear.started(process, _start())
    clients = [linear.whole(*linear.examples(seed)) for seed in (0, 1)]
    for _ in range(2):
        expected = process.next(state, clients).state
        total, sent = form.zero(), form.prepare(state)
        for client in clients:
            update, *_ = form.work(client, sent)
            total = form.accumulate(total, update)
        found = form.update(state, (form.report(total), (), (), ()))["state"]
        for part in ("global_model_weights", "finalizer"):
            linear.assert_close(found[part], getattr(expected, part))
        state = expected
