"""TFF's core language in process: what the native context gives, we give."""

import collections

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.comparison import assert_same
from tff_reg.runtime import visits


def _clients(member):
    return tff.FederatedType(member, tff.CLIENTS)


def _server(member):
    return tff.FederatedType(member, tff.SERVER)


_PAIR = tff.StructWithPythonType(
    [("b", np.float32), ("a", tff.TensorType(np.float32, [2]))],
    collections.OrderedDict,
)


def _pair(b, a):
    return collections.OrderedDict(b=np.float32(b), a=np.array(a, np.float32))


def test_results_have_the_same_values_dtypes_and_containers(both):
    @tff.tensorflow.computation(np.int32)
    def many_kinds(x):
        return collections.OrderedDict(
            z=x,
            text=tf.constant("abc"),
            texts=tf.constant(["a", "b"]),
            numbers=tf.range(3),
            truth=tf.constant(True),
            half=tf.constant(2.5, tf.float16),
            wide=tf.constant(2**40, tf.int64),
            matrix=[tf.constant([[1.0]]), (x + 1, x)],
            sequence=tf.data.Dataset.range(3).map(
                lambda i: collections.OrderedDict(b=i, a=tf.cast(i, tf.float32))
            ),
        )

    assert_same(*both(lambda: many_kinds(3)))


def test_sums_means_minima_maxima_and_values(both):
    @tff.federated_computation(_clients(_PAIR), _clients(np.int32))
    def statistics(pairs, weights):
        return (
            tff.federated_sum(pairs),
            tff.federated_mean(pairs),
            tff.federated_mean(pairs, weights),
            tff.federated_min(pairs),
            tff.federated_max(pairs),
            tff.federated_max(weights),
            tff.federated_sum(weights),
            pairs,
        )

    pairs = [_pair(1, [2, 3]), _pair(-4, [0.5, 7]), _pair(2, [1, 1])]
    native, ours = both(lambda: statistics(pairs, [3, 1, 5]))
    assert_same(native, ours)
    np.testing.assert_allclose(ours[0]["a"], [3.5, 11])


def test_map_broadcast_zip_and_evaluation_at_both_placements(both):
    @tff.tensorflow.computation(np.float32, np.float32)
    def add(x, y):
        return x + y

    @tff.tensorflow.computation
    def ten():
        return tf.constant(10.0)

    @tff.federated_computation(_clients(np.float32), _server(np.float32))
    def mix(values, offset):
        shifted = tff.federated_map(add, (values, tff.federated_broadcast(offset)))
        again = tff.federated_map(add, (shifted, tff.federated_eval(ten, tff.CLIENTS)))
        at_server = tff.federated_map(
            add, (tff.federated_sum(again), tff.federated_eval(ten, tff.SERVER))
        )
        # A second visit to the clients, with what came of the first.
        final = tff.federated_map(add, (values, tff.federated_broadcast(at_server)))
        return collections.OrderedDict(
            shifted=shifted,
            zipped=tff.federated_zip((values, (again, shifted))),
            server=tff.federated_zip((at_server, offset)),
            final=final,
            same=tff.federated_value(3, tff.CLIENTS),
            mean=tff.federated_mean(final),
            sent=tff.federated_broadcast(offset),
        )

    native, ours = both(lambda: mix([1.0, 2.0, 4.0], 0.5))
    assert_same(native, ours)
    assert ours["shifted"] == [1.5, 2.5, 4.5]
    assert ours["same"] == 3


def test_aggregate_folds_in_the_order_of_the_clients(both):
    @tff.tensorflow.computation(np.str_, np.str_)
    def append(text, word):
        return tf.strings.join([text, word], ",")

    @tff.tensorflow.computation(np.str_)
    def finish(text):
        return tf.strings.join([text, "."])

    @tff.federated_computation(_clients(np.str_))
    def joined(words):
        return tff.federated_aggregate(words, "", append, append, finish)

    native, ours = both(lambda: joined(["a", "b", "c"]))
    assert ours == b",a,b,c."
    assert native.count(b"a") == 1  # the native order may differ


def test_secure_sums_give_the_plain_sums(both):
    @tff.federated_computation(_clients(np.int32))
    def sums(values):
        return (
            tff.federated_secure_sum(values, 100),
            tff.federated_secure_sum_bitwidth(values, 8),
        )

    native, ours = both(lambda: sums([1, 2, 30]))
    assert_same(native, ours)
    assert ours == (33, 33)


def test_a_secure_sum_refuses_values_above_its_maximum(in_process):
    @tff.federated_computation(_clients(np.int32))
    def secure(values):
        return tff.federated_secure_sum(values, 10)

    with pytest.raises(visits.ClientError, match="(?s)Client 1 .*larger than maximum"):
        secure([1, 11, 2])


@pytest.mark.parametrize("names", [("key", "row"), ("row", "key")])
def test_select_gives_every_client_its_slices(contexts, names):
    @tff.tensorflow.computation(tff.TensorType(np.float32, [4, 2]), np.int32)
    def look_up(table, key):
        found = {"key": key, "row": table[key]}
        return collections.OrderedDict((name, found[name]) for name in names)

    keys_type = _clients(tff.TensorType(np.int32, [2]))

    @tff.federated_computation(_server(tff.TensorType(np.float32, [4, 2])), keys_type)
    def rows(table, keys):
        chosen = tff.federated_select(
            keys, tff.federated_value(4, tff.SERVER), table, look_up
        )

        @tff.tensorflow.computation(chosen.type_signature.member)
        def total(dataset):
            return dataset.reduce(tf.zeros(2), lambda s, e: s + e["row"])

        return tff.federated_map(total, chosen)

    table = np.arange(8, dtype=np.float32).reshape(4, 2)
    keys = [np.array([0, 3], np.int32), np.array([1, 1], np.int32)]
    with contexts("in_process"):
        ours = rows(table, keys)
    np.testing.assert_array_equal(ours[0], [6, 8])
    np.testing.assert_array_equal(ours[1], [4, 6])
    if names == ("key", "row"):  # natively, other orders of names are mixed up
        with contexts("tff"):
            assert_same(rows(table, keys), ours)


def test_sequences_are_reduced(both):
    @tff.tensorflow.computation(np.float32, np.float32)
    def add(x, y):
        return x + y

    @tff.federated_computation(tff.SequenceType(np.float32))
    def reduced(sequence):
        return tff.sequence_reduce(sequence, 1.0, add)

    @tff.federated_computation(_clients(tff.SequenceType(np.float32)))
    def per_client(sequences):
        return tff.federated_map(reduced, sequences)

    with_data = [[1.0, 2.0], [], [5.0]]
    assert_same(*both(lambda: reduced([1.0, 2.0])))
    native, ours = both(lambda: per_client(with_data))
    assert_same(native, ours)
    assert ours == [4.0, 1.0, 6.0]


def test_sequences_are_mapped_and_summed(in_process):
    """Which TFF's worker does not do."""
    pair = tff.to_type(collections.OrderedDict(b=np.float32, a=np.float32))

    @tff.tensorflow.computation(pair)
    def swapped(x):
        return collections.OrderedDict(d=x["a"] * 2, c=x["b"])

    @tff.federated_computation(tff.SequenceType(pair))
    def total(sequence):
        return tff.sequence_sum(tff.sequence_map(swapped, sequence))

    dataset = tf.data.Dataset.from_tensor_slices(
        collections.OrderedDict(b=[1.0, 2.0], a=[10.0, 20.0])
    )
    assert total(dataset) == collections.OrderedDict(d=60.0, c=3.0)


def test_polymorphic_computations_and_functions_as_arguments(both):
    @tff.tensorflow.computation
    def difference(x, y):
        return x - y

    assert_same(*both(lambda: (difference(5, 3), difference(2.5, 1.0))))

    @tff.tensorflow.computation(np.int32)
    def increment(x):
        return x + 1

    @tff.federated_computation(tff.FunctionType(np.int32, np.int32), np.int32)
    def twice(function, x):
        return function(function(x))

    native, ours = both(lambda: twice(increment, 3))
    assert native == ours == 5


def test_hash_tables_are_filled_before_they_are_used(both):
    @tff.tensorflow.computation(tff.SequenceType(np.str_))
    def look_up(words):
        table = tf.lookup.StaticHashTable(
            tf.lookup.KeyValueTensorInitializer(
                tf.constant(["a", "b"]), tf.constant([10, 20])
            ),
            default_value=-1,
        )
        return words.map(table.lookup).reduce(0, lambda s, x: s + x)

    native, ours = both(lambda: look_up(["a", "b", "zzz"]))
    assert native == ours == 29


def test_variables_are_initialised_from_arguments_before_they_are_used(both):
    @tff.tensorflow.computation(np.float32, tff.SequenceType(np.float32))
    def accumulated(start, numbers):
        total = tf.Variable(start * 2)
        count = tf.Variable(0)

        @tf.function
        def run():
            for number in numbers:
                total.assign_add(number)
                count.assign_add(1)
            return total.read_value(), count.read_value()

        return run()

    native, ours = both(lambda: accumulated(1.0, [1.0, 2.0, 3.0]))
    assert_same(native, ours)
    assert ours == (8.0, 3)


def test_reducing_a_data_set_with_captured_values_and_growing_state(both):
    @tff.tensorflow.computation(tff.SequenceType(np.float32), np.float32)
    def running(numbers, factor):
        captured = tf.Variable(3.0)

        @tf.function
        def run():
            def step(state, number):
                seen, total = state
                return (
                    tf.concat([seen, [number * factor + captured]], 0),
                    total + number,
                )

            nothing = tf.zeros([0], tf.float32)
            nothing = tf.ensure_shape(nothing, [None])
            return numbers.reduce((nothing, 0.0), step)

        return run()

    native, ours = both(lambda: running([1.0, 2.0], 10.0))
    assert_same(native, ours)
    np.testing.assert_array_equal(ours[0], [13, 23])


@pytest.mark.parametrize(
    "wrong",
    [
        3,
        ["a"],
        [np.zeros(3, np.float32)],
    ],
    ids=str,
)
def test_wrong_arguments_get_tffs_own_errors(contexts, wrong):
    @tff.federated_computation(_clients(np.float32))
    def total(values):
        return tff.federated_sum(values)

    messages = []
    for kind in ("tff", "in_process"):
        with contexts(kind), pytest.raises(Exception) as caught:
            total(wrong)
        messages.append((caught.type, str(caught.value)))
    assert messages[0] == messages[1]


@tff.tensorflow.computation(tff.SequenceType(np.int32))
def _total(numbers):
    return numbers.reduce(0, lambda s, x: s + x)


@pytest.mark.parametrize(
    "wrong, elements",
    [
        (tf.data.Dataset.range(3), "int64"),
    ],
)
def test_wrong_data_sets_are_told_from_right_ones(contexts, wrong, elements):
    with contexts("tff"), pytest.raises(TypeError, match="Cannot serialize"):
        _total(wrong)
    with contexts("in_process"), pytest.raises(TypeError) as caught:
        _total(wrong)
    assert str(caught.value) == (
        f"A data set has elements {elements}, and the computation takes int32: name,"
        " cast and batch them so (Dataset.map, .batch)."
    )


def test_different_numbers_of_clients_are_refused(in_process):
    @tff.federated_computation(_clients(np.int32), _clients(np.int32))
    def both_sums(x, y):
        return tff.federated_sum(x), tff.federated_sum(y)

    with pytest.raises(ValueError, match="Conflicting cardinalities"):
        both_sums([1, 2], [1])
