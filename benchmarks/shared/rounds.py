"""The rounds that the subject `runtime` times, and what it measures beside them.

A round is 8 clients of 200 images of 32x32x3 each, one epoch in batches of 20,
momentum SGD, and the weighted mean of the clients' models; the model (a Keras model)
and the data are the same for every way to run it. Only "whole-client data", which is
this package all through, has this package's GroupNorm instead of Keras's in the
ResNet: it computes the same.

Importing this module imports TensorFlow and TFF.
"""

from __future__ import annotations

import atexit
import collections
import functools
import json
import statistics
import sys
from collections.abc import Callable

from benchmarks.shared import measuring
from tff_reg import lazy, models, runtime, training
from tff_reg.data import client_data
from tff_reg.lazy import keras, np, tf, tff
from tff_reg.models import norms
from tff_reg.runtime import context, devices, native, workers

ray_workers = lazy.module("tff_reg.runtime.ray_workers")  # Ray may not be there.

_CLIENTS, _EXAMPLES, _BATCH, _CLASSES = 8, 200, 20, 10
_IMAGE = (32, 32, 3)
_GROUPS = 2
_LEARNING_RATE, _MOMENTUM = 0.01, 0.9

_MEMORY_CLIENTS, _MEMORY_MEGABYTES = 60, 20


def answer_questions(threads: int) -> None:
    """Answers each line of standard input: JSON, a question's name and its arguments.

    Prints `answer` and JSON for each, and before the first, when it is ready.

    Args:
      threads: TensorFlow's for one operation.
    """
    tf.config.threading.set_intra_op_parallelism_threads(threads)
    tf.config.threading.set_inter_op_parallelism_threads(devices.cores())
    rounds_of = functools.cache(lambda case, way, parallel: _WAYS[way](case, parallel))
    memory_rounds_of = functools.cache(_MemoryRounds)
    questions = {
        "round": lambda *which: measuring.seconds(rounds_of(*which)),
        "memory": lambda kind, rounds: memory_rounds_of(kind)(rounds),
        "group_norm": group_norm_seconds,
        "convolutions": convolution_seconds,
        "iterators": iterator_seconds,
    }
    print("answer null", flush=True)
    for line in sys.stdin:
        question, *arguments = json.loads(line)
        print(f"answer {json.dumps(questions[question](*arguments))}", flush=True)


# --- models and data ----------------------------------------------------------------


def _glorot(seed: int):
    return keras.initializers.GlorotUniform(seed)


def _keras_cnn():
    layers = keras.layers
    return keras.Sequential(
        [
            layers.InputLayer(_IMAGE),
            layers.Conv2D(32, 3, activation="relu", kernel_initializer=_glorot(1)),
            layers.MaxPool2D(),
            layers.Conv2D(64, 3, activation="relu", kernel_initializer=_glorot(2)),
            layers.MaxPool2D(),
            layers.Flatten(),
            layers.Dense(64, activation="relu", kernel_initializer=_glorot(3)),
            layers.Dense(_CLASSES, kernel_initializer=_glorot(4)),
        ]
    )


def _keras_group_norm():
    return keras.layers.GroupNormalization(_GROUPS, epsilon=norms.NORM_EPSILON)


def _own_group_norm():
    """This package's GroupNorm, which computes the same, as a Keras layer."""

    class OwnGroupNorm(keras.layers.Layer):
        def build(self, shape):
            self._norm = norms.GroupNorm(shape[-1], groups=_GROUPS, name="norm")
            super().build(shape)

        def call(self, x):
            return self._norm.call(x, norms.ForwardPass())

    return OwnGroupNorm()


def _keras_resnet20():
    """He et al.'s ResNet-20 for CIFAR, with Keras's GroupNormalization."""
    layers = keras.layers
    norm = _keras_group_norm
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

    inputs = layers.Input(_IMAGE)
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
            x=rng.normal(size=(_EXAMPLES, *_IMAGE)).astype(np.float32),
            y=rng.integers(0, _CLASSES, _EXAMPLES).astype(np.int32),
        )
        for _ in range(_CLIENTS)
    ]


def _batched_data() -> list:
    return [
        tf.data.Dataset.from_tensor_slices(arrays).batch(_BATCH)
        for arrays in _client_arrays()
    ]


def _model_fn(build_keras_model: Callable) -> Callable:
    def model_fn():
        return tff.learning.models.from_keras_model(
            build_keras_model(),
            loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            input_spec=collections.OrderedDict(
                x=tf.TensorSpec([None, *_IMAGE], tf.float32),
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
    return models.build_model_fn(case, image_shape=_IMAGE, num_classes=_CLASSES)


def _from_keras(case: str) -> Callable:
    return models.from_keras(_KERAS_MODELS[case]())


def _hand_written(case: str, parallel: int) -> Callable[[], list]:
    """What one would write without TFF: one traced loop, called for every client."""
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
    in_ray = ray_workers.RayWorkers(ray_workers.Options(actors=actors))
    atexit.register(in_ray.stop)
    return context.InProcessContext(in_ray)


def _whole_client(model_fn: Callable, in_context) -> Callable[[], None]:
    """This package all through: its model, optimiser, process and form of data."""
    process = training.build_regularized(
        model_fn,
        [],
        training.build_sgd(_LEARNING_RATE, _MOMENTUM),
        client_data=training.WholeClientData(batch_size=_BATCH),
    )
    arrays = _client_arrays()
    clients = client_data.ArrayClientData(
        np.concatenate([each["x"] for each in arrays]),
        np.concatenate([each["y"] for each in arrays]),
        list(np.arange(_CLIENTS * _EXAMPLES).reshape(_CLIENTS, _EXAMPLES)),
    )
    datasets = [
        clients.whole_client_dataset(name, np.array([0, index], np.int64))
        for index, name in enumerate(clients.client_ids)
    ]
    return _ProcessRounds(in_context, process, datasets)


@functools.cache
def _native_context():
    worker = native.Worker()
    worker.stub()  # so that the first round does not wait for its start
    atexit.register(worker.stop)
    return native.create_context(worker)


def _native(case: str, parallel: int) -> Callable[[], None]:
    del parallel
    process = _fed_avg(case, "DATASET_REDUCE")
    return _ProcessRounds(_native_context(), process, _batched_data())


def _native_iterator(case: str, parallel: int) -> Callable[[], None]:
    del parallel
    process = _fed_avg(case, "DATASET_ITERATOR")
    return _ProcessRounds(_native_context(), process, _batched_data())


_WAYS: dict[str, Callable[[str, int], Callable[[], object]]] = {
    "hand_written": _hand_written,
    "in_process": _in_process,
    "in_process_whole_client": _in_process_whole_client,
    "in_process_from_keras": _in_process_from_keras,
    "native": _native,
    "native_iterator": _native_iterator,
    "ray_whole_client": _ray_whole_client,
}


# --- beside the rounds ----------------------------------------------------------------


def group_norm_seconds(turns: int = 30) -> dict[str, float]:
    """Times GroupNorm, forward and backward, at ResNet-20's first stage.

    Args:
      turns: How often.

    Returns:
      The median seconds of "keras" and "tff_reg".
    """
    x = tf.random.stateless_normal([_BATCH, 32, 32, 16], [1, 2])
    layers = {"keras": _keras_group_norm(), "tff_reg": _own_group_norm()}

    def build_step(layer):
        layer(x)  # makes the weights, outside of the function

        @tf.function
        def step(x):
            with tf.GradientTape() as tape:
                tape.watch(x)
                y = tf.reduce_sum(tf.square(layer(x)))
            return tape.gradient(y, [x, *layer.trainable_variables])

        return step

    steps = {name: build_step(layer) for name, layer in layers.items()}
    ways = {name: functools.partial(step, x) for name, step in steps.items()}
    seconds = measuring.in_turns(ways, turns, unmeasured=3)
    return {name: statistics.median(found) for name, found in seconds.items()}


def convolution_seconds(turns: int = 15) -> dict[str, float]:
    """Times the CNN's round by hand, and the convolutions in it alone.

    Args:
      turns: How often.

    Returns:
      The median seconds of "hand_written" and "convolutions".
    """
    height, width, _ = _IMAGE
    convolutions = [
        (tf.ones([_BATCH, *_IMAGE]), tf.ones([3, 3, 3, 32])),
        (
            tf.ones([_BATCH, (height - 2) // 2, (width - 2) // 2, 32]),
            tf.ones([3, 3, 32, 64]),
        ),
    ]

    def one_step(total):
        """Forward; backward to both kernels, and to what the second one takes.

        A step takes something from the one before it, and gives something on: else
        TensorFlow would do it once, or not at all.
        """
        found = []
        for x, kernel in convolutions:
            kernel += 1e-30 * total
            y = tf.nn.conv2d(x, kernel, 1, "VALID")
            backward = dict(out_backprop=y, strides=[1, 1, 1, 1], padding="VALID")
            found.append(
                tf.raw_ops.Conv2DBackpropFilter(
                    input=x, filter_sizes=kernel.shape, **backward
                )
            )
        found.append(
            tf.raw_ops.Conv2DBackpropInput(
                input_sizes=x.shape, filter=kernel, **backward
            )
        )
        return tf.add_n([result[0, 0, 0, 0] for result in found])

    @tf.function
    def convolve():
        total = 0.0
        for _ in tf.range(_CLIENTS * _EXAMPLES // _BATCH):
            total = one_step(total)
        return total

    ways = {"hand_written": _hand_written("cnn", 1), "convolutions": convolve}
    seconds = measuring.in_turns(ways, turns, unmeasured=1)
    return {name: statistics.median(found) for name, found in seconds.items()}


def iterator_seconds(turns: int = 25) -> dict[str, list[float]]:
    """Times loops over ten elements, about a tenth of a second of work.

    Args:
      turns: Loops.

    Returns:
      The seconds of each loop, for "tuned" iterators, TensorFlow's default, and
      "untuned" ones, which the runtimes here make of them.
    """
    tuned = tf.data.Dataset.from_tensor_slices(tf.ones([10, 400, 400]))
    options = tf.data.Options()
    options.autotune.enabled = False
    data = {"tuned": tuned, "untuned": tuned.with_options(options)}

    @tf.function
    def loop(dataset):
        total = tf.zeros([400, 400])
        for x in iter(dataset):
            for _ in range(30):
                x = tf.matmul(x, x) / 400
            total += x
        return total

    ways = {name: functools.partial(loop, dataset) for name, dataset in data.items()}
    return measuring.in_turns(ways, turns, unmeasured=1)


# --- memory ---------------------------------------------------------------------------


def _next_round_of_a_large_model(size: int):
    model_type = tff.TensorType(np.float32, [size])

    @tff.tensorflow.computation(model_type, tff.SequenceType(np.float32))
    def client_update(model, numbers):
        return model * 0.5 + numbers.reduce(0.0, tf.add), tf.constant(1.0)

    @tff.federated_computation(
        tff.FederatedType(model_type, tff.SERVER),
        tff.FederatedType(tff.SequenceType(np.float32), tff.CLIENTS),
    )
    def next_round(model, numbers):
        updates, weights = tff.federated_map(
            client_update, (tff.federated_broadcast(model), numbers)
        )
        return tff.federated_mean(updates, weights)

    return next_round


class _MemoryRounds:
    """Rounds of a large model in the runtime `kind`, and what they need.

    Called with "first" or "later", in this order: the megabytes (of 2^20 bytes) at the
    peak of one round, or of two, beyond what was resident before the first.
    """

    def __init__(self, kind: str):
        runtime.use(kind)
        size = _MEMORY_MEGABYTES * 2**20 // 4
        numbers = range(_MEMORY_CLIENTS)
        self._data = [tf.data.Dataset.from_tensors(float(i)) for i in numbers]
        self._next_round = _next_round_of_a_large_model(size)
        # Loads code.
        _next_round_of_a_large_model(10)(np.ones(10, np.float32), self._data)
        self._model = np.ones(size, np.float32)
        watched = ["self"] + [str(pid) for pid in [runtime.worker_pid()] if pid]
        self._before = {pid: measuring.resident_bytes(pid) for pid in watched}

    def __call__(self, rounds: str) -> float:
        for pid in self._before:
            measuring.forget_peak(pid)
        for _ in range({"first": 1, "later": 2}[rounds]):
            self._model = self._next_round(self._model, self._data)
        grown = [
            measuring.resident_bytes(pid, peak=True) - before
            for pid, before in self._before.items()
        ]
        return sum(grown) / 2**20
