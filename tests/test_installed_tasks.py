"""A task and a model from an installed package, by their names alone."""

import json
import os

import pytest

from tests import commands

_TASK = """
from tff_reg.lazy import np
from tff_reg.tasks import TaskDefaults, data_sets

DEFAULTS = TaskDefaults(
    name="stripes",
    summary="stripes, along or across",
    model="narrow",
    norm="none",
    augmentation="none",
    image_shape=(8, 8, 1),
    num_classes=2,
    num_train_examples=40,
)


def load():
    labels = np.arange(60, dtype=np.int32) % 2
    along = np.tile(np.arange(8) % 2, (8, 1)) * 255
    images = np.where(labels[:, None, None] == 1, along, along.T)
    images = images.astype(np.uint8)[..., np.newaxis]
    return data_sets.of_parts(
        (images[:40], labels[:40]), (images[40:], labels[40:]), range(2), "stripes"
    )
"""
_MODEL = """
from tff_reg import models
from tff_reg.lazy import tf


def narrow(*, input_shape, num_classes, norm, projector, seed, dtype):
    assert norm == "none" and projector == "none"
    initial = tf.keras.initializers.GlorotUniform(seed)
    layers = [
        tf.keras.layers.Flatten(dtype=dtype),
        tf.keras.layers.Dense(num_classes, kernel_initializer=initial, dtype=dtype),
    ]
    return models.from_keras_blocks(layers, input_shape=input_shape)
"""
_ENTRY_POINTS = """
[tff_reg.tasks]
stripes = stripes
digits = stripes
broken = nowhere_here
other = stripes
[tff_reg.models]
narrow = narrow_model:narrow
lost = narrow_model:lost
"""
SMALL = (
    "--process=fedprox",
    "--partition=iid",
    "--num_clients=4",
    "--clients_per_round=2",
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with the package installed, as pip would."""
    path = tmp_path_factory.mktemp("packages")
    known = path / "stripes-0.3.dist-info"
    known.mkdir()
    (known / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: stripes\nVersion: 0.3\n"
    )
    (known / "RECORD").write_text("stripes.py,,\nnarrow_model.py,,\n")
    (known / "entry_points.txt").write_text(_ENTRY_POINTS)
    (path / "stripes.py").write_text(_TASK)
    (path / "narrow_model.py").write_text(_MODEL)
    return path


@pytest.fixture(scope="module")
def installed(folder):
    """Calls commands where the package is. Five seconds: TensorFlow starts."""
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    with commands.OtherProcess(env=environment) as process:
        yield process.call


def test_both_run_by_their_names(installed, tmp_path):
    run = tmp_path / "run"
    arguments = ("--task=stripes", *SMALL, f"--output_dir={run}")
    first = installed("tff_reg.commands.run", *arguments, "--total_rounds=1")
    assert first.returncode == 0, first.stderr
    config = json.loads((run / "config.json").read_text())
    assert config["model"] == "narrow" and config["norm"] == "none"
    assert {"stripes", "narrow_model"} <= config["code"][0].keys()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--task=broken"], "--task=broken: The entry point 'broken' of tff_reg.tasks"),
        (["--task=other"], "must be a module with load and DEFAULTS, a TaskDefaults"),
        (["--model=lost"], "--model=lost: The entry point 'lost' of tff_reg.models"),
        (["--task=strips"], "stripes"),
    ],
)
def test_one_that_cannot_be_had_is_refused_in_a_line(installed, arguments, words):
    done = installed("tff_reg.commands.run", *SMALL, *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    # A process's first command also warns of the name that is taken.
    assert words in done.stderr.splitlines()[-1]


def test_ours_are_not_stopped_by_a_package(folder):
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    with commands.OtherProcess("stripes", "narrow_model", env=environment) as process:
        told = process.call("tff_reg.commands.run", "--helpfull")
        assert told.returncode == 0
        listed = " ".join(told.stdout.split())
        assert "digits" in listed and "stripes" in listed and "narrow" in listed
        assert "'digits' of tff_reg.tasks (stripes) is left out: its" in told.stderr
