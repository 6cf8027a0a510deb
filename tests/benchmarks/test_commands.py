"""What is measured of the commands."""

import json

import pytest

from benchmarks import commands


@pytest.mark.slow
def test_measures_every_wait():
    lines = []
    rows = commands.measure(1, runs=["FedAvg on digits"], report=lines.append)
    assert lines == ["turn 1", "first rounds of FedAvg on digits"]
    assert json.loads(json.dumps(rows)) == rows
    seconds = {row["what"]: row["seconds_median"] for row in rows}
    assert list(seconds) == [
        "Python",
        "bin/launch and Python",
        "import tff_reg",
        "bin/run --help",
        "bin/run with a wrong flag",
        "bin/run to the first round of FedAvg on digits",
        "the same of FedAvg on digits, with another seed",
        "Ctrl-C to the end",
    ]
    first = seconds["bin/run to the first round of FedAvg on digits"]
    assert 0 < seconds["Python"] < first
