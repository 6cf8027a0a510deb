"""FedPer, FedRep, FedBN, Ditto and pFedMe: against clients that are trained one by one.

The reference is FedAvg with a single client, from weights that this file puts together,
or gradients of the model's loss at weights that it moves in NumPy.
"""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests import random_clients
from tests.training import every_method
from tff_reg import methods, models, training
from tff_reg.models import roles
from tff_reg.training import traffic

pytestmark = pytest.mark.usefixtures("in_process")

_COUNTS, _BATCH, _EPOCHS = (8, 12), 4, 2
_RATE = 0.1
Weights = tff.learning.models.ModelWeights


def _model_fn():
    return every_method.model_fn(dtype="float64")


def _process(own=(), epochs=_EPOCHS, model_fn=_model_fn, **changes):
    given = {
        "client_optimizer_fn": training.build_sgd(_RATE, weight_decay=0.1),
        "client_data": training.WholeClientData(_BATCH, epochs, shuffle=False),
        "population": training.Population(len(_COUNTS)),
        **changes,
    }
    return training.build_regularized(model_fn, list(own), **given)


def _clients():
    size = every_method.SIZE
    return random_clients.clients(_COUNTS, size=size, dtype="float64")


def _trained(process, rounds):
    """The state, the clients' states and metrics after rounds of both clients."""
    state = process.initialize()
    own = [process.initial_client_state(state)] * len(_COUNTS)
    for _ in range(rounds):
        output = process.next(state, _clients(), own)
        state, own = output.state, output.client_states
    return state, own, output.metrics["client_work"]["train"]


def _alone(process, weights, client):
    """The weights of a client after its round from the given ones."""
    state = process.set_model_weights(process.initialize(), weights)
    return process.get_model_weights(process.next(state, [client]).state)


def _flat(weights):
    return [np.asarray(w) for part in weights for w in part]


def _parts(weights):
    return weights.trainable, weights.non_trainable


def _mean(values):
    return np.average(values, 0, _COUNTS)


def _expected(is_personal, rounds, train):
    """The server's weights and each client's: only shared weights are averaged.

    `is_personal` takes a variable; `train` weights and a client to the client's new.
    """
    model = _model_fn()
    kinds = model.trainable_variables, model.non_trainable_variables
    mask = [[is_personal(v) for v in kind] for kind in kinds]
    shared = first = Weights.from_model(model)
    shared = Weights(*([np.array(w) for w in part] for part in _parts(first)))
    own = [shared] * len(_COUNTS)
    for _ in range(rounds):
        ends = []
        for mine, client in zip(own, _clients()):
            began = [
                [m if p else s for m, s, p in zip(*each)]
                for each in zip(_parts(mine), _parts(shared), mask)
            ]
            ends.append(train(Weights(*began), client))
        mean = [
            [
                s
                if p
                else np.average([end[k][i] for end in map(_parts, ends)], 0, _COUNTS)
                for i, (s, p) in enumerate(zip(part, own_mask))
            ]
            for k, (part, own_mask) in enumerate(zip(_parts(shared), mask))
        ]
        shared, own = Weights(*mean), ends
    evaluated = [
        [
            [m if p else s for m, s, p in zip(*each)]
            for each in zip(_parts(mine), _parts(shared), mask)
        ]
        for mine in own
    ]
    return _flat(_parts(shared)), [_flat(each) for each in evaluated]


def _check(process, rounds, expected):
    state, clients, _ = _trained(process, rounds)
    found = _flat(_parts(process.get_model_weights(state)))
    of_clients = [
        _flat(_parts(process.get_client_weights(state, each))) for each in clients
    ]
    for one, other in zip([found, *of_clients], [expected[0], *expected[1]]):
        assert len(one) == len(other)
        for a, b in zip(one, other):
            np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-11)
    assert not process.shares_model


def _is_head(variable):
    return tuple(variable.shape)[-1:] == (3,)


def test_fedper_averages_the_body_and_each_client_keeps_its_head():
    fedavg = _process()
    expected = _expected(_is_head, 3, lambda w, c: _alone(fedavg, w, c))
    _check(_process([methods.FedPer()]), 3, expected)


def test_fedper_keeps_whole_blocks_with_their_statistics():
    network = _model_fn().network
    kept = {v.name for b in network.blocks[-2:] for v in b.variables}
    fedavg = _process()
    expected = _expected(lambda v: v.name in kept, 2, lambda w, c: _alone(fedavg, w, c))
    _check(_process([methods.FedPer(layers=2)]), 2, expected)
    with pytest.raises(ValueError, match="leaves nothing of . blocks to be shared"):
        _process([methods.FedPer(layers=len(network.blocks))])


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_fedbn_keeps_norms_with_their_statistics(momentum):
    sgd = training.build_sgd(_RATE, momentum)
    fedavg = _process(client_optimizer_fn=sgd)
    expected = _expected(roles.is_of_norm, 3, lambda w, c: _alone(fedavg, w, c))
    _check(_process([methods.FedBN()], client_optimizer_fn=sgd), 3, expected)


def test_fedbn_needs_norms():
    shape = (32, 32, 3)
    model_fn = models.build_model_fn("feddyn_cnn", image_shape=shape, num_classes=3)
    with pytest.raises(ValueError, match="fedbn.* a network with norms"):
        _process([methods.FedBN()], model_fn=model_fn)


def test_fedrep_trains_the_head_first_and_then_the_body():
    # FedBABU can hold either part: two of three epochs train the head, then the body.
    head = _process([methods.FedBABU(part="head")], epochs=2)
    body = _process([methods.FedBABU(part="body")], epochs=1)

    def train(weights, client):
        return _alone(body, _alone(head, weights, client), client)

    process = _process([methods.FedRep(head_share=2 / 3)], epochs=3)
    _check(process, 2, _expected(_is_head, 2, train))


def _gradient(values, client, step):
    """The gradient of the loss of a batch at some weights, in training mode."""
    model = _model_fn()
    for variable, value in zip(model.trainable_variables, values):
        variable.assign(value)
    (element,) = client
    count = element["x"].shape[0] // _BATCH
    rows = slice(step % count * _BATCH, (step % count + 1) * _BATCH)
    with tf.GradientTape() as tape:
        batch = {"x": element["x"][rows], "y": element["y"][rows]}
        loss = model.forward_pass(batch, training=True).loss
    return [g.numpy() for g in tape.gradient(loss, model.trainable_variables)]


def _steps(client):
    (element,) = client
    return range(_EPOCHS * (element["x"].shape[0] // _BATCH))


def _first():
    return [v.numpy() for v in _model_fn().trainable_variables]


def test_dittos_clients_train_their_own_models_near_the_global_one():
    sgd, strength, rounds = training.build_sgd(_RATE), 0.7, 2
    plain = _process(client_optimizer_fn=sgd)
    process = _process([methods.Ditto(strength)], client_optimizer_fn=sgd)
    state, clients, _ = _trained(process, rounds)
    own, state_of_fedavg = [_first() for _ in _COUNTS], plain.initialize()
    for _ in range(rounds):
        received = plain.get_model_weights(state_of_fedavg).trainable
        for k, client in enumerate(_clients()):
            for step in _steps(client):
                gradient = _gradient(own[k], client, step)
                own[k] = [
                    v - _RATE * (g + strength * (v - w))
                    for v, g, w in zip(own[k], gradient, received)
                ]
        state_of_fedavg = plain.next(state_of_fedavg, _clients()).state
    fedavg = plain.get_model_weights(state_of_fedavg)
    weights = process.get_model_weights(state)
    for ours, theirs in zip(_flat(_parts(weights)), _flat(_parts(fedavg))):
        np.testing.assert_allclose(ours, theirs, rtol=1e-10, atol=1e-12)
    for k, client in enumerate(clients):
        found = process.get_client_weights(state, client)
        for one, other in zip(found.trainable, own[k]):
            np.testing.assert_allclose(one, other, rtol=1e-8, atol=1e-10)
    assert process.shares_model


def test_pfedmes_local_models_follow_the_personal_ones():
    own = methods.PFedMe(strength=3.0, steps=2, learning_rate=0.05)
    sgd, rounds = training.build_sgd(_RATE), 2
    process = _process([own], client_optimizer_fn=sgd)
    state, clients, _ = _trained(process, rounds)
    shared, personal = _first(), {}
    for _ in range(rounds):
        ends = []
        for k, client in enumerate(_clients()):
            local, theta = shared, shared
            for step in _steps(client):
                for _ in range(own.steps):
                    gradient = _gradient(theta, client, step)
                    theta = [
                        t - own.learning_rate * (g + own.strength * (t - w))
                        for t, g, w in zip(theta, gradient, local)
                    ]
                local = [
                    w - _RATE * own.strength * (w - t) for w, t in zip(local, theta)
                ]
            ends.append(local)
            personal[k] = theta
        shared = [_mean(each) for each in zip(*ends)]
    found = process.get_model_weights(state).trainable
    for one, other in zip(found, shared):
        np.testing.assert_allclose(one, other, rtol=1e-8, atol=1e-10)
    for k, client in enumerate(clients):
        for one, other in zip(
            process.get_client_weights(state, client).trainable, personal[k]
        ):
            np.testing.assert_allclose(one, other, rtol=1e-8, atol=1e-10)


def test_personal_weights_are_not_sent():
    model_fn = _with_batch_norm()
    whole = traffic.bytes_per_client(_process(model_fn=model_fn))
    sent = traffic.bytes_per_client(_process([methods.FedBN()], model_fn=model_fn))
    weights = tf.nest.flatten(Weights.from_model(model_fn()))
    expected = 4 * sum(np.prod(v.shape) for v in weights if roles.is_of_norm(v))
    assert expected > 0
    assert [w - s for w, s in zip(whole, sent)] == [expected] * 2


def test_what_is_uploaded_of_all_weights_would_leave_its_client():
    with pytest.raises(ValueError, match="upload scaffold/s.*fedper keeps some"):
        _process([methods.FedPer(), methods.SCAFFOLD()])
    _process([methods.FedPer(), methods.FedExP()])  # A number.


def test_noise_reaches_no_statistics_that_stay_at_clients():
    noisy = training.aggregators.build_model_aggregator(
        "dp", clients_per_round=len(_COUNTS), dp_clipping="fixed"
    )
    given = dict(model_fn=_with_batch_norm(), model_aggregator=noisy)
    with pytest.raises(ValueError, match="adds noise"):
        _process(**given)
    _process([methods.FedBN()], **given)


def _with_batch_norm():
    shape = (32, 32, 3)
    return models.build_model_fn("cnn", norm="batch", image_shape=shape, num_classes=3)


def test_a_server_optimizer_that_moves_with_any_update_leaves_the_initial_ones():
    process = _process([methods.FedPer()], server_optimizer_fn=training.build_sgd(1.0))
    first = process.get_model_weights(process.initialize()).trainable
    state, *_ = _trained(process, 2)
    for before, after in zip(first, process.get_model_weights(state).trainable):
        assert _is_head(before) == np.array_equal(before, after)


def test_all_weights_cannot_be_personal():
    class All(methods.Method):
        name = "all"

        def personal(self, network):
            return network.trainable_variables

    class Others(methods.Method):
        name = "others"

        def personal(self, network):
            return [1.0]

    with pytest.raises(ValueError, match="share nothing: that is the process `local`"):
        _process([All()])
    with pytest.raises(ValueError, match="others.personal.* at least one of the netw"):
        _process([Others()])
