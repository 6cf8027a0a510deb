"""Clients in Ray's actors: the same bytes, also when actors are lost.

Two actors for the whole file, to which come more where they are needed. Ten seconds:
Ray starts, and TensorFlow in each actor, as it does where a test loses some.
"""

import collections
import contextlib
import dataclasses
import functools
import os
import pathlib
import signal

import numpy as np
import pytest
import ray
import tensorflow as tf
import tensorflow_federated as tff

from tests.comparison import assert_equal
from tests.runtime.test_intrinsics import (  # noqa: F401
    test_aggregate_folds_in_the_order_of_the_clients,
    test_select_gives_every_client_its_slices,
    test_sums_means_minima_maxima_and_values,
)
from tff_reg import data, experiment, models, runtime, tasks, training
from tff_reg.experiment.config.task_settings import TaskSettings
from tff_reg.experiment.rounds import runs
from tff_reg.runtime import (
    choice,
    context as context_lib,
    ray_workers,
    visits,
    workers as workers_lib,
)


@pytest.fixture(scope="module")
def ray_in_use():
    """Actors of a Ray whose servers were late at the first try, and not after it."""
    waits, init = iter(["0", "60"]), ray.init

    def late(**options):
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("RAY_gcs_server_port_wait_time_s", next(waits))
            return init(**options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ray, "init", late)
        found = _started()
    assert not list(waits)
    yield found
    found.stop()


def _started():
    found = ray_workers.RayWorkers(choice.Options(clients_in_parallel=2))
    # Nobody has waited: data are read and processes traced meanwhile.
    assert found.describe() == "clients run in 2 Ray actors (starting)"
    found.wait(everyone=True)
    return found


@pytest.fixture
def actors(ray_in_use, monkeypatch):
    """`actors(n)`: inside, computations run in `n` of Ray's actors."""

    @contextlib.contextmanager
    def install(number):
        monkeypatch.setattr(ray_in_use, "most", number)  # Not more are started.
        ray_in_use.grow()
        ray_in_use.wait(everyone=True)
        few = ray_in_use.alive()[:number]
        context = context_lib.InProcessContext(ray_in_use)
        with monkeypatch.context() as patch:
            still = lambda: [a for a in few if a in ray_in_use.actors]  # noqa: E731
            patch.setattr(ray_in_use, "alive", still)
            with tff.framework.get_context_stack().install(context):
                yield few

    return install


# What the imported tests' fixtures ask for: here "tff" stands for in process, and
# everything else for Ray.


@pytest.fixture(scope="module")
def contexts(ray_in_use):
    here = context_lib.InProcessContext(workers_lib.ClientWorkers(["CPU:0"], 1))
    there = context_lib.InProcessContext(ray_in_use)
    known = collections.defaultdict(lambda: there, tff=here)

    @contextlib.contextmanager
    def install(kind):
        with tff.framework.get_context_stack().install(known[kind]):
            yield

    return install


def _descendants(pid):
    for children in pathlib.Path(f"/proc/{pid}/task").glob("*/children"):
        for child in map(int, children.read_text().split()):
            yield child
            yield from _descendants(child)


def _listening_addresses(pid):
    """The addresses, as in /proc/net/tcp, at which a process listens."""
    files = pathlib.Path(f"/proc/{pid}/fd").iterdir()
    sockets = {os.readlink(each) for each in files if each.exists()}
    for table in ("tcp", "tcp6"):
        for line in pathlib.Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in sockets:
                yield fields[1].partition(":")[0]


def test_ray_of_our_own_is_reached_from_this_machine_only(ray_in_use):
    """Whoever reaches Ray's ports can run programs."""
    pids = [os.getpid(), *_descendants(os.getpid())]
    # TFF's own worker, started for an earlier test, is none of ours.
    pids = [p for p in pids if not os.readlink(f"/proc/{p}/exe").endswith("_binary")]
    found = {address for pid in pids for address in _listening_addresses(pid)}
    # 127.0.0.1, and the same in IPv6's notation.
    assert found == {"0100007F", "0000000000000000FFFF00000100007F"}
    assert {actor.hello.pid for actor in ray_in_use.alive()} < set(pids)


def _clients(member):
    return tff.FederatedType(member, tff.CLIENTS)


_VECTOR = tff.TensorType(np.float32, [3])


def _round():
    """A round with two computations at the clients and a model that they get."""

    @tff.tensorflow.computation(_VECTOR, tff.SequenceType(np.float32))
    def train(model, numbers):
        change = numbers.reduce(tf.zeros([3]), lambda s, x: s + tf.sin(x * model))
        return change, numbers.reduce(0.0, lambda s, x: s + 1.0)

    @tff.tensorflow.computation(_VECTOR)
    def halve(change):
        return change / 3.0

    @tff.federated_computation(
        tff.FederatedType(_VECTOR, tff.SERVER), _clients(tff.SequenceType(np.float32))
    )
    def next_round(model, numbers):
        change, weight = tff.federated_map(
            train, (tff.federated_broadcast(model), numbers)
        )
        return tff.federated_mean(tff.federated_map(halve, change), weight)

    return next_round


_MODEL = np.array([0.1, 0.7, 0.3], np.float32)
_DATA = [
    tf.data.Dataset.from_tensor_slices([float(i), 1.5, 2.0 + i]) for i in range(12)
]


@pytest.fixture(scope="module")
def next_round():
    return _round()


@pytest.fixture(scope="module")
def expected(next_round):
    with runtime.running("in_process"):
        return next_round(_MODEL, _DATA)


# --- numbers --------------------------------------------------------------------------


def _client_data(dtype):
    rng = np.random.default_rng(0)
    return data.ArrayClientData(
        rng.integers(0, 255, (40, 6, 6, 1)).astype(dtype),
        rng.integers(0, 3, 40),
        np.split(np.arange(40), [5, 12, 20, 29]),
    )


@pytest.mark.parametrize(
    "name, norm, batched, numbers",
    [
        pytest.param("scaffold", "group", 4, (1, 2, 4), marks=pytest.mark.slow),
        ("fedavg", "batch", None, (1, 2)),
    ],
)
def test_one_two_and_four_actors_give_the_bytes_of_one_process(
    actors, name, norm, batched, numbers
):
    """With client states, BatchNorm's statistics, and ordinary batches of a user's."""
    process = training.build_from_settings(
        name,
        models.build_model_fn("cnn", image_shape=(6, 6, 1), num_classes=3, norm=norm),
        training.ProcessSettings.of(name, batch_size=4, local_epochs=2),
        {},
        **({"client_data": training.BatchedData()} if batched else {}),
    )
    clients, key = _client_data(np.float32), np.array([3, 4], np.int64)
    datasets = [
        clients.batched_dataset(client, key, batched, include_key=True)
        if batched
        else clients.whole_client_dataset(client, key)
        for client in clients.client_ids
    ]

    def two_rounds():
        state = process.initialize()
        arguments = [state, datasets]
        if isinstance(process, training.StatefulLearningProcess):
            arguments.append([process.initial_client_state(state)] * len(datasets))
        first = process.next(*arguments)
        return process.next(first.state, *arguments[1:])

    with runtime.running("in_process"):
        in_process = two_rounds()
    for number in numbers:
        with actors(number):
            assert_equal(in_process, two_rounds())


# --- what is sent ---------------------------------------------------------------------


def _whole_clients_of(shape):
    return tff.SequenceType(
        collections.OrderedDict(
            x=tff.TensorType(np.uint8, [None, *shape]),
            y=tff.TensorType(np.int32, [None]),
            key=tff.TensorType(np.int64, [2]),
        )
    )


@pytest.fixture
def contents(monkeypatch):
    """What is sent of each client's examples."""
    found, content = [], ray_workers.RayWorkers._content
    monkeypatch.setattr(
        ray_workers.RayWorkers,
        "_content",
        lambda *arguments: found.append(content(*arguments)) or found[-1],
    )
    return found


def test_examples_are_sent_once(actors, contents):
    clients = _client_data(np.uint8)

    @tff.tensorflow.computation(_whole_clients_of([6, 6, 1]))
    def key_and_sum(dataset):
        return dataset.reduce(
            np.int64(0),
            lambda s, e: s + e["key"][0] + tf.reduce_sum(tf.cast(e["x"], tf.int64)),
        )

    @tff.federated_computation(_clients(key_and_sum.type_signature.parameter))
    def sums(datasets):
        return tff.federated_map(key_and_sum, datasets)

    def run(key):
        names = clients.client_ids
        keys = np.array([key, 0], np.int64)
        return sums([clients.whole_client_dataset(name, keys) for name in names])

    with runtime.running("in_process"):
        expected = run(7), run(8)
    with actors(1):
        assert (run(7), run(8)) == expected
        assert len(contents) == 10 and contents[:5] == contents[5:]


def test_nodes_load_the_same_data_themselves(actors, ray_in_use, monkeypatch, contents):
    options = dataclasses.replace(ray_in_use._options, data_on_nodes=True)
    monkeypatch.setattr(ray_in_use, "_options", options)
    config = experiment.RunConfig(process="fedavg", num_clients=4).resolved()
    clients = runs.build_task(config).client_data

    @tff.tensorflow.computation(_whole_clients_of([8, 8, 1]))
    def total(dataset):
        return dataset.reduce(
            np.int64(0), lambda s, e: s + tf.reduce_sum(tf.cast(e["x"], tf.int64))
        )

    @tff.federated_computation(_clients(total.type_signature.parameter))
    def totals(datasets):
        return tff.federated_map(total, datasets)

    def run(**changes):
        settings = {**config.part(TaskSettings), **changes}
        clients.load_by(functools.partial(runs._client_data, tasks.build, settings))
        key = np.array([1, 2], np.int64)
        names = clients.client_ids
        return totals([clients.whole_client_dataset(name, key) for name in names])

    with runtime.running("in_process"):
        expected = run()
    with actors(1):
        assert run() == expected
        assert len(contents) == 4 and all(map(callable, contents))
        with pytest.raises(visits.ClientError, match="other examples than those of"):
            run(seed=config.seed + 1)


def test_a_clients_own_error_names_the_client_and_is_not_tried_again(
    actors, given_clients
):
    @tff.tensorflow.computation(np.float32)
    def check(number):
        with tf.control_dependencies([tf.debugging.assert_less(number, 10.0)]):
            return tf.identity(number)

    @tff.federated_computation(_clients(np.float32))
    def total(numbers):
        return tff.federated_sum(tff.federated_map(check, numbers))

    def message(numbers):
        with pytest.raises(visits.ClientError) as caught:
            total(numbers)
        return str(caught.value)

    with runtime.running("in_process"):
        expected = message([1.0, 11.0])
    with actors(2):
        found = message([1.0, 11.0])
        assert found.split(" at ")[0] == expected.split(" at ")[0]
        assert sorted(index for _, index in given_clients) == [0, 1]
        assert total([1.0, 2.0]) == 3.0


# --- lost actors ----------------------------------------------------------------------


@pytest.fixture
def given_clients(monkeypatch):
    """Who was given which client; `.then(actor, index)` is called with each."""

    class Given(list):
        @staticmethod
        def then(actor, index):
            pass

    given = Given()

    hand = ray_workers._Stage._hand

    def recording(self, actor, index, record):
        hand(self, actor, index, record)
        given.append((actor, index))
        given.then(actor, index)

    monkeypatch.setattr(ray_workers._Stage, "_hand", recording)
    return given


def test_the_clients_of_a_lost_actor_go_to_the_others(
    actors, given_clients, next_round, expected
):
    lost_clients = []

    def lose(actor, index):
        if not lost_clients and actor is few[1]:
            lost_clients.append(index)
            os.kill(actor.hello.pid, signal.SIGKILL)

    with actors(3) as few:
        given_clients.then = lose
        assert_equal(expected, next_round(_MODEL, _DATA))
        (lost,) = lost_clients
        again = [actor for actor, index in given_clients if index == lost]
        assert len(again) == 2 and again[1] is not few[1]
        del given_clients[:]
        assert_equal(expected, next_round(_MODEL, _DATA))
        assert few[1] not in {actor for actor, _ in given_clients}


def test_without_actors_a_round_ends_with_one_line_and_can_be_repeated(
    actors, given_clients, next_round, expected, monkeypatch, ray_in_use
):
    def lose(actor, index):
        for each in few:
            os.kill(each.hello.pid, signal.SIGKILL)
        given_clients.then = lambda actor, index: None

    with actors(2) as few, monkeypatch.context() as patch:
        patch.setattr(ray_in_use, "_failed_starts", 3)
        given_clients.then = lose
        with pytest.raises(runtime.WorkerError, match="no Ray actor for") as caught:
            next_round(_MODEL, _DATA)
        assert "\n" not in str(caught.value)
    with actors(1):
        assert_equal(expected, next_round(_MODEL, _DATA))


def test_a_client_that_loses_two_actors_is_named(
    actors, given_clients, next_round, monkeypatch
):
    monkeypatch.setattr(ray_workers, "_DEPTH", 1)

    def lose(actor, index):
        if index == 3:
            os.kill(actor.hello.pid, signal.SIGKILL)

    _DATA[3].client_id = "heavy"
    with actors(2):
        given_clients.then = lose
        with pytest.raises(visits.ClientError, match=r"3 \(heavy\) .* lost 2 times"):
            next_round(_MODEL, _DATA)
