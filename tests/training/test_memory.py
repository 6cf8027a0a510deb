import numpy as np
import pytest
import tensorflow_federated as tff

from tests import random_clients
from tff_reg import methods, models, runtime, training
from tff_reg.methods import all_clients

MODEL_FN = models.build_model_fn(
    "cnn", image_shape=(4, 4, 1), num_classes=3, dtype="float64", norm="batch"
)


@pytest.fixture(scope="module", autouse=True)
def _runtime():
    with runtime.running("in_process"):
        yield


def _process(method, weighting=tff.learning.ClientWeighting.UNIFORM):
    return training.build_regularized(
        MODEL_FN,
        [method],
        training.build_sgd(0.1),
        None,
        weighting,
        client_data=training.WholeClientData(batch_size=3),
        population=training.Population(num_clients=4, mean_examples=6.0),
    )


def _two_rounds(process):
    """Rounds of clients 0 and 1, then 1 and 2; all states by round."""
    states = dict.fromkeys(range(4))
    state = process.initialize()
    fresh = process.initial_client_state(state)
    history = []
    for cohort in ([0, 1], [1, 2]):
        data = [
            random_clients.client(i, 6 + 2 * (i == 2), dtype="float64") for i in cohort
        ]
        output = process.next(state, data, [states[i] or fresh for i in cohort])
        states.update(zip(cohort, output.client_states))
        history.append((state, output.state, dict(states)))
        state = output.state
    return history, fresh


def test_h_of_the_server_is_the_mean_over_all_clients_and_is_added_to_the_model():
    history, fresh = _two_rounds(_process(methods.FedDyn()))
    for _, after, states in history:
        known = [s or fresh for s in states.values()]
        for i, kept in enumerate(after.finalizer["memory"]["feddyn/h"]):
            expected = np.mean([s["feddyn/h"][i] for s in known], axis=0)
            np.testing.assert_allclose(kept, expected, rtol=1e-9, atol=1e-12)
    # The first round: clients begin at the initial model, and h is what they moved.
    before, after, states = history[0]
    start = before.global_model_weights.trainable
    for i, weights in enumerate(after.global_model_weights.trainable):
        moved = [states[c]["feddyn/h"][i] for c in (0, 1)]
        expected = start[i] + np.mean(moved, axis=0) + np.sum(moved, axis=0) / 4
        np.testing.assert_allclose(weights, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("weighting", list(tff.learning.ClientWeighting))
def test_the_mean_of_all_clients_counts_absent_ones_with_the_initial_model(weighting):
    process = _process(all_clients.AllClients(), weighting)
    history, fresh = _two_rounds(process)
    _, after, states = history[-1]
    known = [s or fresh for s in states.values()]
    sizes = np.array([6, 6, 8, 4])  # Their mean is mean_examples.
    shares = np.full(4, 1 / 4)
    if weighting == tff.learning.ClientWeighting.NUM_EXAMPLES:
        shares = sizes / sizes.sum()
    for i, kept in enumerate(after.finalizer["memory"][all_clients.MEAN]):
        expected = sum(w * s["previous"][i] for w, s in zip(shares, known))
        np.testing.assert_allclose(kept, expected, rtol=1e-9, atol=1e-12)
