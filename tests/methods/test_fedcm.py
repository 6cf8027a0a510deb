import numpy as np
import pytest
import tensorflow_federated as tff

from tests.methods import linear
from tff_reg import methods, training

pytestmark = pytest.mark.usefixtures("in_process")

DECAY = 0.5


def _start():
    rng = np.random.default_rng(5)
    return [
        rng.normal(size=(linear.FEATURES, linear.CLASSES)),
        rng.normal(size=linear.CLASSES),
    ]


def _train(weights, examples, direction, share, rate):
    """An epoch in batches of four; returns the steps and the weights."""
    features, labels = examples
    begins = range(0, len(labels), 4)
    for begin in begins:
        rows = slice(begin, begin + 4)
        own = linear.gradient(weights, features[rows], labels[rows])
        mixed = [share * g + (1 - share) * d for g, d in zip(own, direction)]
        weights = [w - rate * m for w, m in zip(weights, mixed)]
    return len(begins), weights


@pytest.mark.parametrize("local_steps", [None, 3])
def test_mixes_with_the_last_rounds_direction_at_that_rounds_rate(local_steps):
    share = 0.3
    process = linear.build(
        methods.FedCM(share=share),
        client_data=training.WholeClientData(batch_size=4, shuffle=False),
        learning_rate_schedule=training.exponential(DECAY),
        population=local_steps and training.Population(9, local_steps=local_steps),
    )
    assert isinstance(process, tff.learning.templates.LearningProcess)
    # One step and two, unless all count as having taken three.
    clients = [linear.examples(0, 4), linear.examples(1, 7)]
    data_sets = [linear.whole(*own) for own in clients]
    weights, state = _start(), linear.started(process, _start())
    direction = [np.zeros_like(w) for w in weights]
    for round_num in range(3):
        rate = linear.RATE * DECAY**round_num
        ends = [_train(weights, own, direction, share, rate) for own in clients]
        steps = sum(local_steps or taken for taken, _ in ends)
        moved = [sum(w) - 2 * old for *w, old in zip(*(e for _, e in ends), weights)]
        direction = [-m / (steps * rate) for m in moved]
        weights = [w + m / 2 for w, m in zip(weights, moved)]
        # Who has no examples has no direction, either.
        state = process.next(state, [*data_sets, linear.empty()]).state
        linear.assert_close(linear.weights_of(process, state), weights)
        linear.assert_close(state.finalizer["memory"]["fedcm/direction"], direction)


def test_a_share_of_1_leaves_the_gradient():
    gradient = [np.ones(2)]
    assert methods.FedCM(share=1.0).correct(None, gradient) is gradient
