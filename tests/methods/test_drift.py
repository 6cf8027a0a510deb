"""What is true of all drift corrections, over rounds of a strongly convex problem."""

import collections

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.methods import linear, one_weight
from tff_reg import methods, training
from tff_reg.methods import all_clients, catalogue, drift, method

pytestmark = pytest.mark.usefixtures("in_process")

STRENGTH = 0.3
_CLASSES = [m for m in catalogue.methods().values() if method.DRIFT in m.exclusive]
# As strong as each other, where they have a strength.
CORRECTIONS = {
    cls.name: cls(**{"strength": STRENGTH} if "strength" in vars(cls) else {})
    for cls in _CLASSES
}


# Slow, as they correct as another does.
_LIKE_ANOTHER = ("mofedsam", "fedgamma", "fedspeed", "feddc")
_ALL = [
    pytest.param(name, marks=[pytest.mark.slow] * (name in _LIKE_ANOTHER))
    for name in CORRECTIONS
]


def _that(holds):
    return pytest.mark.parametrize("name", [m.name for m in _CLASSES if holds(m)])


def _build(correction, **arguments):
    """The process of one or none, with the mean of all clients' last models."""
    parts = [correction] if correction else []
    return linear.build(*parts, all_clients.AllClients(), **arguments)


def test_alpha_of_a_client_without_examples_is_zero():
    local = one_weight.local(relative_size=tf.constant(0.0, tf.float64))
    assert float(drift.alpha_of(0.1, local)) == 0.0


@pytest.mark.parametrize("name", _ALL)
def test_diverging_and_empty_clients_change_nothing(name):
    process = _build(CORRECTIONS[name])
    good, other = (linear.whole(*linear.examples(seed)) for seed in (0, 1))
    state, (first, second, third) = linear.run(
        process, process.initialize(), [good, other, other], 1
    )
    alone = process.next(state, [good], [first])
    output = process.next(
        state, [good, linear.broken(), linear.empty()], [first, second, third]
    )
    linear.assert_close(output.state.finalizer, alone.state.finalizer, 0.0)
    weights = [linear.weights_of(process, end.state) for end in (output, alone)]
    linear.assert_close(*weights, 0.0)
    linear.assert_close(
        output.client_states, [alone.client_states[0], second, third], 0.0
    )
    assert any(np.any(value) for value in tf.nest.flatten(second))
    # And where nobody trains.
    output = process.next(state, [linear.broken(), linear.empty()], [second, third])
    before, after = state.finalizer["memory"], output.state.finalizer["memory"]
    linear.assert_close(after, before, 0.0)
    weights = [linear.weights_of(process, each) for each in (output.state, state)]
    linear.assert_close(*weights, 0.0)
    linear.assert_close(output.client_states, [second, third], 0.0)


def _optimizers(decay):
    return {
        "nesterov": training.build_sgd(
            linear.RATE, 0.9, nesterov=True, weight_decay=decay
        ),
        "adam": tff.learning.optimizers.build_adam(linear.RATE),
    }


def _mean_gradient(optimizer, decay, weights, examples, steps):
    """That of a client's steps with an optimiser, the weight decay's among it."""
    weights = tuple(tf.constant(w) for w in weights)
    state = optimizer.initialize(
        tuple(tf.TensorSpec(w.shape, w.dtype) for w in weights)
    )
    total = [np.zeros(w.shape) for w in weights]
    for _ in range(steps):
        own = linear.gradient([w.numpy() for w in weights], *examples)
        total = [t + g + decay * w.numpy() for t, g, w in zip(total, own, weights)]
        state, weights = optimizer.next(
            state, weights, tuple(tf.constant(g) for g in own)
        )
    return [t / steps for t in total]


class _Half(training.schedules.Schedule):
    def __call__(self, round_num):
        return 0.5


@pytest.mark.parametrize("kind", _optimizers(0.0))
def test_the_mean_gradient_of_a_client_is_right_for_any_optimizer(kind):
    decay_of_rate = _Half()(0)
    # TFF's own have a float32 rate.
    decay, atol = (0.1, 1e-12) if kind == "nesterov" else (0.0, 1e-6)
    optimizer = _optimizers(decay)[kind]
    examples = [linear.examples(seed) for seed in range(2)]
    start = [np.full((linear.FEATURES, linear.CLASSES), 0.5), np.ones(linear.CLASSES)]
    # Round 1 has the rate times `decay_of_rate`.
    slower = _optimizers(decay)[kind]
    hparams = slower.get_hparams(slower.initialize(()))
    hparams["learning_rate"] *= decay_of_rate

    class Slower:
        initialize = staticmethod(
            lambda specs: slower.set_hparams(slower.initialize(specs), hparams)
        )
        next = staticmethod(slower.next)

    means = [_mean_gradient(Slower, decay, start, own, 5) for own in examples]
    process = linear.build(
        methods.SCAFFOLD(),
        client_optimizer_fn=optimizer,
        learning_rate_schedule=_Half(),
    )
    state = linear.started(process, start)
    clients = [process.initial_client_state(state)] * 2
    data_sets = [linear.whole(*own) for own in examples]
    output = process.next(state, data_sets, clients)
    for own, mean in zip(output.client_states, means):
        linear.assert_close(own["scaffold/s"], [decay_of_rate * g for g in mean], atol)


def _minimum(examples):
    """Where the mean of the clients' losses is least, as our weights."""
    features = np.concatenate([x for x, _ in examples])
    labels = np.concatenate([y for _, y in examples])
    with_one = np.c_[features, np.ones(len(features))]
    one_hot = np.eye(linear.CLASSES)[labels]
    solution = np.linalg.lstsq(with_one, one_hot, rcond=None)[0]
    return [solution[:-1], solution[-1]]


# What corrects by memories of the clients. The gradient of others is that of other
# weights, which is not 0 there, or is not corrected there.
_AT_REST = [
    name
    for name, correction in CORRECTIONS.items()
    if correction.client_memory and not method.overrides(correction, "gradient")
]


def _memories_at(minimum, name, examples):
    """With which a client's gradient is 0 at the minimum."""
    gradient = linear.gradient(minimum, *examples)
    drifts = [-g / STRENGTH for g in gradient]
    return {
        "feddyn": {"h": drifts},
        "feddc": {"h": drifts, "s": [np.zeros_like(g) for g in gradient]},
        "scaffold": {"s": gradient},
        "fedmoswa": {"c": gradient},
        "fedavg": {},
    }[name]


@pytest.mark.parametrize("name", [*_AT_REST, "fedavg"])
def test_the_minimum_of_unlike_clients_is_a_fixed_point(name):
    examples = [linear.examples(seed) for seed in range(3)]
    minimum = _minimum(examples)
    process = _build(CORRECTIONS.get(name))
    state = linear.started(process, minimum)
    client_states = []
    for own in examples:
        memories = dict(process.initial_client_state(state))
        at_rest = _memories_at(minimum, name, own)
        memories.update((f"{name}/{key}", value) for key, value in at_rest.items())
        client_states.append(collections.OrderedDict(memories))
    for _ in range(2):
        output = process.next(
            state, [linear.whole(*own) for own in examples], client_states
        )
        state, client_states = output.state, output.client_states
    weights = linear.weights_of(process, state)
    if name == "fedavg":
        assert np.abs(weights[0] - minimum[0]).max() > 1e-2
    else:
        linear.assert_close(weights, minimum)
        linear.assert_close(client_states[0][method.PREVIOUS], minimum)


# What is refused.


@_that(lambda cls: cls.server_step)
def test_methods_with_a_server_step_refuse_a_server_optimizer(name):
    momentum = tff.learning.optimizers.build_sgdm(1.0, 0.9)
    with pytest.raises(ValueError, match="without a server optimiser"):
        linear.build(CORRECTIONS[name], server_optimizer_fn=momentum)


@_that(lambda cls: method.UNIFORM_WEIGHTING in cls.needs)
def test_methods_with_uniform_weighting_refuse_a_weighted_mean(name):
    weighting = tff.learning.ClientWeighting.NUM_EXAMPLES
    with pytest.raises(ValueError, match=f"{name} needs the plain mean"):
        linear.build(CORRECTIONS[name], client_weighting=weighting)


def test_a_correction_without_a_population_is_refused():
    message = r"^scaffold\.update_memory \(.*it needs the number of all clients"
    with pytest.raises(methods.HookError, match=message):
        linear.build(CORRECTIONS["scaffold"], population=None)


def test_mean_examples_are_refused_with_batches():
    with pytest.raises(ValueError, match="mean_examples needs each client"):
        linear.build(CORRECTIONS["scaffold"], client_data=training.BatchedData())


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


def test_a_direction_beside_an_adaptive_optimizer_is_warned_of():
    adam = tff.learning.optimizers.build_adam(0.001)
    with pytest.warns(UserWarning, match="fedcm stays far behind FedAvg"):
        training.build_regularized(linear.model_fn, [methods.FedCM()], adam)


@pytest.mark.parametrize(
    "correction",
    [methods.SCAFFOLD(), methods.FedCM(), methods.FedNova(proximal=0.1)],
    ids=lambda correction: correction.name,
)
def test_methods_that_read_the_learning_rate_refuse_optimizers_without_one(correction):
    message = (
        rf"^{correction.name}\.\w+ \(.*it needs a client optimiser with a"
        " learning_rate among its hparams"
    )
    with pytest.raises(methods.HookError, match=message):
        linear.build(correction, client_optimizer_fn=_SignDescent())


def test_feddyn_needs_no_learning_rate():
    process = _build(CORRECTIONS["feddyn"], client_optimizer_fn=_SignDescent())
    state = process.initialize()
    after, _ = linear.run(process, state, [linear.whole(*linear.examples(0))], 1)
    before, after = (linear.weights_of(process, s) for s in (state, after))
    # The client's model, and a third of its drift.
    moved = np.abs(after[0] - before[0]) / (0.01 * 4 / 3)
    linear.assert_close(moved, np.round(moved))
    assert moved.max() >= 1
