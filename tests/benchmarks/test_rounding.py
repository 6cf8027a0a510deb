"""How far rounding moves results."""

import json

import pytest

from benchmarks import rounding


def test_kernels_change_last_bits_and_what_follows_from_them():
    lines = []
    small = ["--task=digits", "--model=cnn", "--num_clients=4", "--total_rounds=6"]
    rows = rounding.measure(
        2,
        methods=["fedavg"],
        protocol=[*small, "--clients_per_round=2", "--local_epochs=1"],
        report=lines.append,
    )
    assert lines == ["runs with oneDNN's kernels", "runs with TensorFlow's kernels"]
    assert json.loads(json.dumps(rows)) == rows
    assert [row["quantity"] for row in rows] == [*rounding.QUANTITIES]
    for row in rows:
        assert 10 < row["mean"] < 100 and row["deviation"] > 0
        assert abs(row["change"]) < row["of_a_seed"] + 1e-6
    # Few rounds amplify it less than seeds differ.
    assert 0 < max(row["of_a_seed"] for row in rows) < 10
    said = "\n".join(rounding.table(rows))
    assert "| fedavg | last_five |" in said


def test_a_run_that_fails_is_told():
    with pytest.raises(rounding.subject.RefusedError, match="nowhere"):
        rounding.measure(
            2, methods=["fedavg"], protocol=["--task=nowhere"], report=print
        )
