"""The digits task: a fixed split, data as stored, its own augmentation."""

import hashlib

import numpy as np
import pytest

from tff_reg.data import augmentation
from tff_reg.tasks import digits

SPLIT_DIGEST = "c66e30e6f58bb213769ea8e8b20240dca1d846e6a58ed7aba19be413551ee499"
DATA_DIGEST = "531fa76894125c4147b027cd9a95f3e880d546a191798e71e3caf5ac9f842568"


@pytest.fixture(scope="module")
def data():
    return digits.load()


def test_there_are_1437_training_and_360_test_images_kept_as_uint8(data):
    assert data.x_train.shape == (1437, 8, 8, 1)
    assert data.x_test.shape == (360, 8, 8, 1)
    for images, labels in [(data.x_train, data.y_train), (data.x_test, data.y_test)]:
        assert images.dtype == np.uint8 and labels.dtype == np.int32
        assert images.min() == 0 and images.max() == digits.LARGEST_PIXEL
        assert set(labels) == set(range(10))
        assert labels.shape == images.shape[:1]
    # As the defaults say.
    assert digits.DEFAULTS.image_shape == data.x_train.shape[1:]
    assert digits.DEFAULTS.num_train_examples == len(data.x_train)
    assert digits.DEFAULTS.num_classes == 10


def test_the_split_never_changes():
    # The positions alone, for labels given by a formula: neither scikit-learn's files
    # nor its splitters have a say in it.
    _, test = digits.split(np.arange(1797) % 10)
    assert test.size == 360
    assert hashlib.sha256(test.astype("<i8").tobytes()).hexdigest() == SPLIT_DIGEST


def test_the_images_are_the_expected_ones_and_none_is_of_both_parts(data):
    digest = hashlib.sha256()
    for array in (data.x_train, data.y_train, data.x_test, data.y_test):
        digest.update(array.tobytes())
    assert digest.hexdigest() == DATA_DIGEST
    train = {image.tobytes() for image in data.x_train}
    assert not any(image.tobytes() in train for image in data.x_test)


def test_augmentation_moves_by_at_most_a_pixel_and_never_mirrors(data):
    images = data.x_train[:200]
    augment = augmentation.build(
        digits.DEFAULTS.augmentation, data.normalize_fn, largest=data.largest_pixel
    )
    moved = augment(images, np.array([1, 2])).numpy()
    padded = np.pad(images, [(0, 0), (1, 1), (1, 1), (0, 0)])
    normal = data.normalize_fn(padded).numpy()
    places = set()
    for image, all_places in zip(moved, normal):
        found = [
            (top, left)
            for top in range(3)
            for left in range(3)
            if np.allclose(image, all_places[top : top + 8, left : left + 8], atol=1e-5)
        ]
        assert found
        places.update(found)
    assert len(places) == 9
