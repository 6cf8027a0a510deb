import numpy as np
import pytest

from tff_reg.experiment.rounds import checkpoints, process_state

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
