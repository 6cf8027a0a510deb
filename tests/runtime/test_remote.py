"""Clients on several workers: the same numbers, also when workers are lost."""

import asyncio
import collections
import contextlib
import gc
import os
import signal
import threading
import time

import numpy as np
import portpicker
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.comparison import assert_equal, assert_same
from tests.runtime.test_in_process import (  # noqa: F401
    test_calls_at_the_same_time_do_not_share_variables,
    test_it_works_inside_a_running_event_loop,
)
from tests.runtime.test_intrinsics import (  # noqa: F401
    test_aggregate_folds_in_the_order_of_the_clients,
    test_hash_tables_are_filled_before_they_are_used,
    test_map_broadcast_zip_and_evaluation_at_both_placements,
    test_secure_sums_give_the_plain_sums,
    test_select_gives_every_client_its_slices,
    test_sequences_are_reduced,
    test_sums_means_minima_maxima_and_the_values_themselves,
    test_zero_clients_give_zeros_of_the_right_type,
)
from tff_reg import models, runtime, training
from tff_reg.runtime import (
    context as context_lib,
    plan as plan_lib,
    remote,
    service,
    tff_internals,
    workers as workers_lib,
)


class LocalWorker:
    """A worker on this machine that can be killed and started again."""

    def __init__(self):
        self.port = portpicker.pick_unused_port()
        self.address = f"localhost:{self.port}"
        self._service = None

    @property
    def pid(self):
        return self._service._process.pid

    def start(self):
        if self._service is None or self._service._process.poll() is not None:
            self._service = service.Service(self.port)
            self._service.start()

    def kill(self):
        self._service.stop()


def _start_all(workers):
    threads = [threading.Thread(target=worker.start) for worker in workers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


@pytest.fixture(scope="module")
def local_workers():
    workers = [LocalWorker() for _ in range(3)]
    _start_all(workers)
    yield workers
    for worker in workers:
        worker.kill()


@pytest.fixture
def workers(local_workers):
    """Three workers that run."""
    yield local_workers
    runtime.shutdown()
    _start_all(local_workers)


@contextlib.contextmanager
def running_on(workers, clients_in_parallel=1):
    addresses = [worker.address for worker in workers]
    with runtime.running(
        "remote", workers=addresses, clients_in_parallel=clients_in_parallel
    ):
        yield


# What the imported tests' fixtures ask for: here "native" stands for in process, and
# everything else for two workers.


@pytest.fixture(scope="module")
def contexts(local_workers):
    here = workers_lib.ClientWorkers(["CPU:0"], 1)
    there = remote.RemoteWorkers([w.address for w in local_workers[:2]], 2)
    known = {"native": context_lib.InProcessContext(here)}
    known = collections.defaultdict(lambda: context_lib.InProcessContext(there), known)

    @contextlib.contextmanager
    def install(kind):
        with tff.framework.get_context_stack().install(known[kind]):
            yield

    yield install
    there.stop()


@pytest.fixture
def requests(monkeypatch):
    """Every request that is sent, as (address, method, fields)."""
    sent = []
    request = remote._Connection.request

    def recording(self, method, calls, **fields):
        sent.append((self.address, method, fields))
        return request(self, method, calls, **fields)

    monkeypatch.setattr(remote._Connection, "request", recording)
    return sent


@pytest.fixture
def before_the_first_result(monkeypatch):
    """`before_the_first_result(worker, action)`, when a result is asked of a worker."""
    actions = {}
    request = remote._Connection.request

    def acting(self, method, calls, **fields):
        if method == "Compute" and self.address in actions:
            actions.pop(self.address)()
        return request(self, method, calls, **fields)

    monkeypatch.setattr(remote._Connection, "request", acting)

    def register(worker, action):
        actions[worker.address] = action

    return register


def _clients(member):
    return tff.FederatedType(member, tff.CLIENTS)


def _server(member):
    return tff.FederatedType(member, tff.SERVER)


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

    @tff.federated_computation(_server(_VECTOR), _clients(tff.SequenceType(np.float32)))
    def next_round(model, numbers):
        change, weight = tff.federated_map(
            train, (tff.federated_broadcast(model), numbers)
        )
        return tff.federated_mean(tff.federated_map(halve, change), weight)

    return next_round


_MODEL = np.array([0.1, 0.7, 0.3], np.float32)
_NUMBERS = [[float(i), 1.5, 2.0 + i] for i in range(8)]


def _in_process(call):
    with runtime.running("in_process"):
        return call()


# --- numbers --------------------------------------------------------------------------


def _whole_clients():
    for index in range(5):
        rng = np.random.default_rng(index)
        yield tf.data.Dataset.from_tensors(
            collections.OrderedDict(
                x=rng.normal(size=(4 + index, 6, 6, 1)).astype(np.float32),
                y=rng.integers(0, 3, 4 + index).astype(np.int32),
                key=np.array([index, 1], np.int64),
            )
        )


@pytest.mark.parametrize(
    "name, model, norm", [("scaffold", "cnn", "group"), ("fedavg", "cnn", "batch")]
)
def test_one_two_and_three_workers_give_the_numbers_of_one_machine(
    workers, name, model, norm
):
    """Of a process with client states, and of a model with BatchNorm's statistics."""
    process = training.build_from_settings(
        name,
        models.build_model_fn(model, image_shape=(6, 6, 1), num_classes=3, norm=norm),
        training.ProcessSettings.of(name, batch_size=4, local_epochs=2),
        {},
    )
    data = list(_whole_clients())
    with runtime.running("in_process"):
        arguments = [process.initialize(), data]
        if isinstance(process, training.StatefulLearningProcess):
            client_state = process.initial_client_state(arguments[0])
            arguments.append([client_state] * len(data))
        expected = process.next(*arguments)
    found = []
    for number in (1, 2, 3):
        with running_on(workers[:number]):
            found.append(process.next(*arguments))
    assert_same(expected, found[0], rtol=1e-4, atol=1e-5)
    assert_equal(found[0], found[1])
    assert_equal(found[0], found[2])


def test_tffs_own_process_with_a_keras_model_and_batches(workers):
    def model_fn():
        keras = tf.keras.Sequential([tf.keras.layers.Dense(2, "softmax")])
        keras.build((None, 3))
        return tff.learning.models.from_keras_model(
            keras,
            tf.keras.losses.SparseCategoricalCrossentropy(),
            collections.OrderedDict(
                x=tf.TensorSpec([None, 3]), y=tf.TensorSpec([None], tf.int32)
            ),
        )

    process = tff.learning.algorithms.build_weighted_fed_avg(
        model_fn,
        tff.learning.optimizers.build_sgdm(0.1),
    )
    examples = collections.OrderedDict(
        x=tf.random.stateless_normal([12, 3], [1, 2]), y=tf.range(12) % 2
    )
    data = [
        tf.data.Dataset.from_tensor_slices(examples).take(7 + i).repeat(2).batch(4)
        for i in range(4)
    ]
    state = _in_process(process.initialize)
    expected = _in_process(lambda: process.next(state, data))
    with running_on(workers, clients_in_parallel=2):
        assert_same(expected, process.next(state, data))


def test_a_program_context_and_awaiting_callers_get_the_same(workers):
    next_round = _round()
    expected = _in_process(lambda: next_round(_MODEL, _NUMBERS))

    async def call():
        argument = tff.structure.Struct([(None, _MODEL), (None, _NUMBERS)])
        result = runtime.program_context().invoke(next_round, argument)
        return await tff.program.materialize_value(result)

    with running_on(workers[:2]):
        np.testing.assert_allclose(asyncio.run(call()), expected, rtol=1e-5)


def test_describe_names_the_workers(workers):
    a, b, _ = [worker.address for worker in workers]
    with running_on(workers[:2], clients_in_parallel=3):
        assert runtime.describe() == (
            f"clients run on 2 TFF workers: {a}, {b} (3 at a time on each)"
        )
    with running_on(workers[:1]):
        assert runtime.describe() == f"clients run on 1 TFF worker: {a} (1 at a time)"


# --- what is sent ---------------------------------------------------------------------


def test_all_workers_work_and_get_model_and_computations_once(workers, requests):
    next_round = _round()
    with running_on(workers[:2]):
        next_round(_MODEL, _NUMBERS)
        first, requests[:] = list(requests), []
        next_round(_MODEL, _NUMBERS)
    for sent, computations in ((first, 2), (requests, 0)):
        values = [fields["value"] for _, method, fields in sent if "value" in fields]
        kinds = collections.Counter(value.WhichOneof("value") for value in values)
        assert kinds["array"] == 2  # the model
        assert kinds["computation"] == 2 * computations
        graphs = [_graph(value) for value in values if value.HasField("computation")]
        # `train` reduces a data set, which is slow unless it is made a loop.
        assert not any(node.op == "ReduceDataset" for g in graphs for node in g.node)
        assert kinds["sequence"] + kinds["struct"] == len(_NUMBERS)
        results = collections.Counter(a for a, method, _ in sent if method == "Compute")
        assert sum(results.values()) == len(_NUMBERS)
        assert len(results) == 2


def _graph(value):
    graph = tf.compat.v1.GraphDef()
    value.computation.tensorflow.graph_def.Unpack(graph)
    return graph


def test_nothing_is_left_on_a_worker(workers, requests, monkeypatch):
    next_round = _round()
    disposed = []
    dispose = remote._Connection.dispose

    def recording(self, references):
        disposed.extend(references)
        dispose(self, references)

    monkeypatch.setattr(remote._Connection, "dispose", recording)
    with running_on(workers[:1]):
        for _ in range(5):
            next_round(_MODEL, _NUMBERS)
        created = sum(method.startswith("Create") for _, method, _ in requests)
        (worker,) = workers_in_use()
        connection = worker._connection
        assert len(connection._functions) == 2
        assert created - len(disposed) == len(connection._functions)
        _wait_until(lambda: not connection._disposals)
        del next_round
        gc.collect()
        assert not connection._functions
        # The next question takes what was let go meanwhile.
        connection.ask()
        assert not connection._garbage


def workers_in_use():
    """The workers of the runtime in use."""
    return tff.framework.get_context_stack().current._workers._workers


def test_a_client_may_send_more_than_tffs_100_megabytes(workers, monkeypatch):
    @tff.tensorflow.computation(tff.SequenceType(tff.TensorType(np.float32, [None])))
    def total(vectors):
        return vectors.reduce(0.0, lambda s, x: s + tf.reduce_sum(x))

    @tff.federated_computation(_clients(total.type_signature.parameter))
    def totals(vectors):
        return tff.federated_map(total, vectors)

    large = tf.data.Dataset.from_tensors(np.ones(26 * 2**20, np.float32))
    large.client_id = "whale"
    with running_on(workers[:1]):
        assert totals([large]) == [26 * 2**20]
        monkeypatch.setattr(tff_internals, "MAX_DATASET_BYTES", 10**6)
        with pytest.raises(plan_lib.ClientError, match=r"\(whale\).* exceeds maximum"):
            totals([large])


# --- errors ---------------------------------------------------------------------------


def test_a_clients_own_error_names_the_client_and_is_not_tried_again(workers, requests):
    @tff.tensorflow.computation(np.float32)
    def check(number):
        with tf.control_dependencies([tf.debugging.assert_less(number, 10.0)]):
            return tf.identity(number)

    @tff.federated_computation(_clients(np.float32))
    def total(numbers):
        return tff.federated_sum(tff.federated_map(check, numbers))

    with running_on(workers[:2]):
        with pytest.raises(plan_lib.ClientError, match="Client 1 failed: RemoteError"):
            total([1.0, 11.0])
        assert sum(method == "CreateCall" for _, method, _ in requests) == 2
        assert total([1.0, 2.0]) == 3.0
        assert all(worker.problem is None for worker in workers_in_use())


def test_a_worker_that_cannot_be_reached_at_the_start_is_named(workers, monkeypatch):
    monkeypatch.setattr(service, "CONNECT_SECONDS", 0.3)
    waits, ready_future = [], service.grpc.channel_ready_future

    class Watched:
        def __init__(self, channel):
            self._future = ready_future(channel)

        def result(self, timeout):
            waits.append(timeout)
            return self._future.result(timeout)

    monkeypatch.setattr(service.grpc, "channel_ready_future", Watched)
    nobody = f"localhost:{portpicker.pick_unused_port()}"
    with pytest.raises(runtime.WorkerError, match=f"answers at {nobody}: ") as caught:
        runtime.use("remote", workers=[workers[0].address, nobody])
    assert len(waits) == 2 and max(waits) <= 0.3
    assert "\n" not in str(caught.value)
    assert "default context" in runtime.describe()


def test_keyboard_interrupt_ends_a_round_at_once(workers, before_the_first_result):
    @tff.tensorflow.computation(np.float32)
    def endless(number):
        return tf.while_loop(lambda x: x > 0.0, lambda x: [x + 0.0], [number])[0]

    @tff.federated_computation(_clients(np.float32))
    def total(numbers):
        return tff.federated_sum(tff.federated_map(endless, numbers))

    main = threading.main_thread().ident
    before_the_first_result(
        workers[0], lambda: signal.pthread_kill(main, signal.SIGINT)
    )
    with running_on(workers[:1]):
        with pytest.raises(KeyboardInterrupt):
            total([1.0])
        assert total([-1.0, -2.0]) == -3.0
    workers[0].kill()  # it would count for ever


# --- lost workers ---------------------------------------------------------------------


def _wait_until(condition, seconds=20):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_worker_killed_in_a_round_costs_only_its_clients(
    workers, requests, before_the_first_result, monkeypatch
):
    monkeypatch.setattr(remote, "PING_SECONDS", 0.05)
    next_round = _round()
    with running_on(workers[:1]):
        expected = next_round(_MODEL, _NUMBERS)
    with running_on(workers):
        before_the_first_result(workers[1], workers[1].kill)
        assert_equal(expected, next_round(_MODEL, _NUMBERS))
        # It is left out, and takes part again once it is back.
        del requests[:]
        assert_equal(expected, next_round(_MODEL, _NUMBERS))
        assert workers[1].address not in {address for address, _, _ in requests}
        workers[1].start()
        _wait_until(lambda: workers_in_use()[1].problem is None)
        assert_equal(expected, next_round(_MODEL, _NUMBERS))
        assert workers[1].address in {address for address, _, _ in requests}


def test_a_worker_that_started_anew_between_rounds_is_used_at_once(workers):
    next_round = _round()
    with running_on(workers[:1]):
        expected = next_round(_MODEL, _NUMBERS)
        workers[0].kill()
        workers[0].start()
        assert_equal(expected, next_round(_MODEL, _NUMBERS))


def test_a_worker_that_hangs_is_noticed(workers, before_the_first_result, monkeypatch):
    monkeypatch.setattr(remote, "PING_SECONDS", 0.05)
    monkeypatch.setattr(remote, "ANSWER_SECONDS", 1.0)
    next_round = _round()
    with running_on(workers[:1]):
        expected = next_round(_MODEL, _NUMBERS)
    hanging = workers[1]
    before_the_first_result(hanging, lambda: os.kill(hanging.pid, signal.SIGSTOP))
    with running_on(workers[:2]):
        try:
            assert_equal(expected, next_round(_MODEL, _NUMBERS))
            assert workers_in_use()[1].problem == "does not answer"
        finally:
            os.kill(hanging.pid, signal.SIGCONT)


def test_without_workers_a_round_ends_with_one_line_and_can_be_repeated(
    workers, before_the_first_result, monkeypatch
):
    monkeypatch.setattr(service, "CONNECT_SECONDS", 0.5)
    next_round = _round()
    with running_on(workers[:2]):
        expected = next_round(_MODEL, _NUMBERS)
        for worker in workers[:2]:
            before_the_first_result(worker, worker.kill)
        for _ in range(2):
            with pytest.raises(runtime.WorkerError, match="No TFF worker") as caught:
                next_round(_MODEL, _NUMBERS)
            for worker in workers[:2]:
                assert f"{worker.address} has closed" in str(caught.value)
            assert "\n" not in str(caught.value)
        workers[1].start()
        assert_equal(expected, next_round(_MODEL, _NUMBERS))
