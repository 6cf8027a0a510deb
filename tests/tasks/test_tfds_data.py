"""Data through TFDS: their order, and what is said without a network."""

import numpy as np
import pytest
import tensorflow as tf

from tff_reg import tasks
from tff_reg.lazy import requests, tfds
from tff_reg.tasks import cifar10, tfds_data


def _shuffled(builder, split, **_):
    """As TFDS stores CIFAR-10: shuffled, with the numbers of the original files."""
    del builder
    order = np.random.default_rng(0).permutation(2500)
    prefix = split.split("[")[0]
    return tf.data.Dataset.from_tensor_slices(
        {
            "id": [f"{prefix}_{number:05d}" for number in order],
            "image": np.broadcast_to(
                (order % 251).astype(np.uint8)[:, None, None, None], (2500, 2, 2, 3)
            ),
            "label": order % 10,
        }
    )


def test_examples_come_in_the_order_of_the_original_files(monkeypatch):
    monkeypatch.setattr(requests, "head", lambda *_, **__: None)
    with tfds.testing.mock_data(as_dataset_fn=_shuffled):
        x, y = tfds_data.load(cifar10.DEFAULTS, "train")
    numbers = np.arange(2500)
    assert x.shape == (2500, 2, 2, 3) and x.dtype == np.uint8
    assert np.array_equal(y, numbers % 10)
    assert (x == (numbers % 251)[:, None, None, None]).all()


def test_missing_network_is_explained(monkeypatch, tmp_path):
    def no_network(url, timeout):
        assert url.startswith("https://www.cs.toronto.edu/") and timeout <= 10
        raise requests.ConnectionError("no network")

    monkeypatch.setattr(requests, "head", no_network)
    monkeypatch.setattr(tfds.core.constants, "DATA_DIR", str(tmp_path))
    real = tfds.builder
    monkeypatch.setattr(
        tfds, "builder", lambda name, **kw: real(name, data_dir=tmp_path, **kw)
    )
    with pytest.raises(tasks.DataError) as caught:
        tasks.build("cifar10", partition="iid", num_clients=2, seed=0)
    words = str(caught.value)
    assert words.startswith("TFDS could not download cifar10 (ConnectionError): ")
    assert cifar10.DEFAULTS.source in words and " data_dir=DIR" in words
    assert "\n" not in words
