"""What the comparison of local steps counts, prints and writes."""

import json

import pytest

from benchmarks import methods
from tests import commands


def row(method, seconds, fedavg_seconds, **fields):
    values = dict(
        wall_seconds=seconds,
        fedavg_wall_seconds=fedavg_seconds,
        empty_round_seconds=0.02,
        multiply_adds_ratio=1.25,
    )
    return methods.row(
        method,
        methods.Setting("resnet20", 32),
        seconds=seconds,
        fedavg_seconds=fedavg_seconds,
        **{**values, **fields},
    )


def test_ratios_are_taken_within_a_turn_and_then_their_median():
    # The machine slows down: the ratio of the medians would be 1.0.
    found = row("kd", (0.1, 0.4, 1.5), (0.05, 0.4, 0.75))
    assert json.loads(json.dumps(found)) == found
    assert found["method"] == "kd"
    assert found["seconds_median"] == 0.4
    assert found["ratio_to_fedavg"] == 2.0
    assert found["ratio_quartiles"] == [1.5, 2.0]
    assert found["turns"] == 3
    # The wall clock stands beside the processor time.
    walls = dict(wall_seconds=(0.6, 0.6), empty_round_seconds=0.03)
    found = row("kd", (0.1, 0.1), (0.1, 0.1), **walls)
    assert found["ratio_to_fedavg"] == 1.0
    assert found["wall_seconds_median"] == 0.6
    assert found["wall_ratio_to_fedavg"] == 6.0
    assert found["empty_round_seconds"] == 0.03


def test_all_methods_that_change_the_local_step_are_measured():
    everything = methods.parse_methods(None)
    assert everything[0] == "fedavg" and "fedadam" not in everything
    assert {*methods.TARGETS, *methods.AUTHORS} < {*everything}


@pytest.fixture(scope="module")
def other_process():
    """Measuring sets TensorFlow's threads, which it does before it starts only."""
    with commands.OtherProcess() as process:
        yield process


@pytest.mark.slow
def test_the_command_measures_and_writes(other_process, tmp_path):
    path = tmp_path / "steps.json"
    done = other_process.call(
        "bin.bench",
        "methods",
        "--methods=fedavg,kd",
        "--model=cnn",
        "--batch_size=16",
        "--quick",
        f"--json={path}",
    )
    assert done.returncode == 0, done.stderr
    fedavg, kd = json.loads(path.read_text("utf-8"))
    assert (fedavg["method"], kd["method"]) == ("fedavg", "kd")
    assert fedavg["ratio_to_fedavg"] == 1.0
    assert kd["seconds_median"] > 0 and kd["empty_round_seconds"] > 0
    assert kd["fedavg_seconds_median"] == fedavg["seconds_median"]
    assert kd["ratio_to_fedavg"] > 0
    assert 1 < kd["arithmetic_ratio"] < 2
    assert ["kd", "cnn, 16"] in [
        [cell.strip() for cell in line.split("|")[1:3]]
        for line in done.stdout.splitlines()
    ]
    assert "FedAvg itself" in done.stdout
