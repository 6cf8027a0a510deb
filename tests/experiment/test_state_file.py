import collections

import attrs
import numpy as np
import pytest
import tensorflow as tf

from tff_reg.experiment.rounds import process_state


@attrs.define
class State:
    weights: list
    optimizer: dict
    rounds: int


def make(scale=1.0, rounds=3):
    return State(
        weights=[
            np.full([2, 3], scale, np.float32),
            tf.constant([scale], tf.float64),
            np.asarray(scale, tf.bfloat16.as_numpy_dtype),
        ],
        optimizer=collections.OrderedDict(z=np.int64(4), a=(), b=np.float32(2)),
        rounds=rounds,
    )


def test_reads_back_the_same_structure_values_and_types(tmp_path):
    path = tmp_path / "state.npz"
    path.write_bytes(process_state.written(make(0.1, rounds=7)))
    state = process_state.read_state(path, like=make())
    assert isinstance(state, State)
    np.testing.assert_array_equal(state.weights[0], np.full([2, 3], 0.1, np.float32))
    assert state.weights[1].dtype == np.float64 and state.weights[1][0] == 0.1
    assert state.weights[2] == np.asarray(0.1, tf.bfloat16.as_numpy_dtype)
    assert list(state.optimizer) == ["z", "a", "b"]
    assert state.optimizer["a"] == () and state.optimizer["b"] == 2
    assert type(state.rounds) is int and state.rounds == 7


def test_equal_states_give_equal_bytes(tmp_path):
    for name in "ab":
        (tmp_path / name).write_bytes(process_state.written(make()))
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


@pytest.mark.parametrize(
    "like, words",
    [
        ([np.zeros([2], np.float32)], "differ in"),
        ({"a": np.zeros([3], np.float32)}, "float32 \\[3\\]"),
        ({"a": np.zeros([2], np.float64)}, "float64"),
    ],
)
def test_a_state_of_another_process_is_refused(tmp_path, like, words):
    (tmp_path / "s").write_bytes(
        process_state.written({"a": np.zeros([2], np.float32)})
    )
    with pytest.raises(process_state.StateMismatchError, match=words):
        process_state.read_state(tmp_path / "s", like=like)


def test_keeps_parts_as_they_are_whatever_the_file_has_there(tmp_path):
    path = tmp_path / "state.npz"
    path.write_bytes(process_state.written(make(0.1, rounds=7)))
    like = make(2.0)
    like.optimizer = collections.OrderedDict(other=np.float32(5))
    with pytest.raises(process_state.StateMismatchError):
        process_state.read_state(path, like=like)
    state = process_state.read_state(path, like=like, keep=["optimizer/"])
    assert state.optimizer == {"other": 5} and state.rounds == 7
    np.testing.assert_array_equal(state.weights[0], np.full([2, 3], 0.1, np.float32))
