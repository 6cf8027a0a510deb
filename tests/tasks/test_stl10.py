"""STL-10: the official binary files, and TFDS's."""

import numpy as np
import pytest
import tensorflow_datasets as tfds

from tests.tasks import layouts
from tff_reg import lazy, tasks
from tff_reg.tasks import stl10


def test_reads_images_and_labels(tmp_path):
    written = layouts.write_stl10(tmp_path)
    data = stl10.load(str(tmp_path))
    layouts.assert_holds(data, written)
    assert data.class_names == tuple(f"c{i}" for i in range(10))
    normal = data.normalize_fn(data.x_train).numpy()
    np.testing.assert_allclose(normal.std((0, 1, 2)), 1, atol=1e-4)


@pytest.mark.parametrize(
    "file, change, words",
    [
        ("train_X.bin", lambda c: c[:-1], "not a whole number of records"),
        ("test_X.bin", lambda c: c[: 3 * 96 * 96], "10 labels for 1 images"),
        ("train_y.bin", lambda c: b"\x00" + c[1:], "labels from -1 to 9"),
        ("class_names.txt", lambda c: b"cat", "names 1 classes"),
    ],
)
def test_raises_on_damaged_files(tmp_path, file, change, words):
    layouts.write_stl10(tmp_path)
    path = tmp_path / "stl10_binary" / file
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(tasks.DataError, match=words):
        stl10.load(str(tmp_path))


def test_raises_on_a_missing_file_and_says_where_to_get_it(tmp_path):
    layouts.write_stl10(tmp_path)
    (tmp_path / "stl10_binary" / "test_y.bin").unlink()
    with pytest.raises(tasks.DataError, match="no test_y.bin: download http.*stl10"):
        stl10.load(str(tmp_path))


def test_reads_through_tfds(monkeypatch):
    monkeypatch.setattr(lazy.requests, "head", lambda *_, **__: None)
    with tfds.testing.mock_data(num_examples=12):
        data = stl10.load()
    assert data.x_train.shape == data.x_test.shape == (12, 96, 96, 3)
    assert len(data.class_names) == 10
