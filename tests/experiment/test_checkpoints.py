import json

import pytest

from tff_reg.experiment.rounds import checkpoints


@pytest.fixture
def store(tmp_path):
    return checkpoints.CheckpointStore(tmp_path / "checkpoints")


def save(store, round_num, text="state"):
    def write_clients(path):
        path.mkdir()
        (path / "client_1").write_text(f"{text} of client 1")

    return store.save(
        round_num,
        {"state": lambda path: path.write_text(text), "clients": write_clients},
    )


def test_latest_is_the_newest_with_its_parts(store):
    assert store.latest() is None and store.all() == []
    save(store, 9, "nine")
    save(store, 10, "ten")
    found = store.latest()
    assert found.round_num == 10
    assert found.part("state").read_text() == "ten"
    assert (found.part("clients") / "client_1").read_text() == "ten of client 1"


def test_only_the_newest_are_kept(tmp_path):
    store = checkpoints.CheckpointStore(tmp_path, keep=2)
    for round_num in range(1, 6):
        save(store, round_num)
    assert [checkpoint.round_num for checkpoint in store.all()] == [4, 5]


MANIFEST = "manifest.json"


def flip_a_bit(path):
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(bytes(content))


def change_the_round(manifest):
    content = json.loads(manifest.read_text())
    content["round_num"] = 1
    manifest.write_text(json.dumps(content))


DAMAGES = {
    "state has changed": lambda path: flip_a_bit(path / "state"),
    "clients/client_1 has changed": lambda path: flip_a_bit(path / "clients/client_1"),
    "state is missing": lambda path: (path / "state").unlink(),
    "manifest.json cannot be read": lambda path: (path / MANIFEST).write_text(""),
    "manifest.json is of round 1": lambda path: change_the_round(path / MANIFEST),
    "extra does not belong there": lambda path: (path / "extra").write_text("1"),
}


@pytest.mark.parametrize("what", DAMAGES)
def test_a_damaged_one_is_reported_and_the_one_before_it_taken(store, what):
    save(store, 1)
    DAMAGES[what](save(store, 2).path)
    lines = []
    assert store.latest(lines.append).round_num == 1
    (line,) = lines
    assert "round 2 is damaged" in line and what in line
    # It is gone: the round is done again.
    assert [checkpoint.round_num for checkpoint in store.all()] == [1]


def test_a_damaged_older_one_is_reported_and_deleted(store):
    for round_num in (1, 2, 3):
        save(store, round_num)
    flip_a_bit(store.all()[1].part("state"))
    lines = []
    verified = []
    found = store.latest(lines.append, lambda each: verified.append(each.round_num))
    assert found.round_num == 3 and verified == [3]
    (line,) = lines
    assert line.startswith("The checkpoint of round 2 is damaged (state has changed")
    assert line.endswith("): it is deleted.")
    assert [each.round_num for each in store.all()] == [1, 3]


def test_saving_a_round_again_replaces_it_and_what_came_after(store):
    for round_num in (1, 2, 3):
        save(store, round_num, "old")
    save(store, 2, "new")
    assert [checkpoint.round_num for checkpoint in store.all()] == [1, 2]
    assert store.latest().part("state").read_text() == "new"
