"""`bin/analyze` as a user meets it: tables, files, exit codes."""

import csv
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent


def run(*arguments):
    return subprocess.run(
        [sys.executable, str(ROOT / "bin" / "analyze.py"), *map(str, arguments)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=240,
    )


def test_cost_prints_a_table_and_writes_a_csv(tmp_path):
    path = tmp_path / "cost.csv"
    done = run(
        "cost",
        "--processes=fedavg,fedprox,gradaug",
        "--model=cnn",
        "--norm=group",
        "--num_classes=100",
        "--image_shape=8,8,1",
        "--gradaug_subnetworks=1",
        f"--csv={path}",
    )
    # GradAug needs what a CNN has not, and says so before anything is written.
    assert done.returncode == 2 and not path.exists()
    assert "resnet" in done.stderr and done.stderr.count("\n") == 1
    done = run(
        "cost",
        "--processes=fedavg,fedprox",
        "--model=cnn",
        "--norm=group",
        "--num_classes=100",
        "--image_shape=8,8,1",
        f"--csv={path}",
    )
    assert done.returncode == 0, done.stderr
    assert "\n| fedprox |" in done.stdout
    with path.open(newline="") as file:
        fedavg, fedprox = csv.DictReader(file)
    assert list(fedavg)[:3] == ["process", "forward_mflops", "stored_params_m"]
    products = 64 * 9 * 32 + 16 * 9 * 32 * 64 + 256 * 128 + 128 * 100
    assert float(fedavg["forward_mflops"]) == products / 1e6
    weights = 9 * 32 + 9 * 32 * 64 + 256 * 128 + 128 + 128 * 100 + 100
    assert float(fedavg["stored_params_m"]) == weights / 1e6
    assert float(fedprox["stored_params_m"]) == 2 * weights / 1e6


@pytest.mark.parametrize(
    "arguments, said",
    [
        ([], "say what to look at"),
        (["costs"], "say what to look at"),
        (["cost"], "--processes is missing"),
        (["cost", "--processes=fedavgg"], "'fedavgg'"),
        (["cost", "--processes=fedavg", "--man_strength=1"], "--man_strength"),
        (["cost", "--processes=fedavg", "--image_shape=32"], "--image_shape=32"),
        (["cost", "--processes=fedavg", "--model=alexnet"], "--model"),
        (["cost", "--processes=fedavg", "--csv=/no/such/x.csv"], "--csv"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(arguments, said):
    done = run(*arguments)
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.startswith("bin/analyze: ") and done.stderr.count("\n") == 1
    assert said in done.stderr


def test_help_names_every_subject():
    done = run("--help")
    assert done.returncode == 0
    for subject in ("cost",):
        assert f"bin/analyze {subject} " in done.stdout
