import json
import pathlib

import pytest

from tff_reg import files
from tff_reg.experiment.rounds import checkpoints


@pytest.fixture
def store(tmp_path):
    return checkpoints.CheckpointStore(tmp_path / "checkpoints")


def save(store, round_num, text="state"):
    own = store.add(f"{text} of client 1".encode())
    parts = {"state": f"{text} {round_num}".encode(), "same": b"same"}
    return store.save(round_num, parts, {"client 1": own})


def test_latest_is_the_newest_with_its_parts(store):
    assert store.latest() is None and store.all() == []
    save(store, 9, "nine")
    save(store, 10, "ten")
    found = store.latest()
    assert found.round_num == 10
    assert found.part("state").read_text() == "ten 10"
    own = store.directory / found.clients["client 1"]
    assert own.read_text() == "ten of client 1"


@pytest.mark.parametrize("name", ["state.v-2", "a.b c", "weights.h5~", "best model.pt"])
def test_a_part_may_have_any_name(store, name):
    store.save(1, {name: b"kept"})
    assert store.latest().part(name).read_bytes() == b"kept"


def test_only_the_newest_are_kept_and_what_they_have_in_common_is_there_once(tmp_path):
    store = checkpoints.CheckpointStore(tmp_path, keep=2)
    for round_num in range(1, 6):
        save(store, round_num)
    assert [checkpoint.round_num for checkpoint in store.all()] == [4, 5]
    # Two manifests, their states, the common part and the client's state.
    assert len(list(tmp_path.iterdir())) == 2 + 2 + 1 + 1


def flip_a_bit(path):
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(bytes(content))


def change(checkpoint, **values):
    content = json.loads(checkpoint.path.read_text())
    checkpoint.path.write_text(json.dumps({**content, **values}))


DAMAGES = {
    "state has changed": lambda each: flip_a_bit(each.part("state")),
    "state is missing": lambda each: each.part("state").unlink(),
    "round_000002.json cannot be read": lambda each: each.path.write_text(""),
    "json cannot be read": lambda each: change(each, clients={"a": "../b"}),
    "round_000002.json is of round 1": lambda each: change(each, round_num=1),
}


@pytest.mark.parametrize("what", DAMAGES)
def test_a_damaged_one_is_reported_and_the_one_before_it_taken(store, what):
    save(store, 1)
    DAMAGES[what](save(store, 2))
    lines = []
    assert store.latest(lines.append).round_num == 1
    (line,) = lines
    assert "round 2 is damaged" in line and what in line
    # It is gone: the round is done again.
    assert [checkpoint.round_num for checkpoint in store.all()] == [1]


def test_a_damaged_state_of_a_client_is_noticed(store):
    save(store, 1, "one")
    found = save(store, 2, "two")
    flip_a_bit(store.directory / found.clients["client 1"])
    lines = []
    assert store.latest(lines.append).round_num == 1
    assert "(the state of client 1 has changed since it was" in lines[0]


def test_a_damaged_older_one_is_reported_and_deleted(store):
    for round_num in (1, 2, 3):
        save(store, round_num)
    flip_a_bit(store.all()[1].part("state"))
    lines = []
    assert store.latest(lines.append).round_num == 3
    (line,) = lines
    assert line.startswith("The checkpoint of round 2 is damaged (state has changed")
    assert line.endswith("): it is deleted.")
    assert [each.round_num for each in store.all()] == [1, 3]


def test_saving_a_round_again_replaces_it_and_what_came_after(store):
    for round_num in (1, 2, 3):
        save(store, round_num, "old")
    save(store, 2, "new")
    assert [checkpoint.round_num for checkpoint in store.all()] == [1, 2]
    assert store.latest().part("state").read_text() == "new 2"


def test_what_no_checkpoint_names_is_deleted(store):
    save(store, 1)
    before = {*store.directory.iterdir()}
    store.add(b"of a round that was not committed")
    (store.directory / ".tmp-tff_reg-1-x").write_text("half")
    assert store.latest().round_num == 1
    assert {*store.directory.iterdir()} == before


def test_where_a_manifest_is_damaged_nothing_is_deleted(store):
    (damaged, before) = save(store, 1), {*store.directory.iterdir()}
    change(damaged, parts=3)
    save(store, 2)
    assert before <= {*store.directory.iterdir()}


def test_only_a_checkpoint_waits_for_the_disk_and_only_for_what_it_names(
    store, monkeypatch
):
    synced = []

    def sync(path):
        synced.append(pathlib.Path(path).name)

    monkeypatch.setattr(files, "sync", sync)
    first, second, unnamed = (store.add(each) for each in (b"1", b"2", b"3"))
    assert not synced
    digest = "6b86b273ff34fce19d6b804eff5a3f5747ada4eaa22f1d49c01e52ddb7875b4b"
    store.save(1, {"part.npz": b"1"}, {"a": first, "b": second})
    assert first == f"{digest}.npz" and {*synced[:2]} == {first, second}
    # The manifest comes after all that it names.
    assert synced[2] == "checkpoints" and "round_000001.json" in synced[3]
    assert unnamed not in synced
    # What is there already is not waited for again.
    del synced[:]
    store.save(2, {"part.npz": b"1"}, {"a": first, "b": second})
    assert not {first, second} & {*synced}
