import numpy as np
import pytest
import tensorflow_federated as tff

from tests.methods import linear
from tff_reg import methods

pytestmark = pytest.mark.usefixtures("in_process")

RATE = linear.RATE


def _train(weights, examples, steps, strength):
    sent = weights
    for _ in range(steps):
        gradient = linear.gradient(weights, *examples)
        weights = [
            w - RATE * (g + 2 * strength * (w - s))
            for w, g, s in zip(weights, gradient, sent)
        ]
    return weights


def test_clients_begin_ahead_and_the_model_is_their_mean():
    strength, momentum, steps = 0.2, 0.8, 3
    process = linear.build(
        methods.FedACG(strength=strength, momentum=momentum),
        steps=steps,
        population=None,
    )
    assert isinstance(process, tff.learning.templates.LearningProcess)
    rng = np.random.default_rng(4)
    weights = [
        rng.normal(size=(linear.FEATURES, linear.CLASSES)),
        rng.normal(size=linear.CLASSES),
    ]
    state = linear.started(process, weights)
    clients = [linear.examples(seed) for seed in (0, 1)]
    kept = [np.zeros_like(w) for w in weights]
    for _ in range(3):
        ahead = [momentum * m for m in kept]
        sent = [w + a for w, a in zip(weights, ahead)]
        ends = [_train(sent, own, steps, strength) for own in clients]
        mean = [np.mean(both, axis=0) for both in zip(*ends)]
        kept = [a + m - s for a, m, s in zip(ahead, mean, sent)]
        weights = mean
        data_sets = [linear.whole(*own) for own in clients]
        state = process.next(state, [*data_sets, linear.empty()]).state
        linear.assert_close(linear.weights_of(process, state), weights)
        linear.assert_close(state.finalizer["memory"]["fedacg/momentum"], kept)


def test_refuses_another_mean_or_server():
    by_examples = tff.learning.ClientWeighting.NUM_EXAMPLES
    with pytest.raises(ValueError, match="fedacg needs the plain mean"):
        linear.build(methods.FedACG(), client_weighting=by_examples)
    adam = tff.learning.optimizers.build_adam(1.0)
    with pytest.raises(ValueError, match="without a server optimiser"):
        linear.build(methods.FedACG(), server_optimizer_fn=adam)
