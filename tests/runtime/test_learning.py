"""TFF's learning algorithms: one round in process gives what it gives natively.

One round, because differences of rounding grow from round to round in any case
(the native context differs from itself as much if its start differs by 1e-6).
"""

import collections

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.comparison import assert_equal, assert_same
from tff_reg.lazy import keras

_FEATURES, _CLASSES = 5, 3
_ELEMENT = collections.OrderedDict(
    x=tf.TensorSpec([None, _FEATURES], tf.float32), y=tf.TensorSpec([None], tf.int32)
)


def _keras_model():
    model = keras.Sequential(
        [
            keras.layers.InputLayer((_FEATURES,)),
            keras.layers.Dense(
                4, kernel_initializer=keras.initializers.GlorotUniform(1)
            ),
            keras.layers.ReLU(),
            keras.layers.Dense(
                _CLASSES, kernel_initializer=keras.initializers.GlorotUniform(2)
            ),
        ]
    )
    return tff.learning.models.from_keras_model(
        model,
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        input_spec=_ELEMENT,
        metrics=[keras.metrics.SparseCategoricalAccuracy()],
    )


def _functional_model():
    return tff.learning.models.functional_model_from_keras(
        keras.Sequential(
            [
                keras.layers.InputLayer((_FEATURES,)),
                keras.layers.Dense(
                    _CLASSES, kernel_initializer=keras.initializers.GlorotUniform(2)
                ),
            ]
        ),
        loss_fn=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        input_spec=_ELEMENT,
        metrics_constructor=lambda: collections.OrderedDict(
            accuracy=keras.metrics.SparseCategoricalAccuracy()
        ),
    )


def _client_data(number=3):
    rng = np.random.default_rng(7)
    datasets = []
    for index in range(number):
        size = 8 + 3 * index
        features = rng.normal(size=(size, _FEATURES)).astype(np.float32)
        labels = rng.integers(0, _CLASSES, size).astype(np.int32)
        datasets.append(
            tf.data.Dataset.from_tensor_slices(
                collections.OrderedDict(x=features, y=labels)
            ).batch(4)
        )
    return datasets


_sgd = tff.learning.optimizers.build_sgdm
_algorithms = tff.learning.algorithms
_ITERATOR = tff.learning.LoopImplementation.DATASET_ITERATOR

_PROCESSES = {
    "fed_avg_keras_iterator": lambda: _algorithms.build_weighted_fed_avg(
        _keras_model, _sgd(0.1, 0.9), _sgd(1.0), loop_implementation=_ITERATOR
    ),
    "fed_avg_functional_yogi": lambda: _algorithms.build_weighted_fed_avg(
        _functional_model(),
        tff.learning.optimizers.build_adam(0.01),
        tff.learning.optimizers.build_yogi(0.1),
    ),
    "fed_sgd": lambda: _algorithms.build_fed_sgd(_keras_model, _sgd(0.1)),
    "mime_lite": lambda: _algorithms.build_weighted_mime_lite(
        _keras_model, _sgd(0.1, 0.9), _sgd(1.0)
    ),
    "robust": lambda: _algorithms.build_weighted_fed_avg(
        _keras_model,
        _sgd(0.1),
        _sgd(1.0),
        model_aggregator=tff.learning.robust_aggregator(
            weighted=True, zeroing=True, clipping=True
        ),
    ),
    "secure": lambda: _algorithms.build_unweighted_fed_avg(
        _keras_model,
        _sgd(0.1),
        _sgd(1.0),
        model_aggregator=tff.learning.secure_aggregator(weighted=False),
        metrics_aggregator=tff.learning.metrics.secure_sum_then_finalize,
    ),
    # Noise of size 0: the noise itself is random in either runtime.
    "differentially_private": lambda: _algorithms.build_unweighted_fed_avg(
        _keras_model,
        _sgd(0.1),
        _sgd(1.0),
        model_aggregator=tff.learning.dp_aggregator(
            0.0, clients_per_round=3.0, zeroing=False
        ),
    ),
    "k_means": lambda: _algorithms.build_fed_kmeans(
        2, (_FEATURES,), random_seed=(1, 2)
    ),
}


def _process_data(name):
    if name != "k_means":
        return _client_data()
    return [
        dataset.unbatch().map(lambda example: example["x"])
        for dataset in _client_data()
    ]


_SLOW = (
    "differentially_private",
    "fed_avg_functional_yogi",
    "mime_lite",
    "robust",
    "secure",
)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow) if name in _SLOW else name
        for name in _PROCESSES
    ],
)
def test_one_round_gives_what_it_gives_natively(contexts, name):
    process = _PROCESSES[name]()
    data = _process_data(name)
    with contexts("tff"):
        state = process.initialize()
        native = process.next(state, data)
    with contexts("in_process"):
        own_state = process.initialize()
        ours = process.next(state, data)
        again = process.next(state, data)
    with contexts("two_at_a_time"):
        two = process.next(state, data)
    assert_same(state, own_state)
    assert_same(native, ours)
    assert_equal(ours, again)
    assert_equal(ours, two)
