"""Client data over shared arrays: forms, laziness, the same batches in both forms."""

import collections
import functools
import pickle
import tracemalloc

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tff_reg.data import (
    augmentation,
    client_data as client_data_lib,
    digests,
    keys,
    partitions,
)

ArrayClientData = client_data_lib.ArrayClientData


def _arrays(count=30, dtype=np.uint8):
    x = np.arange(count * 12).reshape(count, 2, 3, 2) % 251
    return x.astype(dtype), (np.arange(count) % 10).astype(np.int64)


def _data(**kwargs):
    x, y = _arrays()
    partition = [np.arange(0, 7), np.array([], dtype=np.int64), np.array([20, 9, 15])]
    return x, y, partition, ArrayClientData(x, y, partition, **kwargs)


def test_names_sizes_and_types():
    _, _, _, data = _data()
    assert isinstance(data, tff.simulation.datasets.ClientData)
    assert data.client_ids == ["client_0000", "client_0001", "client_0002"]
    assert data.client_sizes.tolist() == [7, 0, 3]
    assert data.element_type_structure == collections.OrderedDict(
        x=tf.TensorSpec([2, 3, 2], tf.uint8), y=tf.TensorSpec([], tf.int32)
    )


def test_client_ids_are_given_or_sorted():
    x, y, partition, data = _data(client_ids=["z", "a", "m"])
    assert data.client_ids == ["z", "a", "m"]
    assert np.array_equal(data.client_positions("m"), partition[2])
    data = ArrayClientData(x, y, [np.array([0])] * 12_345)
    assert data.client_ids == sorted(data.client_ids)


@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_examples_are_the_rows_of_the_partition_as_stored(dtype):
    x, y = _arrays(dtype=dtype)
    partition = [np.array([3, 1]), np.array([29])]
    data = ArrayClientData(x, y, partition)
    for client_id, positions in zip(data.client_ids, partition):
        examples = data.client_examples(client_id)
        assert list(examples) == ["x", "y"]
        assert examples["x"].dtype == dtype and examples["y"].dtype == np.int32
        assert np.array_equal(examples["x"], x[positions])
        assert np.array_equal(examples["y"], y[positions])


def _drain(dataset):
    return [{name: value.numpy() for name, value in e.items()} for e in dataset]


def test_single_examples_come_the_same_eagerly_in_a_graph_and_from_tff():
    x, y, partition, data = _data()
    for client_id, positions in zip(data.client_ids, partition):
        for dataset in (
            data.create_tf_dataset_for_client(client_id),
            data.serializable_dataset_fn(client_id),
            data.serializable_dataset_fn(tf.constant(client_id)),
            tf.data.Dataset.from_tensors(client_id).flat_map(
                data.serializable_dataset_fn
            ),
        ):
            assert dataset.element_spec == data.element_type_structure
            examples = _drain(dataset)
            assert [e["y"] for e in examples] == y[positions].tolist()
            for example, position in zip(examples, positions):
                assert np.array_equal(example["x"], x[position])


def test_whole_client_form_is_one_element_with_the_key():
    x, y, partition, data = _data()
    for client_id, positions in zip(data.client_ids, partition):
        key = keys.client_key(0, 0, client_id)
        (element,) = _drain(data.whole_client_dataset(client_id, key))
        assert list(element) == ["x", "y", "key"]
        assert element["x"].dtype == np.uint8 and element["y"].dtype == np.int32
        assert np.array_equal(element["x"], x[positions])
        assert np.array_equal(element["y"], y[positions])
        assert element["key"].dtype == np.int64
        assert np.array_equal(element["key"], key)


def test_a_recipe_makes_the_same_data_set_elsewhere():
    x, y, partition, data = _data()
    key = np.array([3, 4], np.int64)
    dataset = data.whole_client_dataset("client_0002", key)
    assert dataset.origin.load is None
    data.load_by(functools.partial(ArrayClientData, x, y, partition))
    other = data.whole_client_dataset("client_0002", key).origin
    # A new key, the same examples; of other client data, others.
    assert other.name == dataset.origin.name
    assert (
        _data()[-1].whole_client_dataset("client_0002", key).origin.name != other.name
    )
    make, load = pickle.loads(pickle.dumps((other.make, other.load)))
    for examples in (other.examples(), load()):
        assert sum(array.nbytes for array in examples.values()) == other.num_bytes
        (element,), (expected,) = _drain(make(examples)), _drain(dataset)
        assert list(element) == list(expected)
        for name in element:
            np.testing.assert_array_equal(element[name], expected[name])
    data.load_by(functools.partial(ArrayClientData, x, y, partition[::-1]))
    load = data.whole_client_dataset("client_0002", key).origin.load
    with pytest.raises(client_data_lib.ClientDataError, match="have other examples"):
        load()


def test_digests_depend_on_examples_and_partition():
    x, y, partition, data = _data()
    same = ArrayClientData(x.copy(), y.astype(np.int64), [p.copy() for p in partition])
    assert data.digests == same.digests
    key = np.zeros(2, np.int64)
    name = same.whole_client_dataset("client_0000", key).origin.name
    same.arrays[0][...] += 1
    assert data.digests != same.digests
    assert name != same.whole_client_dataset("client_0000", key).origin.name
    of_examples, of_split = data.digests.values()
    swapped = [partition[1], partition[0], *partition[2:]]
    for other, is_same in (
        (ArrayClientData(x, (y + 1) % 3, partition), (False, True)),
        (ArrayClientData(x, y, swapped), (True, False)),
    ):
        first, second = other.digests.values()
        assert (first == of_examples, second == of_split) == is_same
    # So do those whom test examples of other arrays belong to.
    same = ArrayClientData(x, y, partition)
    same.tests = ArrayClientData(x.copy(), y.copy(), swapped)
    assert data.digests[digests.SPLIT] != same.digests[digests.SPLIT]
    # Another shape or type of the same bytes is something else.
    assert len({digests.of_examples(each) for each in (x, x.reshape(-1))}) == 2


@pytest.mark.parametrize("client_id", ["client_0000", "client_0001", "client_0002"])
@pytest.mark.parametrize(
    "batch_size, local_epochs",
    [
        (3, 2),
        (100, 3),
    ],
)
def test_batched_form_draws_what_a_loop_over_the_whole_client_draws(
    client_id, batch_size, local_epochs
):
    _, _, _, data = _data()
    key = keys.client_key(5, 2, client_id)
    augment = augmentation.compose(
        augmentation.pad_crop(1), augmentation.horizontal_flip()
    )
    (whole,) = _drain(data.whole_client_dataset(client_id, key))
    expected = []
    for epoch in range(local_epochs):
        order = keys.epoch_order(whole["key"], epoch, len(whole["y"])).numpy()
        for start in range(0, len(order), batch_size):
            rows = order[start : start + batch_size]
            step_key = keys.step_key(whole["key"], len(expected))
            images = augment(whole["x"][rows], step_key).numpy()
            expected.append((images, whole["y"][rows], step_key.numpy()))
    dataset = data.batched_dataset(
        client_id, key, batch_size, local_epochs, augment, include_key=True
    )
    for _ in range(2):
        batches = _drain(dataset)
        assert len(batches) == len(expected)
        for batch, (images, labels, step_key) in zip(batches, expected):
            assert batch["x"].dtype == np.float32 and batch["y"].dtype == np.int32
            assert np.array_equal(batch["x"], images)
            assert np.array_equal(batch["y"], labels)
            assert np.array_equal(batch["key"], step_key)


def test_batched_form_has_the_contracts_type_and_every_example_once_an_epoch():
    x, y, partition, data = _data()
    key = keys.client_key(0, 0, "client_0000")
    dataset = data.batched_dataset("client_0000", key, 4, 2)
    assert dataset.element_spec == collections.OrderedDict(
        x=tf.TensorSpec([None, 2, 3, 2], tf.float32), y=tf.TensorSpec([None], tf.int32)
    )
    batches = _drain(dataset)
    assert [len(batch["y"]) for batch in batches] == [4, 3, 4, 3]
    first = np.concatenate([batch["y"] for batch in batches[:2]])
    second = np.concatenate([batch["y"] for batch in batches[2:]])
    assert sorted(first) == sorted(second) == sorted(y[partition[0]])
    assert not np.array_equal(first, second)
    rows = np.concatenate([batch["x"] for batch in batches[:2]])
    assert np.array_equal(rows[np.argsort(first)], x[partition[0]].astype(np.float32))


def test_a_client_without_examples_has_valid_empty_data():
    _, _, _, data = _data()
    key = keys.client_key(0, 0, "client_0001")
    assert not _drain(data.create_tf_dataset_for_client("client_0001"))
    assert not _drain(data.batched_dataset("client_0001", key, 4, 2))
    (whole,) = _drain(data.whole_client_dataset("client_0001", key))
    assert whole["x"].shape == (0, 2, 3, 2) and whole["y"].shape == (0,)


def test_images_are_not_copied_for_10_000_clients():
    x = np.zeros((50_000, 32, 32, 3), dtype=np.uint8)
    y = np.zeros(50_000, dtype=np.int32)
    used = {}
    for num_clients in (10, 10_000):
        partition = np.array_split(np.arange(50_000), num_clients)
        tracemalloc.start()
        data = ArrayClientData(x, y, partition)
        used[num_clients] = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
        assert len(data.client_ids) == num_clients
    # The positions: 8 bytes an example. The images would be 154 MB.
    assert used[10] < 50_000 * 8 + 20_000
    # A name and its entry in a dictionary: some 150 to 250 bytes.
    assert used[10_000] - used[10] < 10_000 * 300


def test_examples_and_labels_may_be_dicts_and_tuples_of_arrays():
    x, y = _arrays()
    labels = (y / 2).astype(np.float32)
    data = ArrayClientData({"b": x, "a": x[:, :1]}, (labels, y), [[3, 1], [0]])
    assert data.classes is None
    found = data.client_examples("client_0000")
    np.testing.assert_array_equal(found["x"]["a"], x[[3, 1], :1])
    np.testing.assert_array_equal(found["y"][0], labels[[3, 1]])
    (element,) = data.whole_client_dataset("client_0000", [1, 2])
    np.testing.assert_array_equal(element["x"]["b"], x[[3, 1]])
    (batch,) = data.batched_dataset("client_0001", [1, 2], 4)
    assert batch["x"]["a"].dtype == tf.float32 and batch["y"][1].shape == (1,)
    (single, _) = data.create_tf_dataset_for_client("client_0000")
    assert single["y"][0] == labels[3]
    assert len([*data.serializable_dataset_fn("client_0001")]) == 1
    other = ArrayClientData({"b": x, "a": 1 - x[:, :1]}, (labels, y), [[3, 1], [0]])
    assert data.digests != other.digests
    held = ArrayClientData({"b": x}, labels, [[3, 1], [0, 2]]).hold_out(0.5, seed=0)
    assert held.tests.client_sizes.tolist() == [1, 1]


class TestRefusals:
    def test_raises_on_an_unknown_client_in_every_form(self):
        _, _, _, data = _data()
        for call in (
            lambda: data.client_examples("nobody"),
            lambda: data.create_tf_dataset_for_client("nobody"),
            lambda: data.whole_client_dataset("nobody", [1, 2]),
            lambda: data.batched_dataset("nobody", [1, 2], 4),
        ):
            with pytest.raises(client_data_lib.UnknownClientError, match="'nobody'"):
                call()
        with pytest.raises(tf.errors.InvalidArgumentError, match="no such client"):
            data.serializable_dataset_fn("nobody")
        dataset = tf.data.Dataset.from_tensors("nobody").flat_map(
            data.serializable_dataset_fn
        )
        with pytest.raises(tf.errors.InvalidArgumentError, match="no such client"):
            list(dataset)

    def test_raises_on_arrays_that_do_not_fit_together(self):
        x, y = _arrays()
        for arguments, words in [
            ((x, y[:-1], [[0]]), "as many labels"),
            (({"a": x, "b": x[:-1]}, y, [[0]]), "as many labels"),
            (((x, x.astype(int)), y, [[0]]), "x has dtype int64"),
            ((x, y.astype(str), [[0]]), "y has dtype <U"),
            ((x.astype(np.float64), y, [[0]]), "float64"),
            ((x, y, []), "no clients"),
            ((x, y, [[0], [1]], ["a"]), "one for each"),
            ((x, y, [[0], [1]], ["a", "a"]), "distinct"),
        ]:
            with pytest.raises(client_data_lib.ClientDataError, match=words):
                ArrayClientData(*arguments)

    def test_raises_on_positions_and_labels_that_are_others(self):
        x, y = _arrays()
        for labels, partition, words in [
            (y, [[0], np.arange(30) < 3], r"client 1; .* np.flatnonzero\(mask\)"),
            (y, [[0.7, 1.9]], "float64 .2,. for client 0; .* whole numbers"),
            (y, [[[0, 1]]], "int64 .1, 2. for client 0"),
            (y, [["a"]], "<U1"),
            (y, [[0], [30]], "to 30, but there are 30 examples"),
            (y, [[-1]], "from -1"),
            (y, [np.array([2**63], np.uint64)], "from -9223372036854775808"),
            (y + 2**32, [[0]], r"below 2\*\*31, but one is 4294967305"),
            (y.astype(np.uint64) - np.uint64(1), [[0]], r"below 2\*\*31"),
            (y - 1, [[0]], "one is -1"),
        ]:
            with pytest.raises(partitions.PartitionError, match=words):
                ArrayClientData(x, labels, partition)
            with pytest.raises(partitions.PartitionError, match=words):
                partitions.class_counts(labels, partition)
        for labels, words in [(y / 2, "whole numbers"), (y.astype(str), "class numb")]:
            with pytest.raises(partitions.PartitionError, match=words):
                partitions.class_counts(labels, [[0]])
        data = ArrayClientData(x, y, [[], np.array([29], np.uint8), (3, 1)])
        assert data.client_sizes.tolist() == [0, 1, 2]
        assert data.client_positions("client_0002").tolist() == [3, 1]
