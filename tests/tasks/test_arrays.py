"""The user's own arrays."""

import functools

import numpy as np
import pytest

from tests.tasks import layouts
from tff_reg import tasks
from tff_reg.tasks import arrays


def _arrays(**changes):
    return {
        "x_train": layouts.random_images(12, 5, 6, 3),
        "y_train": np.arange(12) % 3,
        "x_test": layouts.random_images(4, 5, 6, 3, seed=1),
        "y_test": np.array([0, 1, 2, 3]),
        **changes,
    }


def _save(path, **content):
    np.savez(path / "a.npz", **content)
    return str(path / "a.npz")


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_reads_the_arrays_of_the_file(tmp_path, save):
    content = _arrays()
    save(tmp_path / "a.npz", **content)
    data = arrays.load(str(tmp_path / "a.npz"))
    for name, array in content.items():
        found = getattr(data, name)
        assert np.array_equal(found, array)
        assert found.dtype == (np.uint8 if name[0] == "x" else np.int32)
    # Class 3 is only among the test examples.
    assert data.class_names == ("0", "1", "2", "3") and data.domains is None


def test_reads_domains_and_names(tmp_path):
    domain = np.arange(12, dtype=np.int16) // 6
    more = dict(domain=domain, test_domain=[1, 0, 2, 0], class_names=[*"abcd"])
    data = arrays.load(_save(tmp_path, **_arrays(**more)))
    assert data.class_names == ("a", "b", "c", "d")
    assert np.array_equal(data.domains, domain) and data.domain_names == (*"012",)
    assert data.test_domains.tolist() == [1, 0, 2, 0]


def test_float_images_are_not_normalised_again(tmp_path):
    content = _arrays(
        x_train=np.random.default_rng(0).normal(size=(12, 5, 6, 3)).astype(np.float32),
        x_test=np.ones((4, 5, 6, 3), np.float32),
    )
    data = arrays.load(_save(tmp_path, **content))
    assert np.array_equal(data.normalize_fn(data.x_train), content["x_train"])


@pytest.mark.parametrize(
    "changes, words",
    [
        ({"x_train": np.zeros((12, 5, 6, 3))}, "x_train in .* is float64"),
        (
            {"x_train": np.full((12, 5, 6, 3), np.nan, np.float32)},
            "x_train in .* has values that are not finite",
        ),
        ({"x_train": np.zeros((12, 5), np.uint8)}, r"is uint8 \(12, 5\)"),
        ({"x_test": np.zeros((4, 6, 6, 3), np.uint8)}, "must be alike"),
        ({"y_train": np.arange(11)}, "has 12 images and 11 labels"),
        ({"y_train": np.arange(12) / 2}, "dtype float64"),
        ({"y_train": np.arange(12) - 1}, "labels from -1"),
        (
            {"y_train": np.arange(12) % 3 + 1, "y_test": np.arange(4) % 3 + 1},
            "numbered from 1 to 3; number them from 0",
        ),
        ({"class_names": np.array(["a", "b"])}, "must be in 0 to 1"),
        ({"class_names": np.array(["a", "b", "a", "c"])}, "are 2 class names 'a'"),
        ({"x_train": np.zeros((12, 3, 5, 6), np.uint8)}, r"last: np.transpose\(images"),
        (
            {
                "x_train": np.full((12, 5, 6, 3), 0.5, np.float32),
                "x_test": np.full((4, 5, 6, 3), 128, np.float32),
            },
            "x_train reaches up to 0.5 and x_test up to 128; bring both to one scale",
        ),
        ({"domain": np.arange(3)}, "3 numbers for 12 examples"),
        ({"domain": [0] * 12, "test_domain": [0, 0]}, "2 numbers for 4 examples"),
        ({"x_test": np.array([None] * 4)}, "no .npz file of plain arrays"),
    ],
)
def test_raises_on_arrays_that_do_not_fit(tmp_path, changes, words):
    with pytest.raises(tasks.DataError, match=words) as caught:
        arrays.load(_save(tmp_path, **_arrays(**changes)))
    assert "\n" not in str(caught.value)


def test_raises_on_a_file_that_is_no_npz(tmp_path):
    path = tmp_path / "a.npz"
    content = _arrays()
    del content["y_test"]
    with pytest.raises(tasks.DataError, match="has no array y_test"):
        arrays.load(_save(tmp_path, **content))
    whole = path.read_bytes()
    for damaged in (b"", b"text", whole[:-30], whole[:200]):
        path.write_bytes(damaged)
        with pytest.raises(tasks.DataError, match="no .npz file"):
            arrays.load(str(path))
    np.save(tmp_path / "b.npy", np.arange(3))
    with pytest.raises(tasks.DataError, match="no .npz file"):
        arrays.load(str(tmp_path / "b.npy"))


def test_raises_on_an_augmentation_that_would_clip_float_images(tmp_path):
    content = _arrays(
        x_train=np.full((12, 5, 6, 3), -1, np.float32),
        x_test=np.full((4, 5, 6, 3), -1, np.float32),
    )
    build = functools.partial(
        tasks.build,
        "arrays",
        data_dir=_save(tmp_path, **content),
        partition="iid",
        num_clients=3,
        model="cnn",
    )
    with pytest.raises(ValueError, match="resized_crop varies colours"):
        build(augmentation="resized_crop")
    task = build(augmentation="none")
    assert np.all(task.augment_fn(content["x_train"], np.array([1, 2])) == -1)
