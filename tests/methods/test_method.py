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
from tests.methods.probes import (
    _batched,
    _Counting,
    _Following,
    _LookingAhead,
    _measured,
    _minus,
    _Normalised,
    _plus,
    _Priors,
    _Rebelling,
    _Returning,
    _Rolling,
    _start,
    _weights,
)
from tff_reg import methods, training
from tff_reg.methods import method
from tff_reg.models import learning_model

pytestmark = pytest.mark.usefixtures("in_process")

RATE = linear.RATE
BY_EXAMPLES = tff.learning.ClientWeighting.NUM_EXAMPLES
# Batches of at most four, one pass.
BATCHES = training.WholeClientData(batch_size=4, shuffle=False)


def _train(weights, examples, steps, correct=lambda w, gradient: gradient):
    """Gradient descent on the whole batch."""
    for _ in range(steps):
        gradient = correct(weights, linear.gradient(weights, *examples))
        weights = _plus(weights, gradient, -RATE)
    return weights


# The data forms, and a client's data in them.
_FORMS = {
    "whole": (BATCHES, linear.whole),
    "batched": (training.BatchedData(), _batched),
}
in_both_forms = pytest.mark.parametrize("form", _FORMS)


# Class counts, and the logits before the loss.


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


@in_both_forms
def test_what_is_kept_goes_from_step_to_step_and_ends_with_the_round(form):
    norm = 3.0
    process = linear.build(
        _Rolling(),
        client_data=_FORMS[form][0],
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


def test_a_papers_symbol_is_answered_by_what_it_is_called():
    with pytest.raises(TypeError, match=r"no setting 'mu' \(did you mean strength\?\)"):
        methods.FedProx(mu=0.1)
    with pytest.raises(TypeError, match="FedProx has no setting 'rho'; it has strengt"):
        methods.FedProx(rho=0.1)
    assert methods.FedProx(0.5) == methods.FedProx(strength=0.5)
    assert dataclasses.replace(methods.FedProx(), strength=0.5).strength == 0.5
