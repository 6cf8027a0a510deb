"""Every process of this package gives in process what it gives natively."""

import collections
import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from tff_reg import models
from tff_reg import processes
from tff_reg.processes import catalog
from tests.comparison import assert_equal
from tests.comparison import assert_same

_SIZE, _CLASSES = 6, 3
# These run layers at a fraction of their width or drop branches; the CNN cannot.
_NEED_RESNET = ("fedalign", "gradaug", "stochdepth")
_MODEL_FNS = {
    name: models.build_model_fn(
        name, image_shape=(_SIZE, _SIZE, 1), num_classes=_CLASSES, norm=norm
    )
    for name, norm in (("cnn", "group"), ("resnet8", "batch"))
}


def _model_fn(name):
    return _MODEL_FNS["resnet8" if name in _NEED_RESNET else "cnn"]


def _arrays(number=3):
    for index in range(number):
        rng = np.random.default_rng(index)
        count = 5 + 3 * index
        yield collections.OrderedDict(
            x=rng.normal(size=(count, _SIZE, _SIZE, 1)).astype(np.float32),
            y=rng.integers(0, _CLASSES, count).astype(np.int32),
        )


@pytest.mark.parametrize("name", [*catalog.names(), "fedprox+man", "moon+fedgkd+mixup"])
def test_one_round_over_whole_clients(contexts, name):
    settings = dataclasses.replace(
        catalog.settings(name), batch_size=4, local_epochs=2
    )
    process = processes.build_from_settings(name, _model_fn(name), settings, {})
    data = [
        tf.data.Dataset.from_tensors(
            collections.OrderedDict(arrays, key=np.array([index, 1], np.int64))
        )
        for index, arrays in enumerate(_arrays())
    ]
    _compare(contexts, process, data)


@pytest.mark.parametrize("name", ["fedprox", "man"])
def test_one_round_over_batches(contexts, name):
    process = processes.build(name, _model_fn(name))
    data = [
        tf.data.Dataset.from_tensor_slices(arrays).batch(4) for arrays in _arrays()
    ]
    _compare(contexts, process, data)


def _compare(contexts, process, data):
    with contexts("native"):
        arguments = [process.initialize(), data]
        if isinstance(process, processes.StatefulLearningProcess):
            client_state = process.initial_client_state(arguments[0])
            arguments.append([client_state] * len(data))
        native = process.next(*arguments)
    with contexts("in_process"):
        ours = process.next(*arguments)
        again = process.next(*arguments)
    with contexts("two_at_a_time"):
        two = process.next(*arguments)
    assert_same(native, ours, rtol=1e-4, atol=1e-5)
    assert_equal(ours, again)
    assert_equal(ours, two)
