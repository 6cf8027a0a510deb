"""Mistakes in a method of one's own: none trains something else, each says what to do.

A message names the method, the hook and the author's line.
"""

import dataclasses
import re

import numpy as np
import pytest
import tensorflow as tf

from tests.methods import linear
from tff_reg import methods, settings, testing

pytestmark = pytest.mark.usefixtures("in_process")


def _method(**body):
    """A dataclass of a method `mine` with hooks and attributes."""
    body = {"name": "mine", **body}
    return dataclasses.dataclass(frozen=True)(type("Mine", (methods.Method,), body))


_CALLS = [0]


def _counted(gradient):
    _CALLS[0] += 1
    return [_CALLS[0] * g for g in gradient]


def _message_of(error, build):
    with pytest.raises(error) as caught:
        build()
    return str(caught.value)


# When the class is made.


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"trem": lambda self, step: 0.0}, "'trem', which is no hook .*mean 'term'?"),
        ({"client_memry": {}}, "'client_memry', .*did you mean 'client_memory'?"),
        ({"term": lambda self: 0.0}, r"term must take \(self, step\)"),
        ({"exclusive": ("DRFT",)}, "constants of tff_reg.methods: DRIFT, SERVER"),
        (
            {"taus": [1.0], "__annotations__": {"taus": "list"}},
            "taus is a setting, .* cannot be a list: give a tuple",
        ),
        (
            {"client_memory": {}, "__annotations__": {"client_memory": dict}},
            "client_memory is a setting, .*: give it no type",
        ),
        ({"needs": ("NETWORK",)}, "ONE_LABEL, UNIFORM_WEIGHTING, EXACT_UPLOADS"),
    ],
)
def test_unknown_attributes_are_refused_when_the_class_is_made(body, words):
    message = _message_of(methods.ContractError, lambda: _method(**body))
    assert message.startswith("Mine (test_mistakes.py")
    assert re.search(words, message), message


# When a process is built.

_NAN = float("nan")


def _kernel_only(self, local, gradient):
    return gradient[:1]


def _scalars(self, server):
    return [tf.constant(0.0, tf.float64)] * 2


def _by(loss):
    return {"gradient": lambda self, local, gradient_at: gradient_at(loss=loss)}


def _constant_term(self, step):
    pairs = zip(step.weights, step.global_weights)
    return tf.add_n([tf.reduce_sum((tf.stop_gradient(w) - g) ** 2) for w, g in pairs])


def _zero_times_random(self, step):
    pairs = zip(step.weights, step.global_weights)
    near = tf.add_n([tf.reduce_sum((w - g) ** 2) for w, g in pairs])
    return near * tf.cast(tf.random.uniform([]), near.dtype)


def _assigning_term(self, step):
    for weight in step.weights:
        weight.assign(1.5 * weight)
    return step.task_loss


def _changing_memory(self, local):
    local.memory["s"][0] = local.weights[0] + 1.0
    return methods.Finished(memory=local.memory)


_S = {"s": methods.zeros}


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (
            {"term": lambda self, step: step.outputs.logits[:, 0]},
            r"^mine.term .*: the term must be a float64 scalar, is float64 \[2\]",
        ),
        (
            {"term": lambda self, step: 1 / 0},
            "^mine.term .test_mistakes.py, line [0-9]+, .*1 / 0.*: ZeroDivisionError",
        ),
        (
            {"term": lambda self, step: step.outputs_of("globl").logits},
            "^mine.term .*no model 'globl'; did you mean 'global'",
        ),
        (
            {
                "term": lambda self, step: methods.Term(
                    step.task_loss, measurements={"logits": step.outputs.logits}
                )
            },
            "^mine.term .*the measurement 'logits' must be a number, is float64",
        ),
        (
            {"finish": lambda self, local: methods.Finished(share=tf.constant(1.0))},
            "^mine.finish .*share must be a mapping of names, is float32",
        ),
        (
            {"correct": _kernel_only},
            "^mine.correct .*the result must be 2 tensors, in order, is 1",
        ),
        (
            {"correct_clipped": lambda self, local, g: [g[1], g[0]]},
            r"^mine.correct_clipped .*tensor 0 of the result must be float64 \[4, 3\]",
        ),
        (
            {"gradient": lambda self, local, gradient_at: list(local.weights)},
            "^mine.gradient .*it never calls gradient_at",
        ),
        (
            {"gradient": lambda self, local, gradient_at: gradient_at([0.0])},
            "^mine.gradient .*the perturbation must be 2 tensors",
        ),
        (
            {"correct": lambda self, local, g: [local.step_size * x for x in g]},
            "^mine.correct .*local.step_size is known only at the end",
        ),
        (
            {"start": lambda self, local: local.global_weights[:1]},
            "^mine.start .*must be 2 tensors",
        ),
        (
            {"keep": lambda self, local, gradient: tuple(gradient)},
            "^mine.keep .*the state must be 0 tensors, in order, is 2",
        ),
        ({"finish": lambda self, local: ({}, {})}, r"^mine.finish .*Finished\(...\)"),
        (
            {"finish": lambda self, local: methods.Finished({"s": local.delta})},
            "^mine.finish .*memory has 's', which the class does not declare",
        ),
        (
            {
                "client_memory": _S,
                "finish": lambda self, local: methods.Finished(
                    {"s": [tf.constant(0.0, tf.float64)] * 2}
                ),
            },
            r"^mine.finish .*tensor 0 of memory 's' must be float64 \[4, 3\]",
        ),
        (
            {"uploads": ("count",), "finish": lambda self, local: methods.Finished()},
            "^mine.finish .*upload lacks count",
        ),
        (
            {"finish": lambda self, local: methods.Finished(scale=[1.0, 2.0])},
            "^mine.finish .*scale must be a number",
        ),
        (
            {
                "server_memory": _S,
                "update_memory": lambda self, server: {"s": _scalars(self, server)},
            },
            r"^mine.update_memory .*tensor 0 of memory 's' must be float64 \[4, 3\]",
        ),
        (
            {"next_model": _scalars},
            r"^mine.next_model .*tensor 0 of the result must be float64 \[4",
        ),
        (
            {"broadcast": lambda self, weights, memory: weights[1:]},
            "^mine.broadcast .*must be 2 tensors",
        ),
        (
            {"change_logits": lambda self, logits, counts: logits[:, :2]},
            r"^mine.change_logits .*must be float64 \[2, 3\], is float64 \[2, 2\]",
        ),
        (
            {"change_batch": lambda self, batch, key: batch},
            r"^mine.change_batch .*must return Change\(Batch, measurements\)",
        ),
        (
            {"client_memory": {"s": 3.0}},
            "^mine.client_memory .*'s' must be a function",
        ),
        (
            {"client_memory": {"global": methods.zeros}},
            "^mine.client_memory.*'global' is the name of a model",
        ),
        ({"client_memory": _S}, "^mine.client_memory: nothing changes the memory 's'"),
        (
            {"client_memory": _S, "finish": _changing_memory},
            "^mine.finish .*does not support item assignment",
        ),
        (
            {
                "server_memory": _S,
                "correct": lambda self, local, g: local.server_memory["s"],
            },
            "^mine.correct .*no memory 's'.*methods.sent",
        ),
        (_by(lambda step: step.labels), "^mine.gradient.*loss of gradient_at must be"),
        (
            _by(lambda step: tf.constant(1.0, tf.float64)),
            "^mine.gradient.*its loss reaches no weight",
        ),
        ({"term": _constant_term}, "^mine.term .*reaches no weight"),
        (
            {
                "term": lambda self, step: methods.Term(
                    step.task_loss, measurements={"share": step.task_loss}
                )
            },
            "^mine.term .*'share' is reported",
        ),
        (
            {"correct": lambda self, local, g: [local.state[0] * x for x in g]},
            "^mine.correct .*what begin returns, and mine has no begin",
        ),
        (
            {"correct": lambda self, local, g: [_NAN * x for x in g]},
            "^mine.correct .*numbers that are not finite",
        ),
        (
            {
                "term": lambda self, step: (
                    step.task_loss * tf.Variable(2.0, dtype=tf.float64)
                )
            },
            "^mine.term .*makes a tf.Variable.*begin.*memory",
        ),
    ],
)
def test_a_hook_that_fails_or_returns_the_wrong_thing_is_named(body, words):
    message = _message_of(methods.HookError, lambda: linear.build(_method(**body)()))
    assert re.search(words, message), message
    assert (
        "test_mistakes.py, line" in message
        or "client_memory" in message
        or ("upload lacks count" in message)
    )
    assert "\n" not in message and len(message) < 400


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (
            {
                "client_memory": {
                    "s": lambda ws: [tf.random.normal(w.shape) for w in ws]
                }
            },
            "^mine.client_memory: called again .* gives other numbers",
        ),
        (
            {"term": _assigning_term},
            "^mine.term .*assigns to the model's weights.*start",
        ),
        # A hook is a function of its arguments.
        (
            {"correct": lambda self, _, g: [np.random.normal() * x for x in g]},
            "^mine.correct .*step.key",
        ),
        ({"term": _zero_times_random}, "^mine.term .*other numbers.*step.key"),
        (
            {"correct": lambda self, local, gradient: _counted(gradient)},
            "^mine.correct .*counts its calls",
        ),
        (
            {
                "server_memory": _S,
                "update_memory": lambda self, server: {
                    "s": [
                        tf.random.normal(d.shape, 0, 1, d.dtype)
                        for d in server.delta_sum
                    ]
                },
            },
            "^mine.update_memory .*other numbers",
        ),
    ],
)
def test_a_hook_that_is_no_pure_function_is_named_in_eager_mode(body, words):
    mine = _method(**body)()
    with pytest.raises(methods.HookError) as caught:
        testing.assert_pure(mine)
    assert re.search(words, str(caught.value)), str(caught.value)


def test_reading_in_one_branch_only_is_refused():
    def term(self, step):
        def penalty():
            found = [tf.reduce_mean(a**2) for a in step.outputs.activations]
            return sum(found, 0.0 * step.task_loss)

        is_big = tf.reduce_sum(step.labels) > 1
        return tf.cond(is_big, penalty, lambda: 0.0 * step.task_loss)

    with pytest.raises(ValueError, match="reads activations in one branch only"):
        testing.train([_method(term=term)()], 1)


def test_shared_memories_must_begin_alike():
    one, other = (
        _method(name=name, client_memory={"h": methods.shared(initial)})()
        for name, initial in (("aa", methods.zeros), ("bb", methods.initial_weights))
    )
    words = "^aa and bb share the memory 'h'.* other first values"
    with pytest.raises(ValueError, match=words):
        linear.build(one, other)


def test_settings_without_the_decorator_are_refused():
    class Mine(methods.FedProx):
        name = "mine"
        strength: float = settings.setting(0.5, help="x")

    with pytest.raises(methods.ContractError, match="dataclass.frozen=True"):
        Mine()


def test_two_methods_with_memories_of_one_name_have_their_own():
    def counting(by):
        def finish(self, local):
            return methods.Finished({"n": local.memory["n"] + by})

        return finish

    def zero(weights):
        return tf.constant(0.0)

    first = _method(client_memory={"n": zero}, finish=counting(1.0))()
    second = _method(name="other", client_memory={"n": zero}, finish=counting(10.0))()
    process = linear.build(first, second)
    state = process.initialize()
    data = [linear.whole(*linear.examples(0))]
    states = [process.initial_client_state(state)]
    for _ in range(2):
        output = process.next(state, data, states)
        state, states = output.state, output.client_states
    assert states[0]["mine/n"] == 2.0 and states[0]["other/n"] == 20.0


# While it trains.


def _nan():
    return tf.constant(_NAN, tf.float64)


@pytest.mark.parametrize(
    "body",
    [
        {
            "client_memory": {"s": methods.zeros},
            "finish": lambda self, local: methods.Finished(
                {"s": [_NAN * w for w in local.delta]}
            ),
        },
        {
            "uploads": ("count",),
            "finish": lambda self, local: methods.Finished(upload={"count": _nan()}),
        },
    ],
    ids=["memory", "upload"],
)
def test_non_finite_client_values_are_counted_by_method(body):
    mine = _method(**body)()
    process = linear.build(mine)
    state = process.initialize()
    data = [linear.whole(*linear.examples(0))]
    if mine.client_memory:
        first = [process.initial_client_state(state)]
        output = process.next(state, data, first)
        linear.assert_close(output.client_states[0], first[0])
    else:
        output = process.next(state, data)
    measured = output.metrics["client_work"]["train"]
    assert measured["mine/not_finite"] == 1 and measured["rejected_clients"] == 1


def test_only_the_method_with_a_nan_term_is_reported():
    class Broken(methods.Method):
        name = "broken"

        def term(self, step):
            return _NAN * tf.reduce_sum(step.weights[0] ** 2)

    chosen = [methods.FedProx(0.1), Broken(), methods.KD(0.1)]
    process = linear.build(*chosen)
    data = [linear.whole(*linear.examples(0))]
    output = process.next(process.initialize(), data)
    measured = output.metrics["client_work"]["train"]
    counts = {m.name: measured[f"{m.name}/not_finite"] for m in chosen}
    assert counts == {"fedprox": 0, "broken": 1, "kd": 0}
    assert measured["rejected_clients"] == 1


@pytest.mark.parametrize("hook", ["update_memory", "next_model"])
def test_non_finite_server_values_leave_memory_and_model_unchanged(hook):
    def update_memory(self, server):
        factor = _NAN if hook == "update_memory" else 1.0
        return {"s": [factor * total for total in server.delta_sum]}

    def next_model(self, server):
        factor = _NAN if hook == "next_model" else 1.0
        return [factor * w for w in server.weights]

    mine = _method(
        server_memory=_S, update_memory=update_memory, next_model=next_model
    )()
    process = linear.build(mine)
    state = process.initialize()
    output = process.next(state, [linear.whole(*linear.examples(0))])
    assert output.metrics["server"]["mine/not_finite"] == 1
    linear.assert_close(
        linear.weights_of(process, output.state), linear.weights_of(process, state)
    )
    linear.assert_close(
        output.state.finalizer["memory"]["mine/s"],
        [np.zeros([linear.FEATURES, linear.CLASSES]), np.zeros(linear.CLASSES)],
    )


def test_updates_are_relative_to_the_start_of_local_training():
    seen = methods.Finished

    def start(self, local):
        return [w + 0.5 for w in local.global_weights]

    def finish(self, local):
        moved = [w - s for w, s in zip(local.weights, local.start)]
        away = [s - g for s, g in zip(local.start, local.global_weights)]
        return seen({"delta": moved, "away": away})

    starting = _method(start=start)()
    other = _method(
        name="other",
        client_memory={"delta": methods.zeros, "away": methods.zeros},
        finish=finish,
    )()
    process = linear.build(starting, other, steps=1)
    rng = np.random.default_rng(3)
    weights = [
        rng.normal(size=(linear.FEATURES, linear.CLASSES)),
        rng.normal(size=linear.CLASSES),
    ]
    state = linear.started(process, weights)
    data = linear.examples(0)
    output = process.next(
        state, [linear.whole(*data)], [process.initial_client_state(state)]
    )
    expected = [
        -linear.RATE * g for g in linear.gradient([w + 0.5 for w in weights], *data)
    ]
    (remembered,) = output.client_states
    linear.assert_close(remembered["other/delta"], expected)
    linear.assert_close(
        remembered["other/away"], [np.full_like(w, 0.5) for w in weights]
    )
    # The server's model moves by the client's difference.
    linear.assert_close(
        linear.weights_of(process, output.state),
        [w + e for w, e in zip(weights, expected)],
    )
