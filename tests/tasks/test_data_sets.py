"""Normalisation by the data's own numbers, and labels."""

import numpy as np
import pytest

from tests.tasks import layouts
from tff_reg import tasks
from tff_reg.tasks import data_sets


def test_images_get_mean_0_and_deviation_1_channel_by_channel():
    # More than are counted at a time, with channels that differ.
    images = layouts.random_images(2500, 3, 4, 3) // np.array([1, 2, 5], np.uint8)
    found = data_sets.normalization_of(images)(images).numpy()
    assert found.dtype == np.float32
    np.testing.assert_allclose(found.mean((0, 1, 2)), 0, atol=1e-4)
    np.testing.assert_allclose(found.std((0, 1, 2)), 1, atol=1e-4)


def test_a_channel_of_one_value_becomes_0():
    images = np.full((2, 3, 3, 1), 7, np.uint8)
    found = data_sets.normalization_of(images)(images).numpy()
    np.testing.assert_allclose(found, 0, atol=1e-6)


@pytest.mark.parametrize(
    "labels, words",
    [
        ([], "no examples"),
        ([0, 3], "labels from 0 to 3; they must be in 0 to 2"),
        ([0.0, 1.0], "dtype float64"),
    ],
)
def test_raises_on_labels_that_are_no_classes(labels, words):
    with pytest.raises(tasks.DataError, match=words):
        data_sets.check_labels(np.array(labels), 3, "it")
    assert data_sets.check_labels(np.array([0, 2]), 3, "it").dtype == np.int32
