"""CIFAR-10 and CIFAR-100: both published forms, and TFDS's."""

import pickle

import numpy as np
import pytest
import tensorflow_datasets as tfds

from tests.tasks import layouts
from tff_reg import tasks
from tff_reg.tasks import cifar10, cifar100

MODULES = {10: cifar10, 100: cifar100}


@pytest.mark.parametrize("num_classes", [10, 100])
@pytest.mark.parametrize("binary", [False, True])
@pytest.mark.parametrize("inside", [False, True])
def test_reads_all_images_in_order(tmp_path, num_classes, binary, inside):
    batch = 20 if num_classes == 10 else 100
    written = layouts.write_cifar(
        tmp_path, binary=binary, num_classes=num_classes, batch=batch
    )
    (folder,) = tmp_path.iterdir()
    data = MODULES[num_classes].load(str(folder if inside else tmp_path))
    layouts.assert_holds(data, written)
    assert data.class_names[:2] == ("class 0", "class 1")
    assert len(data.class_names) == num_classes and data.domains is None


@pytest.mark.parametrize("num_classes", [10, 100])
def test_normalises_with_the_numbers_of_the_papers_code(tmp_path, num_classes):
    module = MODULES[num_classes]
    layouts.write_cifar(tmp_path, binary=True, num_classes=num_classes, batch=100)
    data = module.load(str(tmp_path))
    expected = (data.x_test[:3] / 255.0 - module.MEAN) / module.STD
    np.testing.assert_allclose(data.normalize_fn(data.x_test[:3]), expected, atol=1e-5)


@pytest.mark.skipif(
    not layouts.SHARED.exists(), reason="../shared/data with real CIFAR is not there"
)
def test_the_numbers_of_cifar_10_are_those_of_real_images():
    with np.load(layouts.SHARED / "cifar10_small.npz") as content:
        images = content["x_train"] / np.float32(255)
    np.testing.assert_allclose(images.mean((0, 1, 2)), cifar10.MEAN, atol=0.01)
    np.testing.assert_allclose(images.std((0, 1, 2)), cifar10.STD, atol=0.01)


@pytest.mark.parametrize(
    "binary, file, change, words",
    [
        (True, "data_batch_3.bin", lambda c: c[:-1], "3.bin.* not a whole number"),
        (
            False,
            "data_batch_3",
            lambda c: c[:5000],
            "data_batch_3.* damaged or no pickle",
        ),
        (
            True,
            "data_batch_2.bin",
            lambda c: c[:3073] + b"\x0a" + c[3074:],
            "labels from 0 to 10",
        ),
        (True, "batches.meta.txt", lambda c: b"cat\ndog\n", "names 2 classes"),
    ],
)
def test_raises_on_a_file_that_is_damaged(tmp_path, binary, file, change, words):
    layouts.write_cifar(tmp_path, binary=binary, num_classes=10)
    (path,) = tmp_path.rglob(file)
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(tasks.DataError, match=words) as caught:
        cifar10.load(str(tmp_path))
    assert "\n" not in str(caught.value)


def test_raises_on_a_missing_file_and_says_where_to_get_it(tmp_path):
    layouts.write_cifar(tmp_path, binary=False, num_classes=10)
    (tmp_path / "cifar-10-batches-py" / "data_batch_4").unlink()
    with pytest.raises(tasks.DataError, match="has no data_batch_4: download https"):
        cifar10.load(str(tmp_path))
    with pytest.raises(tasks.DataError, match="no cifar-100-python or cifar-100-bin"):
        cifar100.load(str(tmp_path))


@pytest.mark.parametrize(
    "change",
    [
        {"data": np.zeros((20, 3071), np.uint8)},
        {"labels": [0] * 19},
        {"labels": [0.5] * 20},
    ],
    ids=str,
)
def test_raises_on_a_pickle_of_other_things(tmp_path, change):
    layouts.write_cifar(tmp_path, binary=False, num_classes=10)
    path = tmp_path / "cifar-10-batches-py" / "data_batch_1"
    content = {**pickle.loads(path.read_bytes()), **change}
    path.write_bytes(pickle.dumps(content, protocol=2))
    with pytest.raises(tasks.DataError, match="must hold uint8 'data'"):
        cifar10.load(str(tmp_path))


@pytest.mark.parametrize("num_classes", [10, 100])
def test_reads_through_tfds(num_classes):
    with tfds.testing.mock_data(num_examples=30):
        data = _without_network(MODULES[num_classes].load)
    assert data.x_train.shape == data.x_test.shape == (30, 32, 32, 3)
    assert data.x_train.dtype == np.uint8 and data.y_train.dtype == np.int32
    assert len(data.class_names) == num_classes


def _without_network(load):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("requests.head", lambda *_, **__: None)
        return load()
