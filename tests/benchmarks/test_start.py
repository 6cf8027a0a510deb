"""What is measured of the commands."""

import json

import pytest

from benchmarks import start


@pytest.mark.slow
def test_measures_every_wait():
    lines = []
    rows = start.measure(1, runs=["FedAvg on digits"], report=lines.append)
    assert lines == ["turn 1", "first rounds of FedAvg on digits"]
    assert json.loads(json.dumps(rows)) == rows
    seconds = {row["what"]: row["seconds_median"] for row in rows}
    parts = (
        "imports of TensorFlow and tff_reg",
        "import of TFF, data, evaluation",
        "trial and process",
        "first round",
    )
    assert list(seconds) == [
        "Python",
        "bin/launch and Python",
        "import tensorflow",
        "import tff_reg",
        "bin/run --help",
        "bin/run with a wrong flag",
        *(f"FedAvg on digits: {part}" for part in parts),
        "bin/run to the end of the first round of FedAvg on digits",
        "Ctrl-C to the end",
    ]
    first = seconds["bin/run to the end of the first round of FedAvg on digits"]
    of_parts = sum(seconds[f"FedAvg on digits: {part}"] for part in parts)
    assert 0 < seconds["Python"] < of_parts == pytest.approx(first)
