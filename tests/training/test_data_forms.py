import collections
import dataclasses
import functools
import types

import numpy as np
import pytest
import tensorflow as tf

from tff_reg.data import keys
from tff_reg.training import data_forms

SPEC = collections.OrderedDict(
    x=tf.TensorSpec([None, 1], tf.float32), y=tf.TensorSpec([None], tf.int32)
)
KEY = np.array([3, 4], np.int64)


def _element(count):
    return collections.OrderedDict(
        x=tf.reshape(tf.range(count, dtype=tf.float32), [-1, 1]),
        y=tf.range(count),
        key=tf.constant(KEY),
    )


@pytest.fixture(scope="module", autouse=True)
def _graphs():
    yield
    _graph.cache_clear()  # Before TensorFlow's own end.


@functools.cache
def _graph(form):
    """Runs a form in a graph, as a client does, for any number of examples."""

    @tf.function(input_signature=[form.element_spec(SPEC)])
    def run(element):
        def step(state, batch, compute_key):
            labels, step_keys, index = state
            tf.debugging.assert_equal(tf.cast(batch["x"][:, 0], tf.int32), batch["y"])
            padded = tf.pad(batch["y"], [[0, 10 - tf.size(batch["y"])]], "CONSTANT", -1)
            return (
                labels.write(index, padded),
                step_keys.write(index, compute_key()),
                index + 1,
            )

        labels = tf.TensorArray(tf.int32, 0, True, element_shape=[10])
        step_keys = tf.TensorArray(tf.int64, 0, True, element_shape=[2])
        labels, step_keys, _ = form.run(step, (labels, step_keys, 0), element, 1)
        return labels.stack(), step_keys.stack()

    return run


def _visited(form, count, with_keys=False):
    """The labels of every batch, and the keys of the steps."""
    labels, step_keys = _graph(form)(_element(count))
    batches = [[int(v) for v in row if v >= 0] for row in labels.numpy()]
    return (batches, step_keys.numpy()) if with_keys else batches


def test_whole_client_data_visit_every_example_once_an_epoch():
    form = data_forms.WholeClientData(batch_size=4, local_epochs=3)
    batches = _visited(form, 10)
    assert [len(b) for b in batches] == [4, 4, 2] * 3
    epochs = [sum(batches[i : i + 3], []) for i in (0, 3, 6)]
    for number, epoch in enumerate(epochs):
        assert epoch == list(keys.epoch_order(KEY, number, 10).numpy())
        assert sorted(epoch) == list(range(10))
    assert epochs[0] != epochs[1]


def test_whole_client_data_give_every_step_its_own_key():
    form = data_forms.WholeClientData(batch_size=4, local_epochs=2)
    _, step_keys = _visited(form, 10, with_keys=True)
    expected = [keys.step_key(KEY, s).numpy() for s in range(6)]
    np.testing.assert_array_equal(step_keys, expected)


def test_whole_client_data_can_drop_the_remainder_and_keep_the_order():
    form = data_forms.WholeClientData(batch_size=4, drop_remainder=True, shuffle=False)
    assert _visited(form, 10) == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert _visited(form, 3) == []


def test_a_client_without_examples_takes_no_step():
    assert _visited(data_forms.WholeClientData(batch_size=4, local_epochs=2), 0) == []


@pytest.mark.parametrize("drop_remainder", [False, True])
@pytest.mark.parametrize("count", [1, 7])
def test_local_steps_are_the_first_of_as_many_epochs_as_they_need(
    count, drop_remainder
):
    steps = 5
    form = data_forms.WholeClientData(
        batch_size=4,
        local_epochs=2,
        local_steps=steps,
        drop_remainder=drop_remainder,
    )
    batches, step_keys = _visited(form, count, with_keys=True)
    has_batches = count >= 4 or not drop_remainder
    assert len(batches) == (steps if has_batches else 0)
    many = dataclasses.replace(form, local_steps=None, local_epochs=6)
    expected, expected_keys = _visited(many, count, with_keys=True)
    assert batches == expected[: len(batches)]
    np.testing.assert_array_equal(step_keys, expected_keys[: len(batches)])


def test_a_client_without_examples_takes_none_of_the_local_steps():
    assert _visited(data_forms.WholeClientData(batch_size=4, local_steps=3), 0) == []


def test_numbers_below_1_and_beyond_int32_are_refused():
    with pytest.raises(ValueError, match="local_steps is 0; it must be above 0"):
        data_forms.WholeClientData(batch_size=4, local_steps=0)
    with pytest.raises(ValueError, match="below 2"):
        data_forms.WholeClientData(batch_size=2**31)


def test_a_client_whose_x_and_y_differ_in_length_does_not_train():
    data = tf.data.Dataset.from_tensors(
        {"x": tf.zeros([3, 2]), "y": tf.zeros([4], tf.int32)}
    )
    with pytest.raises(tf.errors.InvalidArgumentError, match="different numbers"):
        data_forms.WholeClientData(batch_size=4).element(data)


def test_preprocessing_sees_each_batch_with_its_step_key():
    seen = []

    def preprocess(features, key):
        seen.append((features.shape, key.shape))
        return tf.cast(features, tf.float32) / 10

    form = data_forms.WholeClientData(
        batch_size=2, preprocess_fn=preprocess, example_dtype="uint8", shuffle=False
    )
    element = _element(2)
    element["x"] = tf.constant([[10], [20]], tf.uint8)
    batch = form.run(lambda _, batch, key: batch["x"], tf.zeros([2, 1]), element, 1)
    np.testing.assert_allclose(batch, [[1.0], [2.0]])
    assert seen == [((2, 1), (2,))]


def test_element_specs_say_what_the_data_must_be():
    whole = data_forms.WholeClientData(2, example_shape=[3], example_dtype="uint8")
    spec = whole.element_spec(SPEC)
    assert list(spec) == ["x", "y", "key"]
    assert spec["x"] == tf.TensorSpec([None, 3], tf.uint8)
    assert spec["key"] == tf.TensorSpec([2], tf.int64)
    assert data_forms.BatchedData().element_spec(SPEC) == SPEC
    assert list(data_forms.BatchedData(keyed=True).element_spec(SPEC)) == list(spec)


def test_batches_carry_their_key_or_get_one_of_content_round_and_step():
    def step(state, batch, compute_key):
        assert list(batch) == ["x", "y"]
        return compute_key().numpy()

    keyed = data_forms.BatchedData(keyed=True).run(step, None, _element(2), 1)
    np.testing.assert_array_equal(keyed, KEY)
    element = _element(2)
    del element["key"]
    plain = data_forms.BatchedData()

    def key(round_num, num_steps, batch=element):
        state = types.SimpleNamespace(num_steps=num_steps)
        return tuple(plain.run(step, state, batch, round_num).tolist())

    other = {**element, "y": element["y"] + 1}
    assert key(1, 0) == key(1, 0)
    assert len({key(1, 0), key(2, 0), key(1, 1), key(1, 0, other)}) == 4
