"""ImageNet-200: the authors' classes, the layout, memory."""

import numpy as np
import pytest
from PIL import Image
from tensorflow_datasets.core.utils import resource_utils

from tests.tasks import layouts
from tff_reg import tasks
from tff_reg.tasks import imagenet200

NAMES = [f"n{i:08d}" for i in range(205)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """All 205 classes with one image each, two of val."""
    folder = tmp_path_factory.mktemp("ilsvrc")
    options = dict(suffix=".JPEG")
    layouts.write_class_folders(folder / "train", NAMES, 1, 9, 12, **options)
    layouts.write_class_folders(folder / "val", NAMES, 2, 12, 9, seed=1, **options)
    return folder


def test_the_classes_are_those_of_the_fedalign_authors():
    folder = resource_utils.tfds_path() / "image_classification"
    names = sorted((folder / "imagenet_resized_labels.txt").read_text().split())
    assert len(names) == 1000
    chosen = imagenet200.choose_classes(names)
    assert len(set(chosen)) == 200 and chosen == sorted(chosen)
    # The first and the last that their code names.
    assert {"n01729322", "n01514668", "n04550184", "n02708093", "n02086646"} <= set(
        chosen
    )


def test_reads_200_of_the_classes(folder):
    data = imagenet200.load(str(folder), image_size=8)
    assert data.class_names == tuple(imagenet200.choose_classes(NAMES))
    assert data.x_train.shape == (200, 8, 8, 3) and data.x_test.shape == (400, 8, 8, 3)
    assert np.array_equal(data.y_train, np.arange(200))
    assert np.array_equal(data.y_test, np.repeat(np.arange(200), 2))
    # The shorter side to 8 * 256 / 224, the middle cut out.
    with Image.open(folder / "train" / data.class_names[7] / "0000.JPEG") as image:
        whole = image.resize((12, 9), Image.Resampling.BILINEAR)
    assert np.array_equal(data.x_train[7], np.asarray(whole.crop((2, 0, 10, 8))))


def test_a_class_list_replaces_the_choice(folder, tmp_path):
    (tmp_path / "classes.txt").write_text(f"{NAMES[5]}\n{NAMES[2]}\n\n")
    data = imagenet200.load(
        str(folder), image_size=8, class_list=str(tmp_path / "classes.txt")
    )
    assert data.class_names == (NAMES[2], NAMES[5])
    assert data.y_test.tolist() == [0, 0, 1, 1]


@pytest.mark.parametrize(
    "text, words",
    [
        ("n77777777\n", "names the class 'n77777777'"),
        (f"{NAMES[0]}\n{NAMES[0]}\n", "each class once"),
    ],
)
def test_raises_on_a_class_list_that_does_not_fit(folder, tmp_path, text, words):
    (tmp_path / "classes.txt").write_text(text)
    with pytest.raises(tasks.DataError, match=words):
        imagenet200.load(str(folder), class_list=str(tmp_path / "classes.txt"))


def test_500_images_of_a_class_are_drawn_always_the_same():
    paths = [f"/data/train/n01/{i:04d}.JPEG" for i in range(1300)]
    chosen = imagenet200._some(paths)
    assert len(set(chosen)) == 500 and chosen == sorted(chosen)
    elsewhere = imagenet200._some([path.replace("/data", "/d") for path in paths])
    assert [path.replace("/d/", "/data/") for path in elsewhere] == chosen
    other = imagenet200._some([path.replace("n01", "n02") for path in paths])
    assert [path.replace("n02", "n01") for path in other] != chosen


def test_raises_on_too_little_memory(folder, monkeypatch):
    monkeypatch.setattr(imagenet200, "_available_memory", lambda: 10**6)
    with pytest.raises(tasks.DataError, match="0.1 GB, and 0.0 GB are free; give a"):
        imagenet200.load(str(folder))
