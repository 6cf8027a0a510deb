import dataclasses

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests import local_steps
from tests.methods import linear, one_weight
from tff_reg import methods


def _tensors(*values):
    return [tf.constant(value, tf.float64) for value in values]


RECEIVED = _tensors([[1.0, 2.0]], [5.0])


def test_zero_weights_are_remembered_like_others():
    zeros = _tensors([[0.0, 0.0]], [0.0])
    memory = {"received": zeros, "visits": tf.constant(1)}
    local = one_weight.local(
        global_weights=_tensors([[3.0, 0.0]], [4.0]), memory=memory
    )
    back = one_weight.perturbation(methods.FedLESAM(radius=0.5), local, None)
    np.testing.assert_allclose(back[0], [[-0.3, 0.0]], rtol=1e-6)
    np.testing.assert_allclose(back[1], [-0.4], rtol=1e-6)


@pytest.mark.parametrize("direction", ["paper", "server", "published"])
def test_a_first_round_or_an_unchanged_model_moves_nothing(direction):
    method = methods.FedLESAM(direction=direction)
    first = one_weight.local(
        global_weights=RECEIVED,
        memory=local_steps.first_memory(method, "client_memory", RECEIVED),
        server_memory=local_steps.first_memory(method, "server_memory", RECEIVED),
    )
    again = {"received": RECEIVED, "visits": tf.constant(1)}
    same = dataclasses.replace(first, memory=again)
    for local in (first, same):
        for tensor, weight in zip(
            one_weight.perturbation(method, local, None), RECEIVED
        ):
            np.testing.assert_array_equal(tensor, np.zeros_like(weight))


# Kernels [height, width, inputs, outputs] and [inputs, outputs], and a bias.
UPDATE = _tensors(
    np.arange(1.0, 5.0).reshape(2, 1, 1, 2), [[7.0, 8.0], [3.0, 4.0]], [0.0]
)


def _of_server(direction):
    method = methods.FedLESAM(radius=0.1, direction=direction)
    received = [tf.ones_like(u) for u in UPDATE]
    local = one_weight.local(global_weights=received, server_memory={"update": UPDATE})
    return one_weight.perturbation(method, local, None)


def test_the_published_direction_moves_each_weight_by_one_number():
    # In PyTorch's order the first kernel is 1, 3, 2, 4.
    for found, number, update in zip(_of_server("published"), (1, 3, 2), UPDATE):
        expected = np.full(update.shape, -0.1 * number / 6)
        np.testing.assert_allclose(found, expected, rtol=1e-7)


def test_unused_memories_are_not_declared():
    paper = methods.FedLESAM()
    assert [*paper.client_memory] == ["received", "visits"] and not paper.server_memory
    published = methods.FedLESAM(direction="published")
    assert not published.client_memory
    assert published.server_memory == {"update": methods.sent(methods.zeros)}
    assert published.finish(one_weight.local()) == methods.Finished()


def test_the_servers_update_is_the_weighted_mean_of_scaled_updates():
    process = linear.build(
        methods.FedLESAM(direction="server"),
        methods.FedNova(),
        steps=5,
        client_weighting=tff.learning.ClientWeighting.NUM_EXAMPLES,
    )
    state = process.initialize()
    data = [
        linear.whole(*linear.examples(seed, count)) for seed, count in [(0, 8), (1, 4)]
    ]
    after = process.next(state, data).state
    pairs = zip(linear.weights_of(process, after), linear.weights_of(process, state))
    # FedNova's model moves by the five steps, and each client's change is over them.
    moved = [(new - old) / 5 for new, old in pairs]
    linear.assert_close(after.finalizer["memory"]["fedlesam/update"], moved)
