"""Parts of data sets, and random images in their place."""

import numpy as np
import pytest

from tff_reg import tasks
from tff_reg.experiment.config import scale
from tff_reg.tasks import digits, reduced_data
from tff_reg.tasks.data_sets import Examples

TINY = scale.parse("tiny")


def numbered_data(num_classes, num_domains, count):
    """Images whose first pixel is their position modulo 256."""
    position = np.arange(count, dtype=np.int32)
    images = np.zeros((count, 2, 2, 1), np.uint8)
    images[:, 0, 0, 0] = position % 256
    return Examples(
        x_train=images,
        y_train=position % num_classes,
        x_test=images[:50],
        y_test=position[:50] % num_classes,
        normalize_fn=None,
        class_names=tuple(map(str, range(num_classes))),
        domains=position // num_classes % num_domains,
        domain_names=tuple(map(str, range(num_domains))),
    )


def test_a_part_has_its_share_of_every_class_and_is_always_the_same():
    whole = digits.load()
    part = reduced_data.subset(whole, scale.parse("0.25"))
    assert len(part.x_train) == len(part.y_train) == 359
    assert len(part.x_test) == len(part.y_test) == 90
    expected = np.bincount(whole.y_train) / 4
    assert (np.abs(np.bincount(part.y_train) - expected) <= 1).all()
    again = reduced_data.subset(whole, scale.parse("0.25"))
    assert np.array_equal(part.x_train, again.x_train)
    part = reduced_data.subset(whole, scale.parse("1"))
    assert np.array_equal(part.x_train, whole.x_train)
    assert np.array_equal(part.y_test, whole.y_test)


def test_images_labels_and_domains_stay_together():
    whole = numbered_data(num_classes=3, num_domains=4, count=240)
    part = reduced_data.subset(whole, scale.parse("0.5"))
    position = part.x_train[:, 0, 0, 0].astype(np.int32)
    assert np.array_equal(part.y_train, position % 3)
    assert np.array_equal(part.domains, position // 3 % 4)
    counts = np.zeros((3, 4), int)
    np.add.at(counts, (part.y_train, part.domains), 1)
    assert (counts == 10).all()


def test_a_small_subset_has_only_the_first_classes():
    part = reduced_data.subset(numbered_data(100, 1, 5000), TINY)
    assert np.bincount(part.y_train).tolist() == [4] * 12
    assert set(part.y_test) <= set(range(12))
    assert len(part.class_names) == 100


def test_a_smoke_test_has_some_test_examples_of_each_client():
    tests = np.split(np.arange(43), [40])
    data = numbered_data(2, 1, 100)
    part, dealt = reduced_data.of_clients(
        data, np.split(np.arange(100), 2), tests, TINY
    )
    assert part.x_test[:, 0, 0, 0].tolist() == [*range(22), 40, 41]
    assert [*map(len, dealt)] == [24, 24]


@pytest.mark.parametrize(
    "name", [n for n in tasks.names() if tasks.defaults(n).image_shape]
)
def test_random_images_have_the_shapes_of_the_task(name):
    known = tasks.defaults(name)
    data = reduced_data.synthetic(known, TINY)
    assert data.x_train.shape == (48, *known.image_shape)
    assert data.x_test.shape == (24, *known.image_shape)
    assert data.x_train.dtype == np.uint8 and data.x_train.max() > 200
    assert data.y_train.dtype == data.y_test.dtype == np.int32
    assert len(data.class_names) == known.num_classes
    counts = np.bincount(data.y_train)
    assert counts.min() >= 4 and counts.max() - counts.min() <= 4
    if known.num_domains == 0:
        assert data.domains is None
    else:
        assert np.bincount(data.domains).tolist() == [12] * 4
    images = np.asarray(data.normalize_fn(data.x_train))
    assert abs(images.mean()) < 0.05 and abs(images.std() - 1) < 0.05


def test_tasks_of_random_images_or_of_part_of_the_data_are_small(tmp_path):
    options = dict(partition="domain", num_clients=4, seed=0, scale="tiny")
    task = tasks.build("pacs", synthetic_data=True, image_size=16, **options)
    assert [len(part) for part in task.partition] == [12] * 4
    assert task.image_shape == (16, 16, 3)
    with pytest.raises(tasks.DataError, match="There are no data: download"):
        tasks.build("pacs", **options)
    task = tasks.build("digits", **{**options, "partition": "iid"})
    assert task.client_data.client_sizes.sum() == 48
    assert len(task.test_arrays()[1]) == 24
