"""What the comparison of local steps counts, prints and writes."""

import json
import pathlib
import subprocess
import sys

import pytest
import tensorflow as tf

from tff_reg.experiment import method_benchmark
from tff_reg.processes import catalog

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
RESNET8 = method_benchmark.Setting("resnet8", 4)


def run(*arguments):
    return subprocess.run(
        [sys.executable, str(ROOT / "bin" / "bench.py"), *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=240,
    )


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
    with pytest.raises(catalog.UnknownProcessError, match="fedprx"):
        method_benchmark.parse_methods("fedavg,fedprx")


def convolution(size, in_channels, out_channels, kernel):
    return size**2 * in_channels * out_channels * kernel**2


def test_counts_the_multiply_adds_of_a_step():
    stem = convolution(32, 3, 16, 3)
    forward = (
        stem
        + 2 * convolution(32, 16, 16, 3)
        + convolution(16, 16, 32, 3)
        + convolution(16, 32, 32, 3)
        + convolution(16, 16, 32, 1)
        + convolution(8, 32, 64, 3)
        + convolution(8, 64, 64, 3)
        + convolution(8, 32, 64, 1)
        + 64 * 10
    )
    count = method_benchmark.count_multiply_adds
    # The gradient of the images is not taken, nor any of the global model.
    assert count("fedavg", RESNET8) == 3 * forward - stem
    assert count("fedprox", RESNET8) == 3 * forward - stem
    assert count("kd", RESNET8) == 4 * forward - stem
    # Two gradients a step.
    assert count("fedsam", RESNET8) == 2 * (3 * forward - stem)


def test_counts_the_backward_pass_through_a_constant_path_once():
    count = method_benchmark.count_multiply_adds
    fedavg, fedmlb = (count(name, RESNET8) for name in ("fedavg", "fedmlb"))
    stages = [
        2 * convolution(32, 16, 16, 3),
        convolution(16, 16, 32, 3)
        + convolution(16, 32, 32, 3)
        + convolution(16, 16, 32, 1),
        convolution(8, 32, 64, 3)
        + convolution(8, 64, 64, 3)
        + convolution(8, 32, 64, 1),
    ]
    paths = sum((index + 1) * stage for index, stage in enumerate(stages)) + 4 * 640
    assert fedmlb == fedavg + 2 * paths


def test_counts_what_random_methods_run_on_average():
    count = method_benchmark.count_multiply_adds
    fedavg = count("fedavg", RESNET8)
    # Branches are kept with probabilities 1, 0.95 and 0.9.
    dropped = (
        0.05 * (convolution(16, 16, 32, 3) + convolution(16, 32, 32, 3))
        + 0.1 * (convolution(8, 32, 64, 3) + convolution(8, 64, 64, 3))
    )
    found = (fedavg - count("stochdepth", RESNET8)) / (3 * dropped)
    assert 0.4 < found < 1.6
    # Two narrower networks, on images of 0.65 times the pixels on average.
    assert 1.6 < count("gradaug", RESNET8) / fedavg < 3.0


def test_products_whose_size_is_known_only_when_the_graph_runs_are_counted():
    with tf.Graph().as_default() as graph:
        a = tf.compat.v1.placeholder(tf.float32, [None, 3])
        b = tf.compat.v1.placeholder(tf.float32, [None, 5])
        product = tf.linalg.matmul(a, b, transpose_a=True)
        count = method_benchmark._multiply_adds([product])
        with tf.compat.v1.Session(graph=graph) as session:
            found = session.run(count, {a: [[1.0] * 3] * 7, b: [[1.0] * 5] * 7})
    assert found == 3 * 5 * 7


def test_the_command_measures_and_writes(tmp_path):
    path = tmp_path / "steps.json"
    done = run(
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
    # A third of a step's arithmetic is added; steps so short are noisy.
    assert 0.8 < kd["ratio_to_fedavg"] < 3
    assert "| kd | cnn, 16 |" in done.stdout
    assert "FedAvg itself" in done.stdout


@pytest.mark.parametrize(
    "arguments, said",
    [
        ([], "methods, client_states (found nothing)"),
        (["method"], "methods, client_states (found method)"),
        (["methods", "--methods=fedprx"], "Did you mean 'fedprox'?"),
        (["methods", "--methods=kd", "--json=no/such/file"], "no/such"),
        (["methods", "--nope"], "nope"),
        (["methods", "--model=resnet7"], "resnet7"),
    ],
)
def test_the_command_says_what_is_wrong_in_a_line(arguments, said):
    done = run(*arguments)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert said in done.stderr


def test_a_method_that_the_model_cannot_have_is_said():
    done = run("methods", "--methods=stochdepth", "--model=cnn")
    assert done.returncode == 2
    assert "no residual branches" in done.stderr
    assert "Traceback" not in done.stderr


def test_help_says_what_there_is():
    done = run("--help")
    assert done.returncode == 0
    assert "bin/bench runtime" in done.stdout and "bin/bench methods" in done.stdout
