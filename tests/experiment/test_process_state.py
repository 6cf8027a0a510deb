import collections

import attrs
import numpy as np
import pytest
import tensorflow as tf

from tff_reg.experiment.rounds import checkpoints, process_state


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
    state = process_state.read_state(path, like=like, but=["optimizer/"])
    assert state.optimizer == {"other": 5} and state.rounds == 7
    np.testing.assert_array_equal(state.weights[0], np.full([2, 3], 0.1, np.float32))


INITIAL = {"previous": [np.zeros(3, np.float32), np.float32(1)]}


def _state(value):
    return {"previous": [np.full(3, value, np.float32), np.float32(value)]}


def _values(states):
    return [float(state["previous"][1]) for state in states]


@pytest.fixture(params=["memory", "directory"])
def states(request, tmp_path):
    store = checkpoints.CheckpointStore(tmp_path / "checkpoints")
    return process_state.ClientStates(
        INITIAL, store if request.param == "directory" else None
    )


def test_a_client_that_never_took_part_has_the_initial_state(states):
    states.store(["b"], [_state(5)])
    assert _values(states.load(["a", "b", "c"])) == [1, 5, 1]
    np.testing.assert_array_equal(states.load(["b"])[0]["previous"][0], [5, 5, 5])


def test_the_latest_state_counts(states):
    states.store(["a", "b"], [_state(2), _state(3)])
    states.store(["b"], [_state(4)])
    assert _values(states.load(["b", "a"])) == [4, 2]


def test_any_name_of_a_client_will_do(states):
    names = ["", "a/b", "../c", "ü" * 300, "a b"]
    states.store(names, [_state(i + 2) for i in range(5)])
    assert _values(states.load(names)) == [2, 3, 4, 5, 6]


def test_a_checkpoint_brings_the_states_of_its_moment_back(tmp_path):
    store = checkpoints.CheckpointStore(tmp_path)
    states = process_state.ClientStates(INITIAL, store)
    states.store(["a", "b"], [_state(2), _state(3)])
    saved = store.save(1, {}, states.names)
    states.store(["a", "c"], [_state(4), _state(5)])
    assert store.latest() == saved
    again = process_state.ClientStates(INITIAL, store)
    again.names = {**store.latest().clients}
    assert _values(again.load(["a", "b", "c"])) == [2, 3, 1]
