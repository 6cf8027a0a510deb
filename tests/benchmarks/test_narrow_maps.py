import json

from benchmarks import narrow_maps


def test_measures_both_ways_and_says_so_in_a_table():
    lines = []
    rows = narrow_maps.measure(
        sides=(2,), channels=(8, 16), batches=(3,), quick=True, report=lines.append
    )
    assert [(r["side"], r["channels"], r["batch"]) for r in rows] == [
        (2, 8, 3),
        (2, 16, 3),
    ]
    assert all(
        r[key] > 0 for r in rows for key in ("milliseconds", "trained", "frozen")
    )
    assert len(lines) == 2
    assert json.loads(json.dumps(rows)) == rows
    row = dict(rows[0], milliseconds=1.234, trained=0.5, frozen=0.251)
    text = " ".join("\n".join(narrow_maps.table([row])).split())
    assert "| 2 x 2 x 8 | 3 | 1.23 | 0.50 | 0.25 |" in text
