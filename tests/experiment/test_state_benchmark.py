import dataclasses
import json
import os
import subprocess
import sys

import pytest

from bin import bench
from tests import commands
from tff_reg.experiment import client_states, state_benchmark

TINY = state_benchmark.Setting(
    num_clients=7, clients_per_round=3, rounds=5, megabytes=0.1
)


def test_measures_rounds_of_a_cohort_and_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(state_benchmark.tempfile, "gettempdir", lambda: str(tmp_path))
    lines = []
    found = state_benchmark.measure(TINY, report=lines.append)
    assert not list(tmp_path.iterdir())
    assert sum("round of" in line for line in lines) == 5
    assert found.load_seconds > 0 and found.store_seconds > 0
    assert found.commit_seconds > 0 and found.verify_seconds > 0
    assert found.slowest_round_seconds > 0
    # All 7 clients, and those whom the two checkpoints before the newest still name:
    # cohorts of 3 in turn, so that 3 + 3 of the states were replaced since.
    assert found.files == 7 + 6
    # 62 arrays of 403 float32 and their names, and three server states of three times
    # that.
    arrays = 62 * 403 * 4 / 1e6
    assert arrays * (13 + 9) < found.disk_megabytes < 1.5 * arrays * (13 + 9)
    assert found.disk_megabytes < TINY.most_megabytes_on_disk * 1.5


def test_a_cohort_is_all_that_is_in_memory(tmp_path):
    # In a process of its own: memory that an earlier test gave back would be used
    # again, and nothing would be seen to grow.
    code = (
        "from tff_reg.experiment import state_benchmark as s\n"
        "found = s.measure(s.Setting("
        "num_clients=40, clients_per_round=2, rounds=3, megabytes=8.0))\n"
        "print(found.peak_megabytes)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=commands.ROOT,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    # Two old states and two new ones; all clients' would be 320 MB.
    assert 16 <= float(done.stdout) < 100


def test_states_that_are_not_those_stored_last_are_noticed(monkeypatch):
    load = client_states.ClientStates.load

    def load_in_another_order(self, client_ids):
        return load(self, client_ids)[::-1]

    monkeypatch.setattr(client_states.ClientStates, "load", load_in_another_order)
    with pytest.raises(RuntimeError, match="is not the one stored last"):
        state_benchmark.measure(TINY)


def test_a_disk_without_room_is_told_in_a_sentence():
    with pytest.raises(state_benchmark.NotEnoughDiskError) as caught:
        state_benchmark.measure(dataclasses.replace(TINY, megabytes=1e9))
    assert "TMPDIR" in str(caught.value) and "\n" not in str(caught.value)


def test_the_table_says_what_was_found():
    measurement = state_benchmark.Measurement(
        TINY, 0.5, 1.25, 0.25, 2.5, 3.0, 880.4, 3037.0, 60
    )
    row = json.loads(json.dumps(state_benchmark.as_json(measurement)))
    assert row["round_seconds"] == 2.0
    text = "\n".join(state_benchmark.table(row))
    for words in ("7 clients, 3 a round", "2.00 s (at most 2.50 s)", "880 MB", "60"):
        assert words in text
    text = "\n".join(state_benchmark.table({**row, "peak_megabytes": None}))
    assert "memory" not in text


def test_the_command_knows_the_subject_and_says_so():
    assert "client_states" in commands.call(bench.main, "--help").stdout
    assert "client_states" in commands.call(bench.main, "nothing").stderr
