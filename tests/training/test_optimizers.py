import dataclasses

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.methods import linear
from tff_reg import training
from tff_reg.training import optimizers, updater as updater_lib

WEIGHTS = (np.array([1.0, -2.0]), np.array([[3.0]]))
GRADIENTS = [
    (np.array([0.5, 0.25]), np.array([[-1.0]])),
    (np.array([-0.5, 1.0]), np.array([[2.0]])),
    (np.array([0.0, 0.5]), np.array([[1.0]])),
]


def _specs():
    return tuple(tf.TensorSpec(w.shape, tf.float64) for w in WEIGHTS)


def _run(optimizer):
    state = optimizer.initialize(_specs())
    weights = tuple(tf.constant(w) for w in WEIGHTS)
    for gradients in GRADIENTS:
        state, weights = optimizer.next(
            state, weights, tuple(tf.constant(g) for g in gradients)
        )
    return weights


def _run_in_place(optimizer):
    variables = [tf.Variable(w) for w in WEIGHTS]
    updater = updater_lib.Updater(optimizer, variables)
    hparams = optimizer.get_hparams(optimizer.initialize(_specs()))
    for _ in range(2):  # The second time from anew: buffers must not live on.
        for variable, weight in zip(variables, WEIGHTS):
            variable.assign(weight)
        state = updater.begin(
            {k: tf.constant(v, tf.float64) for k, v in hparams.items()}
        )
        for gradients in GRADIENTS:
            state = updater.step(state, [tf.constant(g) for g in gradients])
    return variables


@pytest.mark.parametrize("run", [_run, _run_in_place])
@pytest.mark.parametrize(
    "momentum, nesterov", [(0.0, False), (0.9, False), (0.9, True)]
)
@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_steps_are_those_of_pytorch(run, momentum, nesterov, weight_decay):
    optimizer = optimizers.build_sgd(
        0.1, momentum, nesterov=nesterov, weight_decay=weight_decay
    )
    for i, weight in enumerate(WEIGHTS):
        weight, buffer = weight.copy(), None
        for gradients in GRADIENTS:
            direction = gradients[i] + weight_decay * weight
            if momentum:
                # PyTorch's first buffer is the first gradient itself.
                buffer = direction if buffer is None else momentum * buffer + direction
                direction = direction + momentum * buffer if nesterov else buffer
            weight = weight - 0.1 * direction
        np.testing.assert_allclose(run(optimizer)[i], weight, rtol=1e-12)


def test_any_optimizer_of_tff_takes_steps_on_variables():
    adam = tff.learning.optimizers.build_adam(0.1)
    state, weights = adam.initialize(_specs()), tuple(tf.constant(w) for w in WEIGHTS)
    for gradients in GRADIENTS:
        gradients = tuple(tf.constant(g) for g in gradients)
        state, weights = adam.next(state, weights, gradients)
    for expected, value in zip(weights, _run_in_place(adam)):
        # Python numbers are rounded to float32 on the way into `next`.
        np.testing.assert_allclose(value, expected, rtol=1e-6)


def test_a_missing_gradient_counts_as_zero():
    optimizer = optimizers.build_sgd(0.1, weight_decay=0.5)
    weights = (tf.constant([2.0]), tf.constant([4.0]))
    state = optimizer.initialize(tuple(tf.TensorSpec([1]) for _ in weights))
    _, weights = optimizer.next(state, weights, (None, tf.constant([1.0])))
    np.testing.assert_allclose(weights, [[1.9], [3.7]])


def test_hparams_are_the_non_zero_settings_and_can_be_set():
    plain = optimizers.build_sgd(0.1)
    assert list(plain.get_hparams(plain.initialize(_specs()))) == ["learning_rate"]
    optimizer = optimizers.build_sgd(0.1, 0.9, nesterov=True, weight_decay=0.01)
    state = optimizer.initialize(_specs())
    hparams = optimizer.get_hparams(state)
    assert hparams == dict(learning_rate=0.1, momentum=0.9, weight_decay=0.01)
    state = optimizer.set_hparams(state, dict(hparams, learning_rate=0.0))
    weights = tuple(tf.constant(w) for w in WEIGHTS)
    _, moved = optimizer.next(state, weights, weights)
    np.testing.assert_array_equal(moved[0], WEIGHTS[0])


@pytest.mark.parametrize(
    "arguments, message",
    [
        (dict(learning_rate=-1.0), "learning_rate must be at least 0"),
        (dict(learning_rate=0.1, momentum=1.0), r"momentum must be in \[0, 1\)"),
        (dict(learning_rate=0.1, nesterov=True), "needs a momentum"),
    ],
)
def test_raises_on_values_out_of_range(arguments, message):
    with pytest.raises(ValueError, match=message):
        optimizers.build_sgd(**arguments)


@pytest.mark.parametrize(
    "arguments, message",
    [
        (dict(kind="lamb"), "adam, yogi or adagrad, but is 'lamb'"),
        (dict(beta1=1.0), r"beta_1 must be in \[0, 1\)"),
        (dict(epsilon=0.0), "epsilon must be above 0"),
    ],
)
def test_raises_on_adaptive_values_out_of_range(arguments, message):
    with pytest.raises(ValueError, match=message):
        optimizers.build_adaptive(
            **dict(dict(kind="adam", learning_rate=1), **arguments)
        )


@pytest.mark.usefixtures("in_process")
@pytest.mark.parametrize("kind", ["sgd", "adam", "adamw", "adagrad", "rmsprop"])
def test_a_kept_optimizer_goes_on_as_if_there_were_one_round(kind):
    chosen = {"client_optimizer": kind, "client_learning_rate": 0.01}
    if kind == "sgd":
        chosen["client_momentum"] = 0.9
    of = training.ProcessSettings(batch_size=8, num_clients=1, **chosen)
    found = {}
    for is_kept, rounds in ((True, 3), (True, 1), (False, 3)):
        process = training.build_from_settings(
            "fedavg",
            linear.model_fn,
            dataclasses.replace(
                of, keep_client_optimizer=is_kept, local_epochs=3 // rounds
            ),
            {},
        )
        start = [np.ones((linear.FEATURES, linear.CLASSES)), np.zeros(linear.CLASSES)]
        state, kept = linear.started(process, start), []
        if is_kept:
            kept = [[process.initial_client_state(state)]]
        for _ in range(rounds):
            output = process.next(state, [linear.whole(*linear.examples(1))], *kept)
            state, kept = output.state, [output.client_states] if is_kept else []
        found[is_kept, rounds] = process.get_model_weights(state).trainable
    one, three, anew = found[True, 1], found[True, 3], found[False, 3]
    for a, b, c in zip(one, three, anew):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-12)
        assert not np.allclose(a, c, atol=1e-6)


@pytest.mark.parametrize("kind", ["adam", "adamw", "adagrad", "rmsprop"])
def test_client_optimizers_step_by_the_formulas_of_the_docs(kind):
    rate, epsilon, decay, beta1 = 0.1, 1e-7, 0.01 if kind == "adamw" else 0.0, 0.9
    beta2 = 0.9 if kind == "rmsprop" else 0.999
    given = training.ProcessSettings.of(
        "fedavg", client_optimizer=kind, client_learning_rate=rate
    )
    optimizer = optimizers.of_clients(given)
    weights = (tf.constant([0.5, -1.0], tf.float64),)
    expected, m, v = weights[0].numpy(), 0.0, 0.1 if kind == "adagrad" else 0.0
    state = optimizer.initialize((tf.TensorSpec([2], tf.float64),))
    for k, g in enumerate(np.array([[1e-4, 2.0], [-3e-4, 1.0]]), 1):
        state, weights = optimizer.next(state, weights, (tf.constant(g),))
        if kind == "adagrad":
            v = v + g**2
            step = g / np.sqrt(v + epsilon)
        else:
            v = beta2 * v + (1 - beta2) * g**2
            m = beta1 * m + (1 - beta1) * g
            scale = np.sqrt(1 - beta2**k) / (1 - beta1**k)
            top = g if kind == "rmsprop" else scale * m
            step = top / (np.sqrt(v) + epsilon)
        expected = expected - rate * (step + decay * expected)
    np.testing.assert_allclose(weights[0], expected, rtol=1e-6)
