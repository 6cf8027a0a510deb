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
from tff_reg.methods import fedsam, method
from tff_reg.models import learning_model

pytestmark = pytest.mark.usefixtures("in_process")

RATE = linear.RATE
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


def _batched(features, labels, size=4):
    """A client's data set as batches."""
    element = {"x": features, "y": labels}
    return tf.data.Dataset.from_tensor_slices(element).batch(size)


def _measured(output):
    return output.metrics["client_work"]["train"]


def _weights(process, output):
    return linear.weights_of(process, output.state)


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
def test_class_counts_are_known_at_begin(form):
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


@in_both_forms
def test_step_state_is_carried_between_steps_but_not_rounds(form):
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


def test_a_papers_symbol_is_answered_with_the_settings_name():
    with pytest.raises(TypeError, match=r"no setting 'mu' \(did you mean strength\?\)"):
        methods.FedProx(mu=0.1)
    with pytest.raises(TypeError, match="FedProx has no setting 'rho'; it has strengt"):
        methods.FedProx(rho=0.1)
    assert methods.FedProx(0.5) == methods.FedProx(strength=0.5)
    assert dataclasses.replace(methods.FedProx(), strength=0.5).strength == 0.5
