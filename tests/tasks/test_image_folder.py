"""The user's own folders of images."""

import numpy as np
import pytest

from tests.tasks import layouts
from tff_reg import tasks
from tff_reg.tasks import image_folder

CLASSES = ["cat", "dog"]


@pytest.fixture
def folder(tmp_path):
    layouts.write_class_folders(tmp_path / "train", CLASSES, 6, 8, 8)
    layouts.write_class_folders(tmp_path / "test", CLASSES, 2, 8, 8, seed=1)
    return tmp_path


def write(name, *shape):
    """Makes a black image somewhere in the folder."""
    return lambda folder: layouts.write_image(folder / name, np.zeros(shape, np.uint8))


def test_reads_both_parts_with_the_classes_of_the_folders(folder):
    data = image_folder.load(str(folder))
    assert data.class_names == ("cat", "dog")
    for x, y, seed, count in (
        (data.x_train, data.y_train, 0, 6),
        (data.x_test, data.y_test, 1, 2),
    ):
        written = layouts.random_images(2 * count, 8, 8, 3, seed=seed)
        assert x.shape == written.shape
        order = [(written == image).all((1, 2, 3)).argmax() for image in x]
        assert sorted(order) == list(range(2 * count))
        assert np.array_equal(np.array(order) // count, y)
    assert np.array_equal(image_folder.load(str(folder)).x_train, data.x_train)


def test_an_image_size_brings_all_to_one(folder):
    write("train/cat/wide.png", 9, 30, 3)(folder)
    with pytest.raises(tasks.DataError, match="give image_size=N"):
        image_folder.load(str(folder))
    data = image_folder.load(str(folder), image_size=6)
    assert data.x_train.shape == (13, 6, 6, 3) and data.x_test.shape == (4, 6, 6, 3)


def resize_tests(folder):
    for path in (folder / "test").rglob("*.jpg"):
        layouts.write_image(path, np.zeros((9, 9, 3), np.uint8))


def damage(folder):
    (folder / "train" / "dog" / "0003.jpg").write_bytes(b"no image")


@pytest.mark.parametrize(
    "change, words",
    [
        (resize_tests, "different sizes; give image_size=N"),
        (damage, "dog/0003.jpg is missing or no image"),
        (write("test/dog/1.webp", 8, 8, 3), "dog/1.webp is an image of a kind that is"),
        (
            write("test/Dog/1.png", 8, 8, 3),
            "train has no images of the class Dog, a folder elsewhere",
        ),
    ],
)
def test_raises_on_a_wrong_image_and_names_it(folder, change, words):
    change(folder)
    with pytest.raises(tasks.DataError, match=words):
        image_folder.load(str(folder))


@pytest.mark.skipif(
    not layouts.SHARED.exists(), reason="../shared/data with images is not there"
)
def test_reads_real_jpegs():
    data = image_folder.load(str(layouts.SHARED / "cifar10_imagefolder"))
    assert data.x_train.shape == (200, 32, 32, 3)
    assert data.x_test.shape == (50, 32, 32, 3)
    assert np.bincount(data.y_train).tolist() == [20] * 10
    assert data.class_names[0] == "airplane" and data.class_names[9] == "truck"
    with np.load(layouts.SHARED / "cifar10_small.npz") as content:
        pairs = zip(content["x_train"], content["y_train"])
        known = {image.tobytes(): label for image, label in pairs}
    assert [known[image.tobytes()] for image in data.x_train] == data.y_train.tolist()
