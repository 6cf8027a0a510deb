"""The common form of tasks: a BaselineTask with clients, keys and augmentation."""

import collections
import dataclasses

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tff_reg import models, tasks
from tff_reg.data import augmentation, keys, partitions
from tff_reg.experiment.config.task_settings import OPTION, TaskSettings
from tff_reg.settings import settings_of

DEALT = dict(model="cnn", partition="dirichlet_unbalanced", concentration=0.5)


@pytest.fixture(scope="module")
def task():
    return tasks.build("digits", norm="group", num_clients=16, seed=3, **DEALT)


@pytest.mark.parametrize("name", tasks.names())
def test_defaults_name_things_that_exist(name):
    defaults = tasks.defaults(name)
    assert defaults.name == name
    assert defaults.model in models.names.ALL_NAMES
    assert defaults.norm in models.NORM_NAMES
    assert defaults.augmentation in augmentation.NAMES
    assert defaults.image_shape is None or len(defaults.image_shape) == 3
    options = {s.name for s in settings_of(TaskSettings) if OPTION in s.rules}
    assert set(defaults.options) <= options
    assert ("data_dir" in defaults.options) == bool(defaults.layout)
    assert "image_size" in defaults.options or defaults.image_size is None
    assert all(override.reason for override in defaults.overrides.values())
    assert set(defaults.override_values()) == set(defaults.overrides)


def test_is_a_baseline_task_that_tffs_tools_take(task, capsys):
    assert isinstance(task, tff.simulation.baselines.BaselineTask)
    task.datasets.summary()
    assert "Federated" in capsys.readouterr().out
    spec = collections.OrderedDict(
        x=tf.TensorSpec([None, 8, 8, 1], tf.float32), y=tf.TensorSpec([None], tf.int32)
    )
    assert task.datasets.element_type_structure == spec
    (dataset,) = task.datasets.sample_train_clients(1, random_seed=0)
    assert dataset.element_spec == spec
    test = list(task.datasets.get_centralized_test_data())
    labels = np.concatenate([batch["y"] for batch in test])
    images = np.concatenate([batch["x"] for batch in test])
    x, y = task.test_arrays()
    assert np.array_equal(labels, y)
    np.testing.assert_allclose(images, task.normalize_fn(x), rtol=1e-6, atol=1e-6)


def test_images_can_be_normalised_by_other_numbers():
    data = tasks._module("digits").load()
    x = np.full([1, 8, 8, 1], 4, np.uint8)  # A quarter of 16, the largest of digits.
    task = tasks.build("digits", pixel_mean=(0.5,), pixel_std=(0.25,))
    for normalize in (task.normalize_fn, data.normalized_by((0.5,), (0.25,))):
        np.testing.assert_allclose(normalize(x), np.full([1, 8, 8, 1], -1.0), rtol=1e-6)
    floats = dataclasses.replace(data, x_train=data.x_train.astype(np.float32))
    of_floats = floats.normalized_by((0.5,), (0.25,))(x.astype(np.float32))
    np.testing.assert_allclose(of_floats, np.full([1, 8, 8, 1], 14.0), rtol=1e-6)
    for mean, std in (((0.5,) * 3, (0.25,) * 3), ((0.5,), ())):
        with pytest.raises(tasks.DataError, match="give one of both, .* 1 channels"):
            tasks.build("digits", pixel_mean=mean, pixel_std=std)


def test_clients_are_dealt_by_the_named_partition(task):
    sizes = task.client_data.client_sizes
    assert len(task.client_data.client_ids) == 16
    assert sizes.sum() == 1437 and sizes.min() >= 10
    labels = np.concatenate(
        [task.client_data.client_examples(c)["y"] for c in task.client_data.client_ids]
    )
    expected = partitions.dirichlet_unbalanced(
        _train_labels(), 16, concentration=0.5, seed=3
    )
    assert np.array_equal(labels, _train_labels()[np.concatenate(expected)])
    assert all(map(np.array_equal, task.partition, expected))


def _train_labels():
    return tasks._module("digits").load().y_train


def test_the_training_form_has_keys_and_uint8_and_the_augmentation_fits(task):
    client_id = task.client_data.client_ids[0]
    key = keys.client_key(3, 0, client_id)
    (whole,) = task.client_data.whole_client_dataset(client_id, key)
    assert whole["x"].dtype == tf.uint8
    images = task.augment_fn(whole["x"], whole["key"])
    assert images.dtype == tf.float32 and images.shape == whole["x"].shape


def test_a_model_that_cannot_have_the_tasks_norm_gets_its_own(tmp_path):
    images = np.zeros((4, 16, 16, 3), np.uint8)
    labels = np.arange(4) % 2
    path = str(tmp_path / "a.npz")
    np.savez(path, x_train=images, y_train=labels, x_test=images, y_test=labels)
    options = dict(num_clients=2, data_dir=path)
    assert tasks.defaults("arrays").norm == "group"
    task = tasks.build("arrays", model="feddyn_cnn", **options)
    names = [v.name for v in task.model_fn().trainable_variables]
    assert names and not any("norm" in name for name in names)
    with pytest.raises(ValueError, match="cannot have the norm 'group'"):
        tasks.build("arrays", model="feddyn_cnn", norm="group", **options)


def test_validation_examples_are_held_out_of_the_training_examples():
    def images(arrays):
        return [image.tobytes() for image in arrays]

    whole = tasks.build("digits", num_clients=4)
    trained = images(all_images(whole))
    built = tasks.build("digits", num_clients=4, validation_share=0.25, seed=1)
    held, labels = built.test_arrays()
    count = len(trained)
    assert len(held) == round(0.25 * count)
    together = sorted(images(held) + images(all_images(built)))
    assert together == sorted(trained)
    # Every class has its share.
    shares = np.bincount(labels) / np.bincount(whole.train_labels)
    np.testing.assert_allclose(shares, 0.25, atol=0.01)
    other = tasks.build("digits", num_clients=4, validation_share=0.25, seed=2)
    assert images(other.test_arrays()[0]) != images(held)
    again = tasks.build("digits", num_clients=4, validation_share=0.25, seed=1)
    assert images(again.test_arrays()[0]) == images(held)
    # The seed of the partition decides both, and nothing else.
    given = dict(num_clients=4, validation_share=0.25, seed=2, partition_seed=1)
    kept = tasks.build("digits", **given)
    assert images(kept.test_arrays()[0]) == images(held)
    assert all(map(np.array_equal, kept.partition, built.partition))
    assert not all(map(np.array_equal, other.partition, built.partition))
    weights = [each.model_fn().trainable_variables[0] for each in (kept, built, other)]
    first, second, third = map(np.asarray, weights)
    assert np.array_equal(first, third) and not np.array_equal(first, second)


def all_images(task):
    data = task.client_data
    return np.concatenate([data.client_examples(i)["x"] for i in data.client_ids])
