"""What users of the in-process runtime rely on besides its results."""

import collections
import gc
import signal
import threading
import time

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tff_reg.runtime import (
    context as context_lib,
    visits,
    workers,
)

_DATA = tff.SequenceType(np.float32)


def _clients(member):
    return tff.FederatedType(member, tff.CLIENTS)


def _server(member):
    return tff.FederatedType(member, tff.SERVER)


def _training(constant_size=1):
    """A round of a linear model: variables, a reduced data set, a mean, an update."""
    constant = np.zeros(constant_size, np.float32)

    @tff.tensorflow.computation(np.float32, _DATA)
    def train(model, numbers):
        weight = tf.Variable(model)

        @tf.function
        def run():
            def step(seen, number):
                weight.assign_sub(0.1 * (weight - number))
                return seen + 1

            seen = numbers.reduce(0, step)
            return weight - model + tf.reduce_sum(constant), tf.cast(seen, tf.float32)

        return run()

    @tff.tensorflow.computation(np.float32, np.float32)
    def update(model, delta):
        return model + delta

    @tff.federated_computation(_server(np.float32), _clients(_DATA))
    def next_round(model, numbers):
        delta, weight = tff.federated_map(
            train, (tff.federated_broadcast(model), numbers)
        )
        mean = tff.federated_mean(delta, weight)
        return tff.federated_map(update, (model, mean))

    return next_round


def _expected(model, clients):
    """The same in NumPy."""
    deltas = []
    for numbers in clients:
        weight = np.float32(model)
        for number in numbers:
            weight -= np.float32(0.1) * (weight - np.float32(number))
        deltas.append(weight - np.float32(model))
    return model + np.average(deltas, weights=[len(numbers) for numbers in clients])


_NUMBERS = [[1.0, 2.0, 3.0], [10.0], [4.0, 4.0]]


def test_the_second_round_builds_and_compiles_nothing(in_process, monkeypatch):
    next_round = _training()
    model = next_round(0.0, _NUMBERS)
    np.testing.assert_allclose(model, _expected(0.0, _NUMBERS), rtol=1e-6)
    builds = context_lib.PLANS.builds

    def refuse(*args, **kwargs):
        raise AssertionError("compiled or built again")

    monkeypatch.setattr(tff.framework, "to_call_dominant", refuse)
    monkeypatch.setattr(tf.compat.v1, "wrap_function", refuse)
    monkeypatch.setattr(tf.graph_util, "import_graph_def", refuse)
    again = next_round(model, _NUMBERS)
    np.testing.assert_allclose(again, _expected(model, _NUMBERS), rtol=1e-6)
    assert context_lib.PLANS.builds == builds


def _resident_megabytes():
    with open("/proc/self/status", encoding="ascii") as status:
        line = next(line for line in status if line.startswith("VmRSS"))
    return int(line.split()[1]) / 1024


@pytest.mark.slow
def test_300_rounds_need_no_more_than_10_megabytes(in_process):
    next_round = _training()
    model = 0.0
    for _ in range(20):
        model = next_round(model, _NUMBERS)
    gc.collect()
    before = _resident_megabytes()
    for _ in range(300):
        model = next_round(model, _NUMBERS)
    gc.collect()
    assert _resident_megabytes() - before < 10


@pytest.mark.slow
def test_50_processes_one_after_another_need_no_more_than_30_megabytes(in_process):
    """Each has a megabyte of constants: to keep them would need 100 and more."""
    megabyte = 2**18

    def build_and_run(index):
        model = _training(megabyte + index)(0.0, _NUMBERS[:2])
        np.testing.assert_allclose(model, _expected(0.0, _NUMBERS[:2]), rtol=1e-6)
        gc.collect()

    for index in range(5):
        build_and_run(index)
    before = _resident_megabytes()
    for index in range(50):
        build_and_run(5 + index)
    assert _resident_megabytes() - before < 30


def test_calls_at_the_same_time_do_not_share_variables(contexts):
    next_round = _training()
    rng = np.random.default_rng(3)
    arguments = [
        (float(model), [list(rng.normal(size=20).astype(np.float32)) for _ in range(3)])
        for model in rng.normal(size=8).astype(np.float32)
    ]
    expected = [_expected(*argument) for argument in arguments]
    found = collections.defaultdict(list)

    def call(index):
        with contexts("two_at_a_time"):
            for _ in range(5):
                found[index].append(next_round(*arguments[index]))

    threads = [threading.Thread(target=call, args=(i,)) for i in range(len(arguments))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for index, models in found.items():
        assert len(models) == 5
        np.testing.assert_allclose(models, expected[index], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("kind", ["in_process", "two_at_a_time"])
def test_a_failing_client_is_named_and_the_context_stays_usable(contexts, kind):
    @tff.tensorflow.computation(_DATA)
    def largest(numbers):
        total = numbers.reduce(0.0, tf.maximum)
        with tf.control_dependencies([tf.debugging.assert_less(total, 10.0)]):
            return tf.identity(total)

    @tff.federated_computation(_clients(_DATA))
    def sum_of_largest(numbers):
        return tff.federated_sum(tff.federated_map(largest, numbers))

    datasets = [tf.data.Dataset.from_tensor_slices([float(i), 1.0]) for i in range(20)]
    for index, dataset in enumerate(datasets):
        dataset.client_id = f"writer_{index}"
    with contexts(kind):
        with pytest.raises(visits.ClientError, match=r"Client 10 \(writer_10\)") as e:
            sum_of_largest(datasets)
        assert e.value.client_index == 10
        assert isinstance(e.value.__cause__, tf.errors.InvalidArgumentError)
        with pytest.raises(visits.ClientError, match="Client 1 failed: Invalid"):
            sum_of_largest([[1.0], [11.0]])
        assert sum_of_largest(datasets[:5]) == 11.0


@pytest.mark.parametrize("kind", ["in_process", "two_at_a_time"])
def test_keyboard_interrupt_stops_a_round(contexts, kind):
    started = threading.Event()
    visited = []

    def visit(number):
        visited.append(number)
        started.set()
        time.sleep(0.01)
        return number

    @tff.tensorflow.computation(np.float32)
    def slow(number):
        return tf.ensure_shape(tf.numpy_function(visit, [number], tf.float32), [])

    @tff.federated_computation(_clients(np.float32))
    def total(numbers):
        return tff.federated_sum(tff.federated_map(slow, numbers))

    def interrupt():
        started.wait(30)
        signal.raise_signal(signal.SIGINT)

    with contexts(kind):
        assert total([1.0]) == 1.0
        visited.clear()
        started.clear()
        thread = threading.Thread(target=interrupt)
        thread.start()
        with pytest.raises(KeyboardInterrupt):
            total([float(i) for i in range(2000)])
        thread.join()
        assert len(visited) < 1000
        assert total([1.0, 2.0]) == 3.0


def test_client_data_are_neither_copied_nor_read_in_advance(in_process):
    """80 megabytes a client, of which one batch is used: nothing is serialised."""

    @tff.tensorflow.computation(tff.SequenceType(tff.TensorType(np.float32, [None, 4])))
    def first_sum(batches):
        return batches.take(1).reduce(0.0, lambda s, b: s + tf.reduce_sum(b))

    @tff.federated_computation(_clients(first_sum.type_signature.parameter))
    def total(batches):
        return tff.federated_sum(tff.federated_map(first_sum, batches))

    examples = tf.ones([5 * 2**20, 4])
    datasets = [
        tf.data.Dataset.from_tensor_slices(examples).batch(8, drop_remainder=False)
        for _ in range(4)
    ]
    assert total(datasets) == 4 * 32.0  # also traces
    before = _resident_megabytes()
    assert total(datasets) == 4 * 32.0
    assert _resident_megabytes() - before < 40


def test_many_clients_with_a_large_model_need_little_memory(contexts):
    """20 clients, a model of 8 megabytes: to keep all updates would need 160."""
    size = 2 * 2**20
    model_type = tff.TensorType(np.float32, [size])

    @tff.tensorflow.computation(model_type, np.float32)
    def client_update(model, number):
        return model * 0 + number

    @tff.federated_computation(_server(model_type), _clients(np.float32))
    def next_round(model, numbers):
        updates = tff.federated_map(
            client_update, (tff.federated_broadcast(model), numbers)
        )
        return tff.federated_mean(updates)

    model = np.zeros(size, np.float32)
    numbers = [float(i) for i in range(20)]
    peak = [0.0]
    done = threading.Event()

    def watch():
        while not done.is_set():
            peak[0] = max(peak[0], _resident_megabytes())
            time.sleep(0.001)

    with contexts("two_at_a_time"):
        assert next_round(model, numbers)[0] == 9.5
        gc.collect()
        before = _resident_megabytes()
        watcher = threading.Thread(target=watch)
        watcher.start()
        result = next_round(model, numbers)
        done.set()
        watcher.join()
    assert result[-1] == 9.5
    assert peak[0] - before < 100


def test_a_result_given_to_the_next_round_is_not_copied(in_process):
    """As a server's state is, which may be large."""

    @tff.tensorflow.computation(tff.TensorType(np.float32, [3]))
    def double(x):
        return x * 2, x

    given = np.array([1, 2, 3], np.float32)
    first, same = double(given)
    given[0] = 7
    np.testing.assert_array_equal(same, [1, 2, 3])
    second, same = double(first)
    np.testing.assert_array_equal(second, [4, 8, 12])
    assert np.shares_memory(same, first)
    # What only shows the same memory is another array.
    np.testing.assert_array_equal(double(first[::-1])[0], [12, 8, 4])
    assert not np.shares_memory(double(first.copy())[1], first)
    with pytest.raises(ValueError, match="read-only"):
        first[0] = 0


def test_calls_work_inside_a_callers_graph(in_process):
    with tf.Graph().as_default():
        np.testing.assert_allclose(_training()(0.0, [[1.0]]), 0.1, rtol=1e-6)


def test_calls_inside_a_traced_function_are_refused(in_process):
    @tff.tensorflow.computation
    def draw():
        return tf.random.uniform([])

    with pytest.raises(
        RuntimeError, match="would become a constant of that function: call"
    ):
        tf.function(draw)()
    assert 0 <= draw() < 1


def test_control_dependencies_on_arguments_may_be_dropped(both):
    """As TFF's secure sums do with what they are given and do not use."""

    @tff.tensorflow.computation(np.float32, np.float32)
    def later(first, then):
        with tf.control_dependencies([first]):
            return tf.identity(then), tf.Variable(3.0).read_value()

    for found in both(lambda: later(1.0, 2.0)):
        assert found == (2.0, 3.0)


@pytest.mark.skipif(tf.__version__ > "2.16", reason="TFF's JAX is left out there")
def test_computations_that_are_not_tensorflows_are_refused(in_process):
    @tff.jax.computation(np.float32)
    def double(x):
        return x * 2

    with pytest.raises(NotImplementedError, match="of kind 'xla'"):
        double(1.0)


@pytest.mark.parametrize(
    "text, words",
    [
        (
            "Received a label value of 3 which is outside the valid range of [0, 3).",
            "a label is 3, and the model has 3 outputs: number the classes from 0",
        ),
        (
            "Detected at node away.gradient/mine.term/GatherV2 defined at ...",
            "mine.term: RuntimeError: Detected at",
        ),
        ("Detected at node away.gradient/MatMul", "RuntimeError: Detected at"),
    ],
)
def test_an_error_in_a_clients_graph_names_the_hook(text, words):
    assert visits.reason(RuntimeError(text)).startswith(words)


def test_a_full_device_is_told_in_one_line():
    text = (
        "OOM when allocating tensor with shape[64,32] and type float\n\t [[{{node a}}]]"
    )
    said = visits.reason(tf.errors.ResourceExhaustedError(None, None, text))
    assert said.startswith("the memory of its device is full (OOM when allocating")
    assert "smaller batch_size" in said and "\n" not in said and "node" not in said


class _Cohort:
    """Clients of the given sizes; remembers in which order they began."""

    def __init__(self, sizes, result, program):
        self._sizes, self._result, self.begun = sizes, result, []
        self.program = program

    def __len__(self):
        return len(self._sizes)

    def num_bytes(self, index):
        return self._sizes[index]

    def visit(self, index):
        self.begun.append(index)
        time.sleep(0.02)
        return [[index, self._result]]


@pytest.mark.parametrize(
    "numbers, rounds",
    [(1, [{0: {0, 1}, 2: {3, 4}}, {0: {3, 4}}]), (2**20, 2 * [{0: {0, 1}, 2: {2, 3}}])],
)
def test_the_largest_clients_begin_first_unless_results_are_large(numbers, rounds):
    two = workers.ClientWorkers(["CPU:0"], 2)
    program = _Cohort  # Its first round shows how large results are.
    for begun in rounds:
        cohort = _Cohort([1, 1, 2, 3, 9, 1], tf.zeros([numbers]), program)
        assert [index for ((index, _),) in two.results(cohort)] == [*range(6)]
        assert sorted(cohort.begun) == [*range(6)]
        for place, pair in begun.items():  # Two at a time.
            assert {*cohort.begun[place : place + 2]} == pair
    two.stop()
