import numpy as np
import pytest
import tensorflow as tf

from tests.methods import linear
from tff_reg import training
from tff_reg.training import process_settings, schedules


def test_constant_is_one_always():
    assert schedules.constant()(17) == 1.0


def test_exponential_is_a_power_of_the_round():
    schedule = schedules.exponential(0.998)
    np.testing.assert_allclose(
        [schedule(r) for r in (0, 1, 500)], [1.0, 0.998, 0.998**500], rtol=1e-12
    )


def test_cosine_falls_from_one_to_its_last_round_and_stays():
    schedule = schedules.cosine(10)
    last = 0.5 * (1 + np.cos(0.9 * np.pi))
    np.testing.assert_allclose(
        [schedule(r) for r in (0, 5, 9, 10, 12)], [1.0, 0.5, last, last, last]
    )


def test_a_listed_schedule_ends_with_its_last_factor():
    schedule = schedules.listed([1, 0.5, 0.2])
    rounds = [schedule(tf.constant(number)) for number in (0, 1, 2, 7)]
    np.testing.assert_array_equal(rounds, [1.0, 0.5, 0.2, 0.2])


def test_steps_decay_after_their_rounds_and_a_warm_up_grows_to_the_schedule():
    schedule = schedules.step(0.1, (2, 3))
    rounds = [schedule(tf.constant(number)) for number in range(5)]
    np.testing.assert_allclose(rounds, [1, 1, 0.1, 0.01, 0.01], rtol=1e-12)
    schedule = schedules.warmup(4, schedule)
    rounds = [schedule(tf.constant(number)) for number in range(5)]
    np.testing.assert_allclose(rounds, [0.25, 0.5, 0.075, 0.01, 0.01], rtol=1e-12)


def test_the_server_takes_steps_by_its_schedule(in_process):
    dataset = tf.data.Dataset.from_tensors(linear.batch(0))
    start = [np.ones((linear.FEATURES, linear.CLASSES)), np.zeros(linear.CLASSES)]

    def models_of(**settings):
        process = training.build(
            "fedavg", linear.model_fn, client_learning_rate=0.01, **settings
        )
        states = [linear.started(process, start)]
        for _ in range(2):
            states.append(process.next(states[-1], [dataset]).state)
        assert process.get_hparams(states[-1])["finalizer"]["learning_rate"] == 1
        return [process.get_model_weights(each).trainable[0] for each in states]

    plain = models_of()
    halved = models_of(
        server_learning_rate_schedule="step",
        server_learning_rate_decay=0.5,
        server_learning_rate_milestones=(1,),
    )
    np.testing.assert_allclose(halved[1], plain[1], atol=1e-12)
    np.testing.assert_allclose(
        halved[2] - halved[1], 0.5 * (plain[2] - plain[1]), atol=1e-12
    )
    with pytest.raises(ValueError, match="without a server optimiser"):
        training.build("fednova", linear.model_fn, server_warmup_rounds=2)


def test_a_function_is_called_for_every_round_from_1():
    assert process_settings.tabulated(lambda number: 1 / number, 3) == (1.0, 0.5, 1 / 3)
    for wrong in (lambda number: number - 2, lambda number: "a", float("nan").__mul__):
        with pytest.raises(ValueError, match="must give a finite number above 0"):
            process_settings.tabulated(wrong, 3)


def test_a_process_trains_with_the_rates_of_a_function(in_process):
    dataset = tf.data.Dataset.from_tensors(linear.batch(0))
    start = [np.ones((linear.FEATURES, linear.CLASSES)), np.zeros(linear.CLASSES)]

    def moved(**settings):
        process = training.build("fedavg", linear.model_fn, **settings)
        states = [linear.started(process, start)]
        for _ in range(2):
            states.append(process.next(states[-1], [dataset]).state)
        kernels = [process.get_model_weights(each).trainable[0] for each in states]
        return [np.abs(b - a).max() for a, b in zip(kernels, kernels[1:])]

    constant = moved(client_learning_rate=0.01)
    halved = moved(
        client_learning_rate=lambda number: 0.01 / 4 ** (number - 1), total_rounds=2
    )
    assert halved[0] == constant[0]
    np.testing.assert_allclose(halved[1], constant[1] / 4, rtol=1e-3)
    with pytest.raises(TypeError, match="a function of the round: give total_rounds"):
        training.build(
            "fedavg", linear.model_fn, client_learning_rate=lambda number: 0.1
        )


def test_the_rate_before_any_decay_of_a_list_is_the_highest_so_far():
    schedule = schedules.listed([1, 4, 2, 3])
    found = [float(schedule.highest(tf.constant(r))) for r in range(6)]
    assert found == [1, 4, 4, 4, 4, 4]
    # A client's variate is its mean gradient, whatever rate is to come; after a fall of
    # the rate that by the rate before it, as in the paper.
    dataset = tf.data.Dataset.from_tensors(linear.batch(0))
    begun = [np.ones((linear.FEATURES, linear.CLASSES)), np.zeros(linear.CLASSES)]

    def variates(*rates):
        process = training.build(
            *("scaffold", linear.model_fn),
            num_clients=1,
            client_learning_rate=lambda r: rates[min(r, len(rates)) - 1],
            total_rounds=len(rates),
        )
        state, found = linear.started(process, begun), []
        clients = [process.initial_client_state(state)]
        for _ in rates:
            state, clients, _ = process.next(state, [dataset], clients)
            parts = tf.nest.flatten(clients[0])
            found.append(np.concatenate([np.ravel(part) for part in parts]))
        return found

    (alone,), rising, falling = (
        variates(1e-4),
        variates(1e-4, 1e-3),
        variates(1e-3, 1e-4),
    )
    largest = np.abs(alone).max()
    np.testing.assert_allclose(rising[0], alone, rtol=1e-6)
    np.testing.assert_allclose(rising[1], alone, atol=0.02 * largest)
    np.testing.assert_allclose(falling[1], 0.1 * falling[0], atol=0.02 * largest)
