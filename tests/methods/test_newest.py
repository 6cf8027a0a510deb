"""FedProto, FedBABU and FedLESAM-S against NumPy and against other methods."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests import random_clients
from tests.training import every_method
from tff_reg import methods, testing, training
from tff_reg.models import adjusted

pytestmark = pytest.mark.usefixtures("in_process")

_COUNTS = (8, 12)


def _process(own, **changes):
    given = {
        "client_optimizer_fn": training.build_sgd(0.1, 0.5, weight_decay=0.1),
        "client_data": training.WholeClientData(4, 2, shuffle=False),
        "client_weighting": tff.learning.ClientWeighting.UNIFORM,
        "population": training.Population(len(_COUNTS)),
        **changes,
    }
    return training.build_regularized(every_method.model_fn, own, **given)


def _rounds(process, number):
    clients = random_clients.clients(_COUNTS, size=every_method.SIZE)
    return every_method.run(process, clients, number)[0]


def _head_of(process, state):
    """The classifier's kernel and bias, and the other weights."""
    weights = process.get_model_weights(state).trainable
    return list(weights[-2:]), list(weights[:-2])


@pytest.mark.parametrize("part", ["body", "head", "all"])
def test_fedbabu_trains_a_part(part):
    # FedDyn moves weights after the clipping, too.
    own = [methods.FedDyn(), methods.FedBABU(part=part)]
    process = _process(own)
    first = _head_of(process, process.initialize())
    last = _head_of(process, _rounds(process, 2).state)
    for name, before, after in zip(("head", "body"), first, last):
        moves = any(not np.array_equal(a, b) for a, b in zip(before, after))
        assert moves == (part in (name, "all"))


def test_fedbabus_head_does_not_count_in_the_norm_that_is_clipped():
    bodies = []
    for own in (methods.FedBABU(), methods.Freeze()):
        process = _process([own], max_gradient_norm=0.1)
        weights = process.get_model_weights(_rounds(process, 1).state).trainable
        bodies.append(weights)
    assert len(bodies[0]) == len(bodies[1]) + 2
    for held, frozen in zip(*bodies):
        np.testing.assert_allclose(held, frozen, rtol=1e-5, atol=1e-6)


def test_fedbabu_needs_a_head_that_trains():
    model_fn = adjusted.AdjustedModelFn(every_method.model_fn, freeze=["classifier"])
    with pytest.raises(ValueError, match="fedbabu.* this layer and others train"):
        sgd = training.build_sgd(0.1)
        training.build_regularized(model_fn, [methods.FedBABU()], sgd)


def test_fedproto_sends_the_means_of_the_last_epoch():
    # Nothing moves, so that embeddings are those of the first model.
    still = training.build_sgd(0.0)
    process = _process([methods.FedProto()], client_optimizer_fn=still)
    output = _rounds(process, 1)
    table = output.state.finalizer["memory"]["fedproto/table"]
    model = process.model_fn()
    process.get_model_weights(process.initialize()).assign_weights_to(model)
    forward = methods.method.forward_lib.ForwardPass(training=True)
    sums, counts = np.zeros(table["means"].shape), np.zeros(3)
    for data in random_clients.clients(_COUNTS, size=every_method.SIZE):
        (own,) = data
        of_client, number = np.zeros_like(sums), np.zeros(3)
        for first in range(0, len(own["y"]), 4):
            x, y = own["x"][first : first + 4], own["y"][first : first + 4].numpy()
            embedding = model.network(x, forward).embedding.numpy()
            np.add.at(of_client, y, embedding)
            np.add.at(number, y, 1)
        sums += of_client / np.maximum(number, 1)[:, None]
        counts += number > 0
    means = sums / np.maximum(counts, 1)[:, None]
    np.testing.assert_allclose(table["means"], means, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(table["known"], counts > 0)


def test_fedprotos_term_is_the_distance_to_the_known_means():
    table = {
        "means": tf.constant([[1.0, 2.0], [1.0, 1.0], [0.0, 0.0]], tf.float64),
        "known": tf.constant([1.0, 1.0, 0.0], tf.float64),
    }
    step = testing.step(
        labels=[0, 1, 2], embedding=[[2.0, 2.0], [1.0, 0.0], [9.0, 9.0]]
    )
    local = methods.Local([], [], {}, {"table": table})
    step = dataclasses.replace(step, local=local)
    term = methods.FedProto(strength=3.0).term(step)
    # (1 + 0 + 0 + 1 + 0 + 0) / 6.
    assert float(term.raw) == pytest.approx(2 / 6, rel=1e-15)
    assert float(term.weighted) == pytest.approx(1.0, rel=1e-15)


@pytest.mark.parametrize(
    "strength, same", [(1.0, "scaffold+fedlesam"), (0.0, "fedlesam")]
)
def test_fedlesams_lies_between_scaffold_and_fedlesam(strength, same):
    own = methods.catalogue.build(same, {})
    expected = _process(own)
    expected = _head_of(expected, _rounds(expected, 2).state)
    made = _process([methods.FedLESAMS(strength=strength)])
    made = _head_of(made, _rounds(made, 2).state)
    for ours, other in zip(sum(made, []), sum(expected, [])):
        np.testing.assert_allclose(ours, other, rtol=1e-4, atol=1e-6)
