import functools

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests import random_clients
from tff_reg import models, runtime, training
from tff_reg.methods import all_clients

NUM_CLIENTS = 5
MODEL_FN = models.build_model_fn(
    "cnn", image_shape=(4, 4, 1), num_classes=3, norm="batch"
)
WHOLE = training.WholeClientData(batch_size=4)


@pytest.fixture(scope="module", autouse=True)
def _runtime():
    with runtime.running("in_process"):
        yield
    _build.cache_clear()


@functools.cache
def _build(name, **overrides):
    return training.build(
        name, MODEL_FN, client_data=WHOLE, num_clients=NUM_CLIENTS, **overrides
    )


def _train(process, cohorts, counts):
    """Rounds with the clients of each cohort; returns the state and all clients'."""
    state = process.initialize()
    remembered = [process.initial_client_state(state)] * NUM_CLIENTS
    for cohort in cohorts:
        output = process.next(
            state,
            [random_clients.client(number, counts[number]) for number in cohort],
            [remembered[number] for number in cohort],
        )
        state = output.state
        for number, client_state in zip(cohort, output.client_states):
            remembered[number] = client_state
    return state, remembered


def _assert_equal(found, expected):
    assert len(found) == len(expected)
    for a, b in zip(found, expected):
        np.testing.assert_array_equal(a, b)


def test_the_mean_of_all_clients_is_that_of_their_last_models():
    process = _build("feddyn")
    counts = [6, 9, 4, 7, 5]
    # Client 1 takes part twice, clients 3 and 4 never.
    state, remembered = _train(process, [[0, 1], [1, 2]], counts)
    found = process.get_all_clients_weights(state)
    served = process.get_model_weights(state)
    initial = process.get_model_weights(process.initialize())
    _assert_equal(remembered[3]["previous"], initial.trainable)
    for index, mean in enumerate(found.trainable):
        models_ = [client_state["previous"][index] for client_state in remembered]
        np.testing.assert_allclose(mean, np.mean(models_, axis=0), rtol=0, atol=1e-6)
    assert not np.allclose(found.trainable[0], served.trainable[0], atol=1e-4)
    assert not np.allclose(found.trainable[0], initial.trainable[0], atol=1e-4)
    _assert_equal(found.non_trainable, served.non_trainable)
    assert found.non_trainable and not np.array_equal(
        found.non_trainable[0], initial.non_trainable[0]
    )


def test_the_mean_begins_as_the_initial_model_and_has_the_models_type():
    process = _build("feddyn")
    state = process.initialize()
    found, served = (
        get(state)
        for get in (process.get_all_clients_weights, process.get_model_weights)
    )
    assert isinstance(found, tff.learning.models.ModelWeights)
    _assert_equal(found.trainable, served.trainable)
    _assert_equal(found.non_trainable, served.non_trainable)
    result_type = process.get_all_clients_weights.type_signature.result
    assert result_type == process.get_model_weights.type_signature.result


def test_a_process_that_does_not_keep_the_mean_has_none():
    process = _build("feddyn", averages_all_clients=False)
    assert isinstance(process, training.StatefulLearningProcess)
    assert process.get_all_clients_weights is None


def test_setting_weights_or_hparams_leaves_the_memory_as_it_is():
    process = _build("feddyn")
    state, _ = _train(process, [[0, 1]], [6, 9, 4, 7, 5])
    before = process.get_all_clients_weights(state)
    weights = process.get_model_weights(state)
    doubled = tff.learning.models.ModelWeights(
        [2 * w for w in weights.trainable], weights.non_trainable
    )
    hparams = process.get_hparams(state)
    hparams["client_work"]["learning_rate"] = np.float32(0.5)
    state = process.set_hparams(process.set_model_weights(state, doubled), hparams)
    assert process.get_hparams(state)["client_work"]["learning_rate"] == 0.5
    _assert_equal(process.get_model_weights(state).trainable, doubled.trainable)
    _assert_equal(process.get_all_clients_weights(state).trainable, before.trainable)
    assert any(np.any(h) for h in state.finalizer["memory"]["feddyn/h"])
    fresh = process.set_model_weights(process.initialize(), doubled)
    _assert_equal(process.get_all_clients_weights(fresh).trainable, doubled.trainable)
    assert not any(np.any(h) for h in fresh.finalizer["memory"]["feddyn/h"])


def test_server_state_size_is_independent_of_num_clients():
    def num_values(process):
        return sum(np.size(v) for v in tf.nest.flatten(process.initialize().finalizer))

    many = training.build("feddyn", MODEL_FN, client_data=WHOLE, num_clients=500)
    assert num_values(_build("feddyn")) == num_values(many)


def _with_sizes(client_data):
    return training.build_regularized(
        MODEL_FN,
        [all_clients.AllClients()],
        training.build_sgd(0.1),
        client_weighting=tff.learning.ClientWeighting.NUM_EXAMPLES,
        client_data=client_data,
        population=training.Population(NUM_CLIENTS, mean_examples=6.0),
    )


@pytest.mark.parametrize("steps", [pytest.param(None, marks=pytest.mark.slow), 2])
def test_after_one_round_of_all_clients_the_two_means_agree(steps):
    """Clients weigh by their examples in both, whatever steps they take."""
    counts = [6, 6, 8, 5, 5]
    process = _with_sizes(training.WholeClientData(batch_size=4, local_steps=steps))
    state, _ = _train(process, [range(NUM_CLIENTS)], counts)
    served = process.get_model_weights(state).trainable
    for mean, weight in zip(process.get_all_clients_weights(state).trainable, served):
        np.testing.assert_allclose(mean, weight, rtol=0, atol=1e-6)


def test_absent_clients_count_with_the_mean_size():
    process = _with_sizes(WHOLE)
    # Client 3 and 4 never take part, and count as of mean size.
    state, remembered = _train(process, [[0, 1], [1, 2]], [6, 6, 8, 0, 0])
    shares = np.array([6, 6, 8, 5, 5]) / 30
    for i, kept in enumerate(state.finalizer["memory"][all_clients.MEAN]):
        expected = sum(w * s["previous"][i] for w, s in zip(shares, remembered))
        np.testing.assert_allclose(kept, expected, rtol=0, atol=1e-6)
