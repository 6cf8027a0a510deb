"""`bin/compare` in a new directory: a recipe's table, and runs that cannot begin."""

import json

import pytest

from tests import commands
from tff_reg.commands import compare


def test_the_table_of_a_recipe_has_its_columns(tmp_path):
    done = commands.call(
        compare.main,
        "--recipe=fedmlb/table1/fedmlb",
        "--processes=fedavg",
        "--model=cnn",
        "--scale=tiny",
        "--synthetic_data",
        f"--output_dir={tmp_path / 'd'}",
        executor=commands.InThisProcess(),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    header = (tmp_path / "d" / "table.csv").read_text().splitlines()[0]
    for column in ("ema_accuracy_at_500_mean", "rounds_to_0.47_mean"):
        assert column in header.split(",")
    config = json.loads((tmp_path / "d" / "fedavg-seed0" / "config.json").read_text())
    assert (config["process"], config["task"]) == ("fedavg", "cifar100")


@pytest.mark.parametrize("status", [1, 2])
def test_nothing_is_left_where_no_run_could_begin(status, tmp_path):
    class Failing(commands.InThisProcess):
        def execute(self, command):
            return status, "bin/run: there is no TensorFlow Federated."

    directory = tmp_path / "above" / "d"
    arguments = ["--processes=fedavg", f"--output_dir={directory}"]
    done = commands.call(compare.main, *arguments, executor=Failing())
    assert done.returncode == status
    assert "there is no TensorFlow Federated" in done.stdout + done.stderr
    assert not directory.parent.exists()
