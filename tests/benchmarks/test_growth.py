"""How rounds grow: the parts that can be wrong without being slow."""

import json

import pytest

from benchmarks import growth
from bin import bench
from tests import commands


def _row(sweep, **changes):
    point = growth.Point(**changes)._asdict()
    found = {"seconds_median": 0.5, "seconds_min": 0.4, "seconds_max": 0.6}
    return {"sweep": sweep, **point, **found, "peak_mb": 400}


def test_every_sweep_grows_in_what_it_is_called_by_and_in_nothing_else():
    for sweep, points in growth.SWEEPS.items():
        values = [getattr(point, sweep) for point in points]
        assert values == sorted(set(values))
        assert len({point._replace(**{sweep: 0}) for point in points}) == 1


def test_table_and_picture_show_every_point(tmp_path):
    rows = [
        _row("clients_held", clients_held=10),
        _row("clients_held", clients_held=10000),
        _row("megabytes", megabytes=0.1),
    ]
    cells = [line.split("|")[1:-1] for line in growth.table(rows)[2:]]
    assert [[cell.strip() for cell in line] for line in cells] == [
        ["clients held", "10", "0.500", "400"],
        ["clients held", "10000", "0.500", "400"],
        ["megabytes", "0.1", "0.500", "400"],
    ]
    growth.plot(rows, str(tmp_path / "growth.png"))
    assert (tmp_path / "growth.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_a_point_is_measured(monkeypatch):
    points = [growth.Point(clients_held=4, clients_per_round=2, megabytes=0.01)]
    monkeypatch.setattr(growth, "SWEEPS", {"clients_held": points})
    (row,) = growth.measure(sweeps=["clients_held"])
    assert row["clients_held"] == 4 and 0 < row["seconds_median"] < 10
    assert 50 < row["peak_mb"] < 4000


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
