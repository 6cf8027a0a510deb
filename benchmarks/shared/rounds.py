"""The rounds that the subject `runtime` times.

A round is 8 clients of 200 images of 32x32x3 each, one epoch in batches of 20,
momentum SGD, and the weighted mean of the clients' models; the model (a Keras model)
and the data are the same for every way to run it. Only "whole-client data", which uses
this package's parts throughout, replaces Keras's GroupNorm in the ResNet by this
package's, which computes the same.

Importing this module imports TensorFlow and TFF.
"""

from __future__ import annotations

import atexit
import collections
import functools
from collections.abc import Callable

from tff_reg import lazy, models, training
from tff_reg.data import client_data
from tff_reg.lazy import keras, np, tf, tff
from tff_reg.models import norms
from tff_reg.runtime import choice, context, workers

ray_workers = lazy.module("tff_reg.runtime.ray_workers")  # Ray may not be there.

CLIENTS, EXAMPLES, BATCH, _CLASSES = 8, 200, 20, 10
IMAGE = (32, 32, 3)
_GROUPS = 2
_LEARNING_RATE, _MOMENTUM = 0.01, 0.9


# --- models and data ----------------------------------------------------------------


def _glorot(seed: int):
    return keras.initializers.GlorotUniform(seed)


def _keras_cnn():
    layers = keras.layers
    return keras.Sequential(
        [
            layers.InputLayer(IMAGE),
            layers.Conv2D(32, 3, activation="relu", kernel_initializer=_glorot(1)),
            layers.MaxPool2D(),
            layers.Conv2D(64, 3, activation="relu", kernel_initializer=_glorot(2)),
            layers.MaxPool2D(),
            layers.Flatten(),
            layers.Dense(64, activation="relu", kernel_initializer=_glorot(3)),
            layers.Dense(_CLASSES, kernel_initializer=_glorot(4)),
        ]
    )


def keras_group_norm():
    """Keras's GroupNorm with the settings of this package's."""
    return keras.layers.GroupNormalization(_GROUPS, epsilon=norms.NORM_EPSILON)


def own_group_norm():
    """This package's GroupNorm, which computes the same, as a Keras layer."""

    class OwnGroupNorm(keras.layers.Layer):
        def build(self, shape):
            self._norm = norms.GroupNorm(shape[-1], groups=_GROUPS, name="norm")
            super().build(shape)

        def call(self, x):
            return self._norm.call(x, norms.ForwardPass())

    return OwnGroupNorm()


def _keras_resnet20(norm: Callable = keras_group_norm):
    """He et al.'s ResNet-20 for CIFAR, with a GroupNorm."""
    layers = keras.layers
    seeds = iter(range(1000))

    def convolution(x, channels, size, stride):
        kernel = _glorot(next(seeds))
        return layers.Conv2D(
            channels,
            size,
            stride,
            padding="same",
            use_bias=False,
            kernel_initializer=kernel,
        )(x)

    def unit(x, channels, stride):
        y = convolution(x, channels, 3, stride)
        y = layers.ReLU()(norm()(y))
        y = convolution(y, channels, 3, 1)
        y = norm()(y)
        if stride != 1:
            x = norm()(convolution(x, channels, 1, stride))
        return layers.ReLU()(x + y)

    inputs = layers.Input(IMAGE)
    x = layers.ReLU()(norm()(convolution(inputs, 16, 3, 1)))
    for channels, stride in ((16, 1), (32, 2), (64, 2)):
        for index in range(3):
            x = unit(x, channels, stride if index == 0 else 1)
    x = layers.GlobalAveragePooling2D()(x)
    outputs = layers.Dense(_CLASSES, kernel_initializer=_glorot(next(seeds)))(x)
    return keras.Model(inputs, outputs)


_KERAS_MODELS = {"cnn": _keras_cnn, "resnet20": _keras_resnet20}


def _client_arrays() -> list:
    rng = np.random.default_rng(0)
    return [
        collections.OrderedDict(
            x=rng.normal(size=(EXAMPLES, *IMAGE)).astype(np.float32),
            y=rng.integers(0, _CLASSES, EXAMPLES).astype(np.int32),
        )
        for _ in range(CLIENTS)
    ]


def _batched_data() -> list:
    return [
        tf.data.Dataset.from_tensor_slices(arrays).batch(BATCH)
        for arrays in _client_arrays()
    ]


def _model_fn(build_keras_model: Callable) -> Callable:
    def model_fn():
        return tff.learning.models.from_keras_model(
            build_keras_model(),
            loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            input_spec=collections.OrderedDict(
                x=tf.TensorSpec([None, *IMAGE], tf.float32),
                y=tf.TensorSpec([None], tf.int32),
            ),
            metrics=[keras.metrics.SparseCategoricalAccuracy()],
        )

    return model_fn


# --- the ways to run a round --------------------------------------------------------


def our_model_fn(case: str) -> Callable:
    """Makes the same network as a `tff_reg.models.LearningModel`."""
    if case == "cnn":
        return _from_keras(case)
    return models.build_model_fn(case, image_shape=IMAGE, num_classes=_CLASSES)


def _from_keras(case: str) -> Callable:
    """Makes the Keras model's learning models, with this package's GroupNorm in it.

    So a ratio to `our_model_fn` is the cost of the call through Keras, not of a layer.
    """
    model = _keras_resnet20(own_group_norm) if case == "resnet20" else _keras_cnn()
    return models.from_keras(model)


def hand_written(case: str, parallel: int) -> Callable[[], list]:
    """A round without TFF: one traced loop, called for every client."""
    del parallel
    model = _KERAS_MODELS[case]()
    loss_fn = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    weights = model.trainable_variables
    momenta = [tf.Variable(tf.zeros_like(w)) for w in weights]
    accuracy = keras.metrics.SparseCategoricalAccuracy()
    mean_loss = keras.metrics.Mean()

    @tf.function
    def client_update(dataset, server_weights):
        for weight, momentum, value in zip(weights, momenta, server_weights):
            weight.assign(value)
            momentum.assign(tf.zeros_like(momentum))
        examples = 0
        # `for batch in dataset` would be a ReduceDataset, three to five times slower.
        for batch in iter(dataset):
            with tf.GradientTape() as tape:
                logits = model(batch["x"], training=True)
                loss = loss_fn(batch["y"], logits)
            for weight, momentum, gradient in zip(
                weights, momenta, tape.gradient(loss, weights)
            ):
                momentum.assign(_MOMENTUM * momentum + gradient)
                weight.assign_sub(_LEARNING_RATE * momentum)
            accuracy.update_state(batch["y"], logits)
            mean_loss.update_state(loss)
            examples += tf.shape(batch["y"])[0]
        return [w.read_value() for w in weights], tf.cast(examples, tf.float32)

    server_weights = [w.read_value() for w in weights]
    data = _batched_data()

    def one_round():
        nonlocal server_weights
        total: list[tf.Tensor] = []
        total_weight = 0.0
        for dataset in data:
            client_weights, weight = client_update(dataset, server_weights)
            weighted = [w * weight for w in client_weights]
            if total:
                weighted = [a + b for a, b in zip(total, weighted)]
            total = weighted
            total_weight += weight
        server_weights = [w / total_weight for w in total]
        return [weight.numpy() for weight in server_weights]

    return one_round


class _ProcessRounds:
    """Rounds of a learning process in a context of its own."""

    def __init__(self, context, process, data):
        self._context = context
        self._process = process
        self._data = data
        self._state = None

    def __call__(self) -> None:
        with tff.framework.get_context_stack().install(self._context):
            if self._state is None:
                self._state = self._process.initialize()
            self._state = self._process.next(self._state, self._data).state


def _fed_avg(case: str, loop: str):
    return tff.learning.algorithms.build_weighted_fed_avg(
        _model_fn(_KERAS_MODELS[case]),
        tff.learning.optimizers.build_sgdm(_LEARNING_RATE, _MOMENTUM),
        tff.learning.optimizers.build_sgdm(1.0),
        loop_implementation=getattr(tff.learning.LoopImplementation, loop),
    )


def _in_process_context(parallel: int):
    return context.InProcessContext(workers.ClientWorkers(["CPU:0"], parallel))


def _in_process(case: str, parallel: int) -> Callable[[], None]:
    process = _fed_avg(case, "DATASET_REDUCE")
    return _ProcessRounds(_in_process_context(parallel), process, _batched_data())


def _in_process_whole_client(case: str, parallel: int) -> Callable[[], None]:
    return _whole_client(our_model_fn(case), _in_process_context(parallel))


def _in_process_from_keras(case: str, parallel: int) -> Callable[[], None]:
    return _whole_client(_from_keras(case), _in_process_context(parallel))


def _ray_whole_client(case: str, parallel: int) -> Callable[[], None]:
    return _whole_client(our_model_fn(case), _ray_context(parallel))


@functools.cache
def _ray_context(actors: int):
    in_ray = ray_workers.RayWorkers(choice.Options(clients_in_parallel=actors))
    atexit.register(in_ray.stop)
    return context.InProcessContext(in_ray)


def _whole_client(model_fn: Callable, in_context) -> Callable[[], None]:
    """A round of this package's own model, optimiser, process and form of data."""
    process = training.build_regularized(
        model_fn,
        [],
        training.build_sgd(_LEARNING_RATE, _MOMENTUM),
        client_data=training.WholeClientData(batch_size=BATCH),
    )
    arrays = _client_arrays()
    clients = client_data.ArrayClientData(
        np.concatenate([each["x"] for each in arrays]),
        np.concatenate([each["y"] for each in arrays]),
        list(np.arange(CLIENTS * EXAMPLES).reshape(CLIENTS, EXAMPLES)),
    )
    datasets = [
        clients.whole_client_dataset(name, np.array([0, index], np.int64))
        for index, name in enumerate(clients.client_ids)
    ]
    return _ProcessRounds(in_context, process, datasets)


@functools.cache
def _tffs_own_context():
    return tff.backends.native.create_sync_local_cpp_execution_context()


def _tff(case: str, parallel: int) -> Callable[[], None]:
    del parallel
    process = _fed_avg(case, "DATASET_REDUCE")
    return _ProcessRounds(_tffs_own_context(), process, _batched_data())


def _tff_iterator(case: str, parallel: int) -> Callable[[], None]:
    del parallel
    process = _fed_avg(case, "DATASET_ITERATOR")
    return _ProcessRounds(_tffs_own_context(), process, _batched_data())


WAYS: dict[str, Callable[[str, int], Callable[[], object]]] = {
    "hand_written": hand_written,
    "in_process": _in_process,
    "in_process_whole_client": _in_process_whole_client,
    "in_process_from_keras": _in_process_from_keras,
    "tff": _tff,
    "tff_iterator": _tff_iterator,
    "ray_whole_client": _ray_whole_client,
}
