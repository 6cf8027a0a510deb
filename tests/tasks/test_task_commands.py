"""Tasks on the command line: a run on arrays, what is said where data are missing."""

import json

import numpy as np
import pytest

from tests import commands
from tests.tasks import layouts
from tff_reg import tasks
from tff_reg.commands import run


def test_a_round_on_arrays_with_domains(tmp_path):
    np.savez(
        tmp_path / "a.npz",
        x_train=layouts.random_images(40, 8, 8, 1),
        y_train=np.arange(40) % 3,
        x_test=layouts.random_images(10, 8, 8, 1),
        y_test=np.arange(10) % 3,
        domain=np.arange(40) // 20,
        class_names=np.array(["cat", "dog", "owl"]),
    )
    done = commands.call(
        run.main,
        "--process=fedavg",
        "--task=arrays",
        f"--data_dir={tmp_path / 'a.npz'}",
        "--partition=domain",
        "--num_clients=4",
        "--model=cnn",
        "--augmentation=shift",
        "--local_epochs=1",
        "--total_rounds=1",
        f"--output_dir={tmp_path / 'run'}",
    )
    assert done.returncode == 0 and done.stderr == ""
    assert "arrays, 40 training and 10 test examples, domain" in done.stdout
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert config["class_names"] == ["cat", "dog", "owl"]
    assert config["augmentation"] == "shift" and config["concentration"] is None


@pytest.mark.parametrize("name", tasks.names())
def test_missing_data_are_explained_with_source_and_place(name, tmp_path):
    defaults = tasks.defaults(name)
    if "data_dir" not in defaults.options:
        tasks.check_data(name, None)
        return
    nothing = str(tmp_path / "nothing")
    with pytest.raises(tasks.DataError, match="There is nothing at") as caught:
        tasks.check_data(name, nothing)
    words = str(caught.value)
    assert defaults.source in words and defaults.layout in words
    assert words.endswith(f"(task {name}).") and "\n" not in words
    if defaults.tfds_name is None:
        with pytest.raises(tasks.DataError, match="There are no data: "):
            tasks.check_data(name, None)
    else:
        tasks.check_data(name, None)
