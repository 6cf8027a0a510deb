"""Hooks that the newest methods brought, against NumPy and against other settings."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.golden import clients as clients_lib, mlp
from tff_reg import methods, testing, training as training_lib
from tff_reg.methods import catalogue, method
from tff_reg.training import local_training

pytestmark = pytest.mark.usefixtures("in_process")

_SIZES = [4, 5, 3]
_COUNTS = (10, 7, 13)
_BY_EXAMPLES = tff.learning.ClientWeighting.NUM_EXAMPLES
_UNIFORM = tff.learning.ClientWeighting.UNIFORM


def _data(number):
    rng = np.random.default_rng(number)
    labels = rng.integers(0, number + 1, _COUNTS[number]).astype(np.int32)
    return rng.normal(size=(_COUNTS[number], _SIZES[0])), labels


def _training(own, **changes):
    given = {
        "optimizer": training_lib.build_sgd(0.1, weight_decay=0.01),
        "data_form": training_lib.WholeClientData(4, 2, shuffle=False),
        "population": training_lib.Population(len(_COUNTS)),
        **changes,
    }
    return local_training.LocalTraining(methods=own, **given)


def _process(own, weighting=_UNIFORM, **changes):
    return clients_lib.process(_SIZES, "float64", _training(own, **changes), weighting)


def _rounds(process, cohorts):
    """Yields the output of each round."""
    initial = np.random.default_rng(5).normal(size=43)
    weights = mlp.unflatten(initial, _SIZES, "float64")
    state = process.set_model_weights(
        process.initialize(), tff.learning.models.ModelWeights(weights, [])
    )
    states = None
    if hasattr(process, "initial_client_state"):
        states = [process.initial_client_state(state)] * len(_COUNTS)
    for cohort in cohorts:
        arguments = [[clients_lib.data_set(*_data(one)) for one in cohort]]
        if states:
            arguments.append([states[one] for one in cohort])
        output = process.next(state, *arguments)
        state = output.state
        for one, new in zip(cohort, output.client_states if states else ()):
            states[one] = new
        yield output


def _weights(process, cohorts):
    return _flat(process, [*_rounds(process, cohorts)][-1].state)


def _flat(process, state):
    return mlp.flatten(process.get_model_weights(state).trainable)


def _alone():
    """What each client's plain round leaves, and the initial model."""
    process = _process([])
    start = np.random.default_rng(5).normal(size=43)
    return start, [_weights(process, [[one]]) for one in range(len(_COUNTS))]


def _shares():
    counts = [np.bincount(_data(one)[1], minlength=3) for one in range(3)]
    return np.array(counts) / np.sum(counts, axis=1, keepdims=True)


def test_clients_weigh_as_the_cohort_says():
    own = methods.FedDisco(strength=0.7, offset=0.05)
    _, models = _alone()
    shares = _shares()
    with np.errstate(divide="ignore", invalid="ignore"):
        skew = np.nansum(shares * np.log(shares * 3), axis=1)
    sizes = np.array(_COUNTS) / sum(_COUNTS)
    weights = np.maximum(0, sizes - 0.7 * skew / skew.sum() + 0.05)
    assert 0 < np.count_nonzero(weights) < 3 or weights.min() > 0
    expected = weights @ np.array(models) / weights.sum()
    made = _weights(_process([own], _BY_EXAMPLES), [[0, 1, 2]])
    np.testing.assert_allclose(made, expected, rtol=1e-13)


def test_where_nobody_has_a_weight_all_weigh_alike():
    own = methods.FedDisco(strength=100.0, offset=0.0, difference="l1")
    process = _process([own], _BY_EXAMPLES)
    (output,) = _rounds(process, [[0, 1, 2]])
    assert output.metrics["weights"]["all_zero"] == 1
    np.testing.assert_allclose(
        _flat(process, output.state), np.mean(_alone()[1], axis=0), rtol=1e-13
    )


@pytest.mark.parametrize("other", ["feddyn", "fednova"])
def test_two_kinds_of_weights_are_refused(other):
    with pytest.raises(ValueError, match="leave one of them out"):
        _process(catalogue.build(f"feddisco+{other}", {}), _UNIFORM)


class _ByRarity(methods.Method):
    """The share of a client without the last class is not finite."""

    name = "by_rarity"

    def finish(self, local):
        counts = tf.cast(local.class_counts, tf.float64)
        return methods.Finished(share={"rarity": 1 / counts[-1]})

    def weigh(self, own, total):
        return own["rarity"] / total["rarity"]


def test_clients_whose_shares_are_not_finite_are_left_out():
    counts = _shares()[:, -1] * np.array(_COUNTS)
    assert np.flatnonzero(counts).tolist() == [2]
    process = _process([_ByRarity()], _BY_EXAMPLES)
    (output,) = _rounds(process, [[0, 1, 2]])
    np.testing.assert_allclose(_flat(process, output.state), _alone()[1][2], rtol=1e-13)


def test_server_steps_that_add_stand_beside_another():
    start, models = _alone()
    step = np.mean(models, axis=0) - start
    square = np.mean([np.sum((each - start) ** 2) for each in models])
    factor = max(1, square / 2 / (np.sum(step**2) + 3 * 1e-3 * 0.998**2))
    own = [methods.FedInit(average="models"), methods.FedExP()]
    (output,) = _rounds(_process(own), [[0, 1, 2]])
    # In the first round, every client begins at the model.
    expected = start + factor * step
    made = mlp.flatten(output.state.global_model_weights.trainable)
    np.testing.assert_allclose(made, expected, rtol=1e-13)
    assert output.metrics["server"]["fedexp/server_rate"] == pytest.approx(factor)


def test_what_is_evaluated_is_the_processs_model():
    process = _process([methods.FedExP()])
    first, second = [output.state for output in _rounds(process, [[0, 1], [1, 2]])]
    last = mlp.flatten(second.finalizer["weights"].trainable)
    expected = (_flat(process, first) + last) / 2  # Of the first round: the model.
    made = mlp.flatten(second.global_model_weights.trainable)
    np.testing.assert_allclose(made, expected, rtol=1e-13)
    np.testing.assert_array_equal(_flat(process, second), made)
    zeros = tf.nest.map_structure(np.zeros_like, second.global_model_weights)
    given = process.set_model_weights(second, zeros)
    assert not _flat(process, given).any()
    state = process.next(given, [clients_lib.data_set(*_data(0))]).state
    old = process.set_model_weights(process.initialize(), zeros)
    plain = process.next(old, [clients_lib.data_set(*_data(0))]).state
    # One client has the factor 1.
    moved = _flat(process, plain)
    np.testing.assert_allclose(_flat(process, state), moved / 2, atol=1e-15)


class _Nought(methods.Method):
    name = "nought"

    def evaluated(self, weights, memory):
        return [0 * w for w in weights]


def test_a_method_may_only_say_what_is_evaluated():
    assert not _weights(_process([_Nought()]), [[0]]).any()


def test_an_unweighted_aggregator_takes_clients_alike():
    mean = training_lib.aggregators.declare(
        tff.aggregators.UnweightedMeanFactory(), adds_noise=False, keeps_sums=True
    )
    data = [testing.client(*each) for each in enumerate((6, 14, 3))]
    exp = methods.FedExP(epsilon=1e-9)
    rates = []
    for given in ({"model_aggregator": mean}, {"client_weighting": _UNIFORM}):
        process = testing.build([exp], **given)
        metrics = process.next(process.initialize(), data).metrics
        rates.append(metrics["server"]["fedexp/server_rate"])
    assert rates[0] == pytest.approx(rates[1]) and rates[0] > 1


def test_the_models_of_fedinits_paper_are_averaged():
    own = methods.FedInit(strength=0.5, average="models")
    process = _process([own])
    *_, output = _rounds(process, [[0, 1, 2], [0, 2]])
    last = [state[method.PREVIOUS] for state in output.client_states]
    expected = np.mean([mlp.flatten(each) for each in last], axis=0)
    np.testing.assert_allclose(_flat(process, output.state), expected, rtol=1e-13)
    other = _process([dataclasses.replace(own, average="updates")])
    assert not np.allclose(_weights(other, [[0, 1, 2], [0, 2]]), expected, rtol=1e-6)


def test_fednars_decay_is_not_scaled_by_fedcms_share():
    own = catalogue.build("fednar+fedcm", {"fednar_strength": 0.01})
    inside = _process(own, optimizer=training_lib.build_sgd(0.1))
    # A fraction of K below 1: the population's first client has less than a batch.
    population = training_lib.Population(len(_COUNTS), local_steps=0.6)
    outside = _process([methods.FedCM()], population=population)
    made, expected = (_weights(one, [[0, 1]]) for one in (inside, outside))
    np.testing.assert_allclose(made, expected, rtol=1e-12)


def test_fedwmsam_is_perturbed_from_where_fedinit_begins():
    own = [methods.FedInit(strength=0.5), methods.FedWMSAM(radius=0.5)]
    near = [own[0], methods.FedWMSAM(radius=0.0)]
    # One step a round, at which the target is where the client begins.
    form = training_lib.WholeClientData(20, 1, shuffle=False)
    made, expected = (
        _weights(_process(each, data_form=form), [[0, 1, 2], [0, 2]])
        for each in (own, near)
    )
    np.testing.assert_allclose(made, expected, rtol=1e-12)


class _Halving(methods.Method):
    name = "halving"

    def scale_rate(self, local):
        return 0.5


@pytest.mark.parametrize(
    "build",
    [
        lambda rate: training_lib.build_sgd(rate, 0.9, weight_decay=0.1),
        tff.learning.optimizers.build_adam,
    ],
)
def test_a_factor_is_one_of_the_learning_rate(build):
    half = _process([_Halving()], optimizer=build(0.2))
    plain = _process([], optimizer=build(0.1))
    cohorts = [[0, 1]] * 2
    np.testing.assert_allclose(
        _weights(half, cohorts), _weights(plain, cohorts), rtol=1e-12
    )


class _Reading(methods.Method):
    """A term of the method's memory, round, rate and place in the round."""

    name = "reading"
    server_memory = {"s": methods.sent(methods.zeros)}

    def term(self, step):
        local = step.local
        rate = tf.cast(local.hparams["learning_rate"], tf.float64)
        factor = rate * tf.cast(local.round_num + 10 * local.epoch, tf.float64)
        square = tf.add_n([tf.reduce_sum(w**2) for w in step.weights])
        grown = tf.add_n([tf.reduce_sum(s) for s in local.server_memory["s"]])
        return methods.Term(square, factor * square + 0 * grown, {"factor": factor})

    def update_memory(self, server):
        return {"s": server.mean_delta}


def test_a_term_reads_the_client():
    (first, second) = _rounds(_process([_Reading()]), [[0], [0]])
    for number, output in ((1, first), (2, second)):
        measured = output.metrics["client_work"]["train"]["reading/factor"]
        # Two epochs of as many examples.
        assert measured == pytest.approx(0.1 * (number + 5), rel=1e-6)


def test_a_clients_steps_need_all_of_its_data():
    batched = training_lib.BatchedData()
    with pytest.raises(methods.HookError, match="WholeClientData"):
        _process([methods.FedSWA()], data_form=batched)
