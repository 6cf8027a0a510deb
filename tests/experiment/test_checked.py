"""The same run is one on the same data, wherever they are."""

import json
import os
import shutil
import types

import numpy as np
import pytest

from tests import commands
from tests.experiment import finished
from tff_reg import experiment, tasks
from tff_reg.data import digests
from tff_reg.experiment.config import run_config as config_lib, task_settings
from tff_reg.experiment.rounds import progress, recorded
from tff_reg.experiment.series import plan as series

SMALL = {
    "process": "fedavg",
    "task": "arrays",
    "model": "cnn",
    "num_clients": 2,
    "clients_per_round": 2,
    "local_epochs": 1,
    "total_rounds": 1,
    "settings_of": "task",
}


def write_arrays(path, labels=None, test_labels=None):
    """Twenty images of two classes, and four to test."""
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (24, 8, 8, 1), dtype=np.uint8)
    known = np.arange(24) % 2
    np.savez(
        path,
        x_train=images[:20],
        y_train=known[:20] if labels is None else labels,
        x_test=images[20:],
        y_test=known[20:] if test_labels is None else test_labels,
    )
    return str(path)


@pytest.fixture
def ran(tmp_path):
    """What was asked of a finished run on arrays."""
    asked = {
        **SMALL,
        "data_dir": write_arrays(tmp_path / "a.npz"),
        "output_dir": str(tmp_path / "run"),
    }
    experiment.run(experiment.RunConfig.of(asked), progress=progress.Silence())
    return asked


def look(asked, **changes):
    config = experiment.RunConfig.of({**asked, **changes}).resolved()
    return experiment.finished(config)


def test_a_config_has_digests_that_need_no_tensorflow_to_be_made_again(ran):
    stored = experiment.RunDirectory(ran["output_dir"]).config
    # Initial weights are recorded of the user's Keras models alone.
    names = digests.NAMES.keys() - {digests.INITIAL_WEIGHTS}
    found = {name: stored[name] for name in names}
    assert all(len(each) == 64 for each in found.values())
    config = config_lib.ResolvedConfig.load(stored)
    settings = config.part(task_settings.TaskSettings)
    assert tasks.digests(**settings) == found
    program = (
        "import ast, json, sys; from tff_reg import tasks\n"
        "found = tasks.digests(**ast.literal_eval(sys.argv[1]))\n"
        "assert 'tensorflow' not in sys.modules; print(json.dumps(found))"
    )
    assert json.loads(commands.python(program, repr(settings)).stdout) == found


def test_a_finished_run_is_finished_on_the_same_data_wherever_they_are(ran, tmp_path):
    os.makedirs(tmp_path / "moved")
    moved = shutil.copy(ran["data_dir"], str(tmp_path / "moved" / "b.npz"))
    assert look(ran, data_dir=moved)["rounds"] == 1
    assert look(ran)["rounds"] == 1


@pytest.mark.parametrize(
    "labels, words",
    [
        ({"labels": np.arange(20) % 2 == 0}, "of other training examples; give those"),
        ({"test_labels": np.zeros(4, int)}, "of other test examples; give those"),
    ],
)
def test_a_run_on_other_data_is_another_finished_or_not(ran, tmp_path, labels, words):
    labels = {name: np.asarray(each, int) for name, each in labels.items()}
    other = write_arrays(tmp_path / "c.npz", **labels)
    with pytest.raises(experiment.DirectoryError, match=words):
        look(ran, data_dir=other)
    common = experiment.RunConfig.of({**ran, "data_dir": other})
    with pytest.raises(experiment.DirectoryError, match=words):
        series.plan_run(common)
    # It is not continued, either.
    more = experiment.RunConfig.of({**ran, "data_dir": other, "total_rounds": 2})
    with pytest.raises(experiment.DirectoryError, match=words):
        experiment.run(more, progress=progress.Silence())
    # Nor with the same path.
    write_arrays(tmp_path / "a.npz", **labels)
    with pytest.raises(experiment.DirectoryError, match=words):
        look(ran)
    assert experiment.RunDirectory(ran["output_dir"]).summary()["rounds"] == 1


def test_a_split_file_may_be_elsewhere_but_not_say_something_else(tmp_path):
    def split(name, text):
        (tmp_path / name).write_text(text)
        return str(tmp_path / name)

    first = "{0: [0, 1, 2, 3], 1: [4, 5, 6, 7]}"
    asked = {
        **SMALL,
        "data_dir": write_arrays(tmp_path / "a.npz"),
        "partition": "split_file",
        "split_file": split("first", first),
        "output_dir": str(tmp_path / "run"),
    }
    experiment.run(experiment.RunConfig.of(asked), progress=progress.Silence())
    assert look(asked, split_file=split("same", first)) is not None
    other = split("other", "{0: [0, 1, 2, 4], 1: [3, 5, 6, 7]}")
    words = "other clients, or another split of the examples"
    with pytest.raises(experiment.DirectoryError, match=words):
        look(asked, split_file=other)
    more = experiment.RunConfig.of({**asked, "split_file": other, "total_rounds": 2})
    with pytest.raises(experiment.DirectoryError, match=words):
        experiment.run(more, progress=progress.Silence())


def test_files_are_not_read_again_while_they_are_what_they_were(ran):
    read = []

    def make(**settings):
        read.append(settings)
        return tasks.digests(**settings)

    own = types.SimpleNamespace(digests=make, check_data=tasks.check_data)
    config = experiment.RunConfig.of(ran).resolved()
    assert experiment.finished(config, own) is not None and not read
    os.utime(ran["data_dir"], (1, 1))
    # A second look at the same files finds their digests in memory.
    for _ in range(2):
        assert experiment.finished(config, own) is not None and len(read) == 1


def test_what_is_behind_a_link_is_part_of_the_state(tmp_path):
    def state():
        config = experiment.RunConfig(
            process="fedavg", task="image_folder", data_dir=str(tmp_path / "data")
        )
        return recorded.files_of(config.resolved())

    for name in ("data", "first/cat", "second/cat"):
        (tmp_path / name).mkdir(parents=True)
    image = tmp_path / "first" / "cat" / "0.png"
    image.write_bytes(b"one")
    train, back = tmp_path / "data" / "train", tmp_path / "first" / "back"
    nothing = tmp_path / "data" / "nothing"
    train.symlink_to(tmp_path / "first")
    back.symlink_to(tmp_path / "data")
    nothing.symlink_to("nowhere")
    states = [state()]
    assert states[0] is not None and state() == states[0]
    image.write_bytes(b"other")
    states.append(state())
    # Of the same size and time.
    before = image.stat()
    image.write_bytes(b"third")
    os.utime(image, ns=(before.st_atime_ns, before.st_mtime_ns))
    states.append(state())
    train.unlink()
    train.symlink_to(tmp_path / "second")
    states.append(state())
    nothing.unlink()
    states.append(state())
    assert len(set(states)) == 5


def test_runs_on_different_data_are_not_compared_as_one(tmp_path):
    def run(process, seed, **data):
        config = experiment.RunConfig(
            process=process,
            seed=seed,
            settings_of="task",
            output_dir=str(tmp_path / f"{process}{seed}"),
        )
        planned = series.plan_run(config)
        finished.finish(planned, [0.5] * planned.config.total_rounds, **data)
        return planned.directory

    def of(examples, split):
        return {digests.EXAMPLES: examples * 64, digests.SPLIT: split * 64}

    first, second = run("fedavg", 0, **of("a", "b")), run("fedavg", 1, **of("a", "c"))
    same = [run("man", 0, **of("a", "b")), run("man", 1, **of("a", "c"))]
    other = [run("fedprox", 0, **of("a", "b")), run("fedprox", 1, **of("a", "d"))]
    experiment.compare([first, second, *same], tmp_path / "one")
    assert "**" in (tmp_path / "one" / "table.md").read_text("utf-8")
    experiment.compare([first, second, *other], tmp_path / "two")
    text = " ".join((tmp_path / "two" / "table.md").read_text("utf-8").split())
    assert "**" not in text
    assert (
        "They differ in clients, or another split of the examples: cccccccc (fedavg),"
        " dddddddd (fedprox)." in text
    )
    third = run("fedavg", 2, **of("e", "c"))
    with pytest.raises(experiment.ComparisonError, match="differ in training examples"):
        experiment.compare([first, third], tmp_path / "three")


def test_nothing_is_said_of_files_where_none_is_named():
    config = experiment.RunConfig(process="fedavg").resolved()
    assert recorded.files_of(config) is None
