import json
import pathlib

import numpy as np
import pytest

from tff_reg import files
from tff_reg.experiment.rounds import checkpoints, process_state

INITIAL = {"previous": [np.zeros(3, np.float32), np.float32(1)]}


def _state(value):
    return {"previous": [np.full(3, value, np.float32), np.float32(value)]}


def _values(states):
    return [float(state["previous"][1]) for state in states]


@pytest.fixture(params=["memory", "directory"])
def store(request, tmp_path):
    directory = tmp_path / "states" if request.param == "directory" else None
    return process_state.ClientStates(INITIAL, directory)


def test_a_client_that_never_took_part_has_the_initial_state(store):
    store.store(["b"], [_state(5)], 1)
    assert _values(store.load(["a", "b", "c"])) == [1, 5, 1]
    np.testing.assert_array_equal(store.load(["b"])[0]["previous"][0], [5, 5, 5])


def test_the_latest_state_counts(store):
    store.store(["a", "b"], [_state(2), _state(3)], 1)
    store.store(["b"], [_state(4)], 2)
    assert _values(store.load(["b", "a"])) == [4, 2]


def test_any_name_of_a_client_will_do(store):
    names = ["", "a/b", "../c", "ü" * 300, "a b"]
    store.store(names, [_state(i + 2) for i in range(5)], 1)
    assert _values(store.load(names)) == [2, 3, 4, 5, 6]


def test_an_index_brings_the_states_of_its_moment_back(tmp_path):
    store = process_state.ClientStates(INITIAL, tmp_path / "states")
    store.store(["a", "b"], [_state(2), _state(3)], 1)
    store.write_index(tmp_path / "index1")
    store.store(["a", "c"], [_state(4), _state(5)], 2)
    store.write_index(tmp_path / "index2")
    store.delete_unnamed([tmp_path / "index1"])
    again = process_state.ClientStates(INITIAL, tmp_path / "states")
    again.verify(tmp_path / "index1")
    again.restore(tmp_path / "index1")
    assert _values(again.load(["a", "b", "c"])) == [2, 3, 1]
    # Whatever neither the index given nor the store itself names goes.
    again.delete_unnamed([])
    assert len(list((tmp_path / "states").iterdir())) == 2
    with pytest.raises(checkpoints.CheckpointDamagedError, match="is missing"):
        again.verify(tmp_path / "index2")


def test_only_a_checkpoint_waits_for_the_disk_and_only_for_what_it_names(
    tmp_path, monkeypatch
):
    synced = []

    def sync(path):
        assert not (tmp_path / "index").exists()
        synced.append(pathlib.Path(path).name)

    monkeypatch.setattr(files, "sync", sync)
    store = process_state.ClientStates(INITIAL, tmp_path / "states")
    store.store(["a", "b"], [_state(2), _state(3)], 1)
    store.store(["b", "c"], [_state(4), _state(5)], 2)
    assert not synced
    store.write_index(tmp_path / "index")
    index = json.loads((tmp_path / "index").read_text())
    assert sorted(synced[:-1]) == sorted(name for name, _ in index.values())
    assert synced[-1] == "states"
    # What is there already is not waited for again.
    (tmp_path / "index").unlink()
    del synced[:]
    store.store(["a"], [_state(6)], 3)
    store.write_index(tmp_path / "index")
    assert len(synced) == 2 and synced[0].endswith("-000003.npz")


def test_damage_is_noticed(tmp_path):
    store = process_state.ClientStates(INITIAL, tmp_path / "states")
    store.store(["a"], [_state(2)], 1)
    store.write_index(tmp_path / "index")
    ((name, _),) = json.loads((tmp_path / "index").read_text()).values()
    path = tmp_path / "states" / name
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    with pytest.raises(checkpoints.CheckpointDamagedError, match="has changed"):
        store.verify(tmp_path / "index")


@pytest.mark.parametrize("content", ["{", "[]", '{"a": ["b"]}', '{"a": 3}'])
def test_where_an_index_is_damaged_nothing_is_deleted(tmp_path, content):
    store = process_state.ClientStates(INITIAL, tmp_path / "states")
    store.store(["a"], [_state(2)], 1)
    store.write_index(tmp_path / "index1")
    store.store(["a"], [_state(3)], 2)
    (tmp_path / "index1").write_text(content)
    store.delete_unnamed([tmp_path / "index1"])
    assert len(list((tmp_path / "states").iterdir())) == 2
    with pytest.raises(checkpoints.CheckpointDamagedError, match="is missing or no"):
        store.restore(tmp_path / "index1")
