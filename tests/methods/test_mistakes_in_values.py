"""Mistakes that trained something else without a word: each is told, or is none."""

import dataclasses
import re

import numpy as np
import pytest
import tensorflow as tf

from tff_reg import methods, settings, testing, training
from tff_reg.methods import catalogue


def _method(name="mine", base=methods.Method, **body):
    made = type("Mine", (base,), {"name": name, **body})
    return dataclasses.dataclass(frozen=True)(made)()


def _refused(words, *parts, error=ValueError, **arguments):
    with pytest.raises(error) as caught:
        testing.train(list(parts), 1, **arguments)
    assert re.search(words, str(caught.value)), str(caught.value)


def test_shared_memories_must_begin_alike():
    one = _method("aa", client_memory={"h": methods.shared(methods.zeros)})
    other = _method("bb", client_memory={"h": methods.shared(methods.initial_weights)})
    _refused("^aa and bb share the memory 'h'.* other first values", one, other)


def test_a_memory_has_no_name_of_a_model():
    mine = _method(client_memory={"global": methods.zeros})
    _refused("^mine.client_memory.*'global' is the name of a model", mine)


def test_reading_in_one_branch_only_is_refused():
    def term(self, step):
        def penalty():
            found = [tf.reduce_mean(a**2) for a in step.outputs.activations]
            return sum(found, 0.0 * step.task_loss)

        is_big = tf.reduce_sum(step.labels) > 1
        return tf.cond(is_big, penalty, lambda: 0.0 * step.task_loss)

    _refused("reads activations in one branch only", _method(term=term))


def test_a_client_memory_that_nothing_changes_is_refused():
    mine = _method(client_memory={"s": methods.zeros})
    _refused("^mine.client_memory: nothing changes the memory 's': return its", mine)


def test_the_loss_of_a_gradient_rule_is_a_scalar_of_the_weights():
    def rule(loss):
        return _method(gradient=lambda self, local, gradient_at: gradient_at(loss=loss))

    _refused("^mine.gradient.*loss of gradient_at must be", rule(lambda s: s.labels))
    constant = rule(lambda step: tf.constant(1.0, tf.float64))
    _refused("^mine.gradient.*its loss reaches no weight", constant)


def test_settings_without_the_decorator_are_refused():
    class Mine(methods.FedProx):
        name = "mine"
        strength: float = settings.setting(0.5, help="x")

    with pytest.raises(methods.ContractError, match="dataclass.frozen=True"):
        Mine()


def test_a_term_that_depends_on_no_weight_is_refused():
    def term(self, step):
        pairs = zip(step.weights, step.global_weights)
        return tf.add_n(
            [tf.reduce_sum((tf.stop_gradient(w) - g) ** 2) for w, g in pairs]
        )

    _refused("^mine.term .*reaches no weight", _method(term=term))


def test_memories_are_read_only():
    def finish(self, local):
        local.memory["s"][0] = local.weights[0] + 1.0
        return methods.Finished(memory=local.memory)

    mine = _method(client_memory={"s": methods.zeros}, finish=finish)
    _refused("^mine.finish .*does not support item assignment", mine)


def test_a_measurement_has_no_name_of_ours():
    def term(self, step):
        return methods.Term(step.task_loss, measurements={"share": step.task_loss})

    _refused("^mine.term .*'share' is reported", _method(term=term))


def test_only_the_optimiser_moves_the_weights():
    def term(self, step):
        for weight in step.weights:
            weight.assign(1.5 * weight)
        return step.task_loss

    words = "^mine.term .*assigns to the model's weights.*start"
    _refused(words, _method(term=term))


def test_a_memory_begins_with_the_same_numbers_in_every_run():
    drawn = {"own": lambda weights: [tf.random.normal(w.shape) for w in weights]}
    words = "^mine.client_memory: called again .* gives other numbers"
    _refused(words, _method(client_memory=drawn))


_CALLS = [0]


def _counted(gradient):
    _CALLS[0] += 1
    return [_CALLS[0] * g for g in gradient]


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (
            {"correct": lambda self, _, g: [np.random.normal() * x for x in g]},
            "^mine.correct .*step.key",
        ),
        (
            {
                "term": lambda self, step: (
                    step.task_loss * tf.random.uniform([], dtype=tf.float64)
                )
            },
            "^mine.term .*other numbers.*step.key",
        ),
        (
            {"correct": lambda self, local, gradient: _counted(gradient)},
            "^mine.correct .*counts its calls",
        ),
        (
            {
                "term": lambda self, step: (
                    step.task_loss * tf.Variable(2.0, dtype=tf.float64)
                )
            },
            "^mine.term .*makes a tf.Variable.*begin.*memory",
        ),
        (
            {
                "server_memory": {"own": methods.zeros},
                "update_memory": lambda self, server: {
                    "own": [
                        tf.random.normal(d.shape, dtype=d.dtype)
                        for d in server.mean_delta
                    ]
                },
            },
            "^mine.update_memory .*other numbers",
        ),
    ],
)
def test_a_hook_is_a_function_of_its_arguments(body, words):
    _refused(words, _method(**body))


def test_conflicting_required_settings_must_be_given_by_the_user():
    words = "projector: moon requires 'moon', and univarfl requires 'feduv': give the"
    with pytest.raises(settings.SettingError, match=words):
        catalogue.settings("moon+univarfl")
    assert catalogue.settings("moon+univarfl", ["projector"])["projector"] == "moon"
    assert training.ProcessSettings.of("moon+univarfl").client_momentum == 0.9


def test_a_memory_that_is_not_sent_is_told():
    def correct(self, local, gradient):
        return [g + c for g, c in zip(gradient, local.server_memory["c"])]

    mine = _method(correct=correct, server_memory={"c": methods.zeros})
    _refused("^mine.correct .*no memory 'c'.*methods.sent", mine)


def test_randomness_hidden_by_a_zero_factor_is_refused():
    def term(self, step):
        pairs = zip(step.weights, step.global_weights)
        near = tf.add_n([tf.reduce_sum((w - g) ** 2) for w, g in pairs])
        return near * tf.cast(tf.random.uniform([]), near.dtype)

    _refused("^mine.term .*other numbers", _method(term=term))
