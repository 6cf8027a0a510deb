"""What the comparison of local steps counts, prints and writes."""

import json

import pytest

from bin import bench
from tests import commands
from tff_reg.analysis import method_benchmark
from tff_reg.methods import catalogue


def measurement(method, seconds, fedavg_seconds, **fields):
    values = dict(
        setting=method_benchmark.Setting("resnet20", 32),
        wall_seconds=seconds,
        fedavg_wall_seconds=fedavg_seconds,
        empty_round_seconds=0.02,
        multiply_adds_ratio=1.25,
    )
    return method_benchmark.Measurement(
        method, seconds=seconds, fedavg_seconds=fedavg_seconds, **{**values, **fields}
    )


def test_ratios_are_taken_within_a_turn_and_then_their_median():
    # The machine slows down: the ratio of the medians would be 1.0.
    found = measurement("kd", (0.1, 0.4, 1.5), (0.05, 0.4, 0.75))
    (row,) = method_benchmark.as_json([found])
    assert json.loads(json.dumps(row)) == row
    assert row["method"] == "kd"
    assert row["seconds_median"] == 0.4
    assert row["ratio_to_fedavg"] == 2.0
    assert row["ratio_quartiles"] == [1.5, 2.0]
    assert row["turns"] == 3


def test_the_wall_clock_stands_beside_the_processor_time():
    found = measurement(
        "kd", (0.1, 0.1), (0.1, 0.1), wall_seconds=(0.6, 0.6), empty_round_seconds=0.03
    )
    (row,) = method_benchmark.as_json([found])
    assert row["ratio_to_fedavg"] == 1.0
    assert row["wall_seconds_median"] == 0.6
    assert row["wall_ratio_to_fedavg"] == 6.0
    assert row["empty_round_seconds"] == 0.03


def test_the_table_says_which_targets_are_missed():
    rows = method_benchmark.as_json([
        measurement("fedprox", (0.104, 0.104), (0.1, 0.1)),
        measurement("fedalign", (0.12, 0.12), (0.1, 0.1)),
        measurement("fitnet", (0.2, 0.2), (0.1, 0.1)),
    ])
    assert method_benchmark.table(rows)[2:] == [
        "| fedprox | resnet20, 32 | 104.0 | 1.04 | 1.04 - 1.04 | 1.05 | 1.18 | 1.25 |",
        "| fedalign | resnet20, 32 | 120.0 | 1.20 | 1.20 - 1.20 | 1.15 missed | 1.21 "
        "| 1.25 |",
        "| fitnet | resnet20, 32 | 200.0 | 2.00 | 2.00 - 2.00 |  |  | 1.25 |",
    ]


def test_all_methods_that_change_the_local_step_are_measured():
    everything = method_benchmark.parse_methods(None)
    assert everything[0] == "fedavg" and "fedadam" not in everything
    assert {*method_benchmark.TARGETS, *method_benchmark.AUTHORS} < {*everything}


def test_sums_are_named_in_one_way():
    assert method_benchmark.parse_methods("fedavg,MAN+fedprox,fedprox+man") == [
        "fedavg",
        "fedprox+man",
    ]
    with pytest.raises(catalogue.UnknownProcessError, match="fedprx"):
        method_benchmark.parse_methods("fedavg,fedprx")



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
    assert "| kd | cnn, 16 |" in done.stdout
    assert "FedAvg itself" in done.stdout


@pytest.mark.parametrize(
    "arguments, said",
    [
        ([], "client_states, hessian, commands (found nothing)"),
        (["method"], "client_states, hessian, commands (found method)"),
        (["methods", "--methods=fedprx"], "Did you mean 'fedprox'?"),
        (["methods", "--methods=kd", "--json=no/such/file"], "no/such"),
        (["methods", "--nope"], "nope"),
        (["methods", "--model=resnet7"], "resnet7"),
    ],
)
def test_the_command_says_what_is_wrong_in_a_line(arguments, said):
    done = commands.call(bench.main, *arguments)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert said in done.stderr


def test_a_method_that_the_model_cannot_have_is_said(other_process):
    flags = ("--methods=stochdepth", "--model=cnn")
    done = other_process.call("bin.bench", "methods", *flags)
    assert done.returncode == 2
    assert "no residual branches" in done.stderr
    assert "Traceback" not in done.stderr


def test_help_says_what_there_is():
    done = commands.call(bench.main, "--help")
    assert done.returncode == 0
    assert "bin/bench runtime" in done.stdout and "bin/bench methods" in done.stdout
