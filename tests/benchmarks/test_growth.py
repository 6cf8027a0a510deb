"""How rounds grow: the parts that can be wrong without being slow."""

import json

import pytest

from benchmarks import growth
from bin import bench
from tests import commands


def test_every_sweep_varies_one_quantity():
    for sweep, points in growth.SWEEPS.items():
        values = [getattr(point, sweep) for point in points]
        assert values == sorted(set(values))
        assert len({point._replace(**{sweep: 0}) for point in points}) == 1


@pytest.mark.slow
def test_a_point_is_measured(monkeypatch):
    points = [growth.Point(clients_held=4, clients_per_round=2, megabytes=0.01)]
    monkeypatch.setattr(growth, "SWEEPS", {"clients_held": points})
    (row,) = growth.measure(sweeps=["clients_held"])
    assert row["clients_held"] == 4 and 0 < row["seconds_median"] < 10
    assert 50 < row["peak_mb"] < 4000


@pytest.mark.slow
def test_visits_are_counted_along_a_run(tmp_path):
    path = tmp_path / "rows.json"
    given = ["growth", "--sweeps=visits", "--visits=20", f"--json={path}"]
    done = commands.call(bench.main, *given)
    assert done.returncode == 0, done.stderr
    rows = json.loads(path.read_text("utf-8"))
    assert [row["visits"] for row in rows] == [2, 4, 10, 20]
    assert {row["clients_per_round"] for row in rows} == {2}
    assert all(50 < row["resident_mb"] <= row["peak_mb"] < 4000 for row in rows)
    assert "visits 20: " in done.stdout and "| visits " in done.stdout
