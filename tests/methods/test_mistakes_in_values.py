"""Mistakes that trained something else without a word: each is told, or is none."""

import dataclasses
import re

import numpy as np
import pytest
import tensorflow as tf

from tff_reg import methods, models, settings, testing, training
from tff_reg.methods import catalogue


def _method(name="mine", base=methods.Method, **body):
    made = type("Mine", (base,), {"name": name, **body})
    return dataclasses.dataclass(frozen=True)(made)()


def _refused(words, *parts, error=ValueError, **arguments):
    with pytest.raises(error) as caught:
        testing.train(list(parts), 1, **arguments)
    assert re.search(words, str(caught.value)), str(caught.value)


def _weights(*parts):
    return testing.train(list(parts), 1).weights


def _same(one, other):
    return all(np.array_equal(a, b) for a, b in zip(one, other))


def _zero_state(self, local):
    return [tf.zeros_like(w) for w in local.weights]


def test_what_keep_changes_in_place_is_not_the_steps_gradient():
    def keep(self, local, gradient):
        for i, state in enumerate(local.state):
            gradient[i] = 0.9 * state + gradient[i]
        return gradient

    assert _same(_weights(_method(begin=_zero_state, keep=keep)), _weights())


def test_keep_may_return_the_weights_themselves():
    def made(copied):
        def keep(self, local, gradient):
            return [tf.identity(w) if copied else w for w in local.weights]

        def correct(self, local, gradient):
            triples = zip(gradient, local.weights, local.state)
            return [g + 0.3 * (w - before) for g, w, before in triples]

        def begin(self, local):
            return list(local.weights)

        return _method(begin=begin, keep=keep, correct=correct)

    assert _same(_weights(made(False)), _weights(made(True)))


def test_shared_memories_must_begin_alike():
    one = _method("aa", client_memory={"h": methods.shared(methods.zeros)})
    other = _method("bb", client_memory={"h": methods.shared(methods.initial_weights)})
    _refused("^aa and bb share the memory 'h'.* other first values", one, other)


@pytest.mark.parametrize("name", ["global", "evaluated", "averaged", "local"])
def test_a_memory_has_no_name_of_a_model(name):
    mine = _method(client_memory={name: methods.zeros})
    _refused(f"^mine.client_memory.*'{name}' is the name of a model", mine)


def test_what_is_read_in_another_branch_only_is_told():
    def finish(self, local):
        zeros = _zero_state(self, local)
        taken = tf.cond(local.num_steps > 1, lambda: list(local.taken), lambda: zeros)
        return methods.Finished(memory={"own": taken})

    def term(self, step):
        def penalty():
            found = [tf.reduce_mean(a**2) for a in step.outputs.activations]
            return sum(found, 0.0 * step.task_loss)

        is_big = tf.reduce_sum(step.labels) > 1
        return tf.cond(is_big, penalty, lambda: 0.0 * step.task_loss)

    words = "reads {} in one branch only"
    mine = _method(client_memory={"own": methods.zeros}, finish=finish)
    _refused(
        words.format("taken"), mine, client_optimizer_fn=training.build_sgd(0.1, 0.9)
    )
    _refused(words.format("activations"), _method(term=term))


def test_a_client_memory_that_nothing_changes_is_refused():
    mine = _method(client_memory={"s": methods.zeros})
    words = "nothing changes the memory 's': return its"
    _refused(f"^mine.client_memory: {words}", mine)
    finish = {"finish": lambda self, local: methods.Finished(memory={})}
    mine = _method(client_memory={"s": methods.zeros}, **finish)
    _refused(f"^mine.client_memory: {words}", mine)


def test_the_loss_of_a_gradient_rule_is_a_scalar_of_the_weights():
    def rule(loss):
        return _method(gradient=lambda self, local, gradient_at: gradient_at(loss=loss))

    _refused("^mine.gradient.*loss of gradient_at must be", rule(lambda s: s.labels))
    constant = rule(lambda step: tf.constant(1.0, tf.float64))
    _refused("^mine.gradient.*its loss reaches no weight", constant)


def test_the_value_of_a_parents_setting_needs_its_type():
    with pytest.raises(methods.ContractError, match="strength: float = "):
        type("Mine", (methods.FedProx,), {"name": "mine", "strength": 0.5})


def test_settings_without_the_decorator_are_refused():
    class Mine(methods.FedProx):
        name = "mine"
        strength: float = settings.setting(0.5, help="x")

    with pytest.raises(methods.ContractError, match="dataclass.frozen=True"):
        Mine()


def test_a_term_of_constants_is_refused_where_it_is_zero_at_first():
    def term(self, step):
        pairs = zip(step.weights, step.global_weights)
        return tf.add_n(
            [tf.reduce_sum((tf.stop_gradient(w) - g) ** 2) for w, g in pairs]
        )

    _refused("^mine.term .*reaches no weight", _method(term=term))


@pytest.mark.parametrize("item", [None, 0])
def test_memories_are_read_only(item):
    def finish(self, local):
        if item is None:
            local.memory["s"] = [w + 1.0 for w in local.weights]
        else:
            local.memory["s"][item] = local.weights[item] + 1.0
        return methods.Finished(memory=local.memory)

    mine = _method(client_memory={"s": methods.zeros}, finish=finish)
    _refused("^mine.finish .*does not support item assignment", mine)


def test_the_value_of_a_parents_setting_needs_the_decorator():
    class Mine(methods.FedProx):
        name = "mine"
        strength: float = 0.5

    with pytest.raises(methods.ContractError, match="would not count: write @datacl"):
        Mine()


@pytest.mark.parametrize(
    ("name", "wrap"),
    [("correc", tf.function), ("corect", staticmethod), ("penalty", lambda f: f)],
)
def test_a_function_that_is_no_hook_is_refused(name, wrap):
    def function(self, local, gradient):
        return gradient

    with pytest.raises(methods.ContractError, match=f"has '{name}'"):
        _method(**{name: wrap(function)})


@pytest.mark.parametrize("constant", [tf.stop_gradient, lambda x: x.numpy(), float])
def test_a_term_that_reaches_no_weight_is_refused(constant):
    def term(self, step):
        return constant(tf.reduce_mean(step.outputs.logits**2))

    _refused("^mine.term .*reaches no weight", _method(term=term))


@pytest.mark.parametrize("name", ["term", "share", "not_finite"])
def test_a_measurement_has_no_name_of_ours(name):
    def term(self, step):
        return methods.Term(step.task_loss, measurements={name: step.task_loss})

    def change_batch(self, batch, key):
        return methods.Change(batch, {name: tf.constant(7.0)})

    _refused(f"^mine.term .*{name!r} is reported", _method(term=term))
    _refused(f"change_batch .*{name!r} is", _method(change_batch=change_batch))


def test_a_memorys_parts_keep_their_names():
    def first(weights):
        return {"m": methods.zeros(weights), "v": methods.initial_weights(weights)}

    def finish(self, local):
        old = local.memory["s"]
        return methods.Finished({"s": {"moment": old["m"], "average": old["v"]}})

    mine = _method(client_memory={"s": first}, finish=finish)
    _refused("^mine.finish .*memory 's' must hold .*'m'.*'v'", mine)


def test_one_pair_of_targets_has_its_weight():
    def change_batch(self, batch, key):
        ((labels, _),) = batch.targets
        return methods.Change(batch._replace(targets=[(labels, 0.0)]), {})

    mine = _method(change_batch=change_batch)
    assert _same(_weights(mine), testing.train([], 0).weights)


def _moving(self, seen, *_):
    for weight in seen.weights:
        weight.assign(1.5 * weight)
    return seen.state if hasattr(seen, "state") else seen.task_loss


@pytest.mark.parametrize("hook", ["begin", "term", "keep"])
def test_only_the_optimiser_moves_the_weights(hook):
    # As long as the hooks themselves, for the check of their arguments.
    hooks = {
        "begin": lambda self, local: _moving(self, local),
        "term": lambda self, step: _moving(self, step),
        "keep": lambda self, local, gradient: _moving(self, local),
    }
    words = f"^mine.{hook} .*assigns to the model's weights.*start"
    _refused(words, _method(**{hook: hooks[hook]}))


@pytest.mark.parametrize("where", ["client_memory", "server_memory"])
def test_a_memory_begins_with_the_same_numbers_in_every_run(where):
    drawn = {"own": lambda weights: [tf.random.normal(w.shape) for w in weights]}
    words = f"^mine.{where}: called again .* gives other numbers"
    _refused(words, _method(**{where: drawn}))


def test_no_hook_changes_the_statistics():
    def term(self, step):
        for statistic in step.network.non_trainable_variables:
            statistic.assign(statistic + 1.0)
        return step.task_loss

    sgd = training.build_sgd(0.1)
    model_fn = models.build_model_fn(
        "resnet20", image_shape=(8, 8, 3), num_classes=3, norm="batch", seed=0
    )
    with pytest.raises(ValueError, match="^mine.term .*assigns to the model's weights"):
        training.build_regularized(model_fn, [_method(term=term)], sgd)


_CALLS = [0]


def _counted(gradient):
    _CALLS[0] += 1
    return [_CALLS[0] * g for g in gradient]


def _edited(local, gradient):
    state = local.memory["own"]
    state[0] = state[0] + 1.0
    return [g + s for g, s in zip(gradient, state)]


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (
            {"correct": lambda self, _, g: [np.random.normal() * x for x in g]},
            "^mine.correct .*step.key",
        ),
        (
            {
                "correct": lambda self, _, g: [
                    x + tf.random.normal(x.shape, dtype=x.dtype) for x in g
                ]
            },
            "^mine.correct .*other numbers.*step.key",
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
            {
                "gradient": lambda self, local, gradient_at: gradient_at(
                    [tf.random.normal(w.shape, dtype=w.dtype) for w in local.weights]
                )
            },
            "^mine.gradient .*other numbers",
        ),
        (
            {"correct": lambda self, local, gradient: _counted(gradient)},
            "^mine.correct .*counts its calls",
        ),
        (
            {
                "client_memory": {"own": methods.zeros},
                "correct": lambda self, local, gradient: _edited(local, gradient),
            },
            "^mine.correct .*does not support item assignment",
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
        (
            {"next_model": lambda self, server: _counted(server.weights)},
            "^mine.next_model .*counts its calls",
        ),
        (
            {
                "broadcast": lambda self, weights, memory: [
                    w + tf.random.normal(w.shape, dtype=w.dtype) for w in weights
                ]
            },
            "^mine.broadcast .*other numbers",
        ),
    ],
)
def test_a_hook_is_a_function_of_its_arguments(body, words):
    _refused(words, _method(**body))


def test_settings_that_two_methods_require_differently_are_the_users():
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


@pytest.mark.parametrize(
    "name, value, words",
    [
        ("uploads", "change", "uploads must be a tuple"),
        ("client_memory", ["own"], "client_memory must be a dict"),
    ],
)
def test_declarations_of_another_kind_are_refused(name, value, words):
    with pytest.raises(methods.ContractError, match=words):
        type("Mine", (methods.Method,), {"name": "mine", name: value})


def test_a_misspelt_argument_of_a_setting_is_named():
    with pytest.raises(TypeError, match="'maximun' .did you mean maximum"):
        settings.setting(1.0, maximun=3)


def test_random_numbers_times_a_term_that_is_zero_at_the_start_are_refused():
    def term(self, step):
        pairs = zip(step.weights, step.global_weights)
        near = tf.add_n([tf.reduce_sum((w - g) ** 2) for w, g in pairs])
        return near * tf.cast(tf.random.uniform([]), near.dtype)

    def distil(self, step):
        teacher = step.outputs_of("global").logits
        apart = tf.reduce_sum((step.outputs.logits - teacher) ** 2)
        return apart * tf.cast(tf.random.uniform([]), apart.dtype)

    for hook in (term, distil):
        _refused("^mine.term .*other numbers", _method(term=hook))
