import json

import pytest

from benchmarks import client_states
from tests import commands

TINY = client_states.Setting(
    num_clients=7, clients_per_round=3, rounds=5, megabytes=0.1
)


def test_measures_rounds_of_a_cohort_and_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(client_states.tempfile, "gettempdir", lambda: str(tmp_path))
    lines = []
    found = client_states.measure(TINY, report=lines.append)
    assert json.loads(json.dumps(found)) == found
    assert not list(tmp_path.iterdir())
    assert sum("round of" in line for line in lines) == 5
    parts = [found[f"{name}_seconds"] for name in ("load", "store", "commit")]
    assert min(parts) > 0 and found["round_seconds"] == pytest.approx(sum(parts))
    assert found["verify_seconds"] > 0 and found["slowest_round_seconds"] > 0
    # All 7 clients, and those whom the two checkpoints before the newest still name:
    # cohorts of 3 in turn, so that 3 + 3 of the states were replaced since.
    assert found["files"] == 7 + 6
    # 62 arrays of 403 float32 and their names, and three server states of three times
    # that.
    arrays = 62 * 403 * 4 / 1e6
    assert arrays * (13 + 9) < found["disk_megabytes"] < 1.5 * arrays * (13 + 9)
    assert found["disk_megabytes"] < TINY.most_megabytes_on_disk * 1.5
    seconds = f"{found['round_seconds']:.2f} s (at most "
    text = "\n".join(client_states.table({**found, "peak_megabytes": 880.4}))
    for words in ("7 clients, 3 a round", seconds, "880 MB", str(found["files"])):
        assert words in text
    text = "\n".join(client_states.table({**found, "peak_megabytes": None}))
    assert "memory" not in text


def test_a_cohort_is_all_that_is_in_memory(tmp_path):
    # In a process of its own: memory that an earlier test gave back would be used
    # again, and nothing would be seen to grow.
    code = (
        "from benchmarks import client_states as s\n"
        "found = s.measure(s.Setting("
        "num_clients=40, clients_per_round=2, rounds=3, megabytes=8.0))\n"
        "print(found['peak_megabytes'])"
    )
    peak = float(commands.python(code, TMPDIR=str(tmp_path)).stdout)
    # Two old states and two new ones; all clients' would be 320 MB.
    assert 16 <= peak < 100
