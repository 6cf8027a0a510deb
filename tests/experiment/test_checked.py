"""The same run is one on the same data, wherever they are."""

import json
import os
import pathlib
import shutil

import numpy as np
import pytest

from tests.experiment import finished
from tff_reg import experiment, files
from tff_reg.data import digests
from tff_reg.experiment.rounds import progress, runs
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
    return runs.CheckedRun(config).refresh_summary()


def test_a_finished_run_on_data_elsewhere_is_finished_after_a_look(ran, tmp_path):
    os.makedirs(tmp_path / "moved")
    moved = shutil.copy(ran["data_dir"], str(tmp_path / "moved" / "b.npz"))
    assert look(ran)["rounds"] == 1
    assert look(ran, data_dir=moved) is None
    again = experiment.RunConfig.of({**ran, "data_dir": moved})
    experiment.run(again, progress=progress.Silence())
    assert look(ran, data_dir=moved)["rounds"] == 1


def test_data_that_changed_in_their_place_are_noticed(ran):
    assert look(ran)["rounds"] == 1
    write_arrays(ran["data_dir"])
    assert look(ran) is None  # Perhaps others; they are compared.
    again = experiment.RunConfig.of(ran)
    experiment.run(again, progress=progress.Silence())
    assert look(ran)["rounds"] == 1
    write_arrays(ran["data_dir"], labels=np.zeros(20, int))
    with pytest.raises(experiment.DirectoryError, match="differs in the data"):
        experiment.run(again, progress=progress.Silence())


def change_in_place(picture):
    times = picture.stat()
    picture.write_bytes(picture.read_bytes()[::-1])
    os.utime(picture, ns=(times.st_atime_ns, times.st_mtime_ns))


@pytest.mark.parametrize(
    "change",
    [
        lambda picture: picture.write_bytes(b"a longer picture"),
        lambda picture: picture.unlink(),
        lambda picture: picture.rename(picture.parent.parent / "b" / "2.png"),
        lambda picture: (picture.parent / "new.png").write_bytes(b""),
        change_in_place,
    ],
)
def test_a_file_that_changed_below_the_folder_of_the_data_is_noticed(tmp_path, change):
    picture = tmp_path / "data" / "train" / "a" / "1.png"
    picture.parent.mkdir(parents=True)
    (picture.parent.parent / "b").mkdir()
    picture.write_bytes(b"a picture")
    asked = {**SMALL, "task": "image_folder", "data_dir": str(tmp_path / "data")}
    asked["output_dir"] = str(tmp_path / "run")
    planned = series.plan_run(experiment.RunConfig.of(asked))
    state = files.state(tmp_path / "data")
    finished.finish(planned, [0.5], files={"data_dir": state})
    assert look(asked)["rounds"] == 1
    change(picture)
    assert look(asked) is None


def test_a_class_list_that_changed_under_a_finished_run_is_noticed(tmp_path):
    (tmp_path / "classes").write_text("a\nb\n")
    asked = {"process": "fedavg", "task": "imagenet200", "total_rounds": 1}
    asked |= {"class_list": str(tmp_path / "classes"), "data_dir": str(tmp_path / "d")}
    asked["output_dir"] = str(tmp_path / "runs" / "a")
    (tmp_path / "d").mkdir()
    planned = series.plan_run(experiment.RunConfig.of(asked))
    states = {n: files.state(asked[n]) for n in ("data_dir", "class_list")}
    finished.finish(planned, [0.5], files=states)
    assert look(asked)["rounds"] == 1
    (tmp_path / "classes").write_text("a\nc\n")
    assert look(asked) is None


def test_a_run_on_other_data_is_refused(ran, tmp_path):
    split = tmp_path / "split"
    split.write_text("{0: [0, 1, 2, 4], 1: [3, 5, 6, 7]}")
    cases = [({"partition": "split_file", "split_file": str(split)}, "partition")]
    for name, count in (("labels", 20), ("test_labels", 4)):
        zeros = {name: np.zeros(count, int)}
        path = write_arrays(tmp_path / f"{name}.npz", **zeros)
        cases.append(({"data_dir": path}, "differs in the data"))
    for (other, words), total_rounds in zip(cases, (1, 2, 1), strict=True):
        asked = {**ran, **other, "total_rounds": total_rounds}
        config = experiment.RunConfig.of(asked)
        with pytest.raises(experiment.DirectoryError, match=words):
            experiment.run(config, progress=progress.Silence())
    assert experiment.RunDirectory(ran["output_dir"]).summary()["rounds"] == 1


def test_runs_on_different_data_are_not_compared_as_one(tmp_path):
    def run(process, seed, **data):
        config = experiment.RunConfig(
            process=process,
            seed=seed,
            settings_of="task",
            output_dir=str(tmp_path / f"{process}{seed}"),
        )
        planned = series.plan_run(config)
        accuracy = 0.4 if process == "fedavg" else 0.5 + 0.001 * seed
        finished.finish(planned, [accuracy] * planned.config.total_rounds, **data)
        return planned.directory

    def of(data):
        return {digests.DEALT: data * 64}

    first, second = run("fedavg", 0, **of("a")), run("fedavg", 1, **of("c"))
    same = [run("man", 0, **of("a")), run("man", 1, **of("c"))]
    other = [run("fedprox", 0, **of("a")), run("fedprox", 1, **of("d"))]
    experiment.compare([first, second, *same], tmp_path / "one")
    assert "**" in (tmp_path / "one" / "table.md").read_text("utf-8")
    # Other examples have no mean, whatever the seed.
    alien = run("fedavg", 2, **of("e"), **{digests.DATA: "f" * 64})
    config = json.loads((pathlib.Path(first) / "config.json").read_text())
    config[digests.DATA] = "g" * 64
    changed = tmp_path / "changed"
    shutil.copytree(first, changed)
    (changed / "config.json").write_text(json.dumps(config))
    with pytest.raises(experiment.ComparisonError, match="differ in digest_of_data"):
        experiment.compare([changed, alien], tmp_path / "none")
    experiment.compare([first, second, *other], tmp_path / "two")
    text = " ".join((tmp_path / "two" / "table.md").read_text("utf-8").split())
    assert "**" not in text
    assert (
        "They differ in split of the data into clients: cccccccc (fedavg), dddddddd"
        " (fedprox)." in text
    )
