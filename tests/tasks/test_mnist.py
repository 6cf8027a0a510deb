"""MNIST and Fashion-MNIST: the official IDX files, packed or not, and TFDS's."""

import gzip
import struct

import numpy as np
import pytest
import tensorflow_datasets as tfds

from tests.tasks import layouts
from tff_reg import lazy, tasks
from tff_reg.tasks import fashion_mnist, mnist

FOLDERS = {mnist: "MNIST", fashion_mnist: "FashionMNIST"}
MODULES = pytest.mark.parametrize(
    "module", FOLDERS, ids=lambda each: each.DEFAULTS.name
)


def write(folder, is_packed=False):
    """Writes the four files; returns images and labels by part."""
    folder.mkdir(parents=True, exist_ok=True)
    written = {}
    for part, name, count in (("train", "train", 20), ("test", "t10k", 10)):
        images = layouts.random_images(count, 28, 28, 1, seed=count)
        labels = layouts.some_labels(count, 10, seed=count)
        written[part] = images, labels
        for kind, header, rows in (
            ("images-idx3", struct.pack(">4i", 2051, count, 28, 28), images),
            ("labels-idx1", struct.pack(">2i", 2049, count), labels.astype(np.uint8)),
        ):
            content, ending = header + rows.tobytes(), ".gz" if is_packed else ""
            content = gzip.compress(content) if is_packed else content
            (folder / f"{name}-{kind}-ubyte{ending}").write_bytes(content)
    return written


@MODULES
@pytest.mark.parametrize("is_packed", [False, True])
@pytest.mark.parametrize("is_inside", [False, True])
def test_reads_all_images_in_order(tmp_path, module, is_packed, is_inside):
    folder = tmp_path / FOLDERS[module] / "raw" if is_inside else tmp_path
    written = write(folder, is_packed)
    data = module.load(str(tmp_path))
    layouts.assert_holds(data, written)
    assert len(data.class_names) == 10 and data.class_names[9] in ("9", "Ankle boot")
    normal = np.array(data.normalize_fn(data.x_train))
    np.testing.assert_allclose([normal.mean(), normal.std()], [0, 1], atol=1e-4)


@pytest.mark.parametrize(
    "file, change, words",
    [
        ("train-images-idx3", lambda c: c[:-1], "cut off"),
        ("train-images-idx3", lambda c: c[:7], "cut off"),
        ("train-images-idx3", lambda c: b"", "cut off"),
        ("train-labels-idx1", lambda c: c[:3] + b"\x03" + c[4:], "no file of labels"),
        ("t10k-labels-idx1", lambda c: c[:7] + b"\x09" + c[8:-1], "9 labels for 10"),
        ("t10k-labels-idx1", lambda c: c[:-1] + b"\x0b", "labels from 0 to 11"),
    ],
)
def test_raises_on_damaged_files(tmp_path, file, change, words):
    write(tmp_path)
    path = tmp_path / f"{file}-ubyte"
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(tasks.DataError, match=words) as caught:
        mnist.load(str(tmp_path))
    assert "\n" not in str(caught.value)


def test_raises_on_files_that_are_missing_or_no_gzip_files(tmp_path):
    write(tmp_path, is_packed=True)
    path = tmp_path / "t10k-labels-idx1-ubyte.gz"
    path.write_bytes(path.read_bytes()[:-12])
    with pytest.raises(tasks.DataError, match="cannot be read"):
        mnist.load(str(tmp_path))
    path.unlink()
    words = "no t10k-labels.*: download https.*mnist.*torchvision's MNIST"
    with pytest.raises(tasks.DataError, match=words):
        mnist.load(str(tmp_path))


@MODULES
def test_reads_through_tfds(monkeypatch, module):
    monkeypatch.setattr(lazy.requests, "head", lambda *_, **__: None)
    with tfds.testing.mock_data(num_examples=12):
        data = module.load()
    assert data.x_train.shape == data.x_test.shape == (12, 28, 28, 1)
    assert len(data.class_names) == 10
