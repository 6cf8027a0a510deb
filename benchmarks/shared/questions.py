"""Runs in a process of its own and measures what the benchmark `runtime` asks.

Importing this module imports TensorFlow and TFF.
"""

from __future__ import annotations

import functools
import json
import statistics
import sys

from benchmarks.shared import measuring, rounds
from tff_reg import runtime
from tff_reg.lazy import np, tf, tff
from tff_reg.runtime import devices

_MEMORY_CLIENTS, _MEMORY_MEGABYTES = 60, 20


def answer_questions(threads: int) -> None:
    """Answers each line of standard input: JSON, a question and its arguments.

    Prints `answer` and JSON when it is ready for the first line, and for each line.

    Args:
      threads: TensorFlow's threads for one operation.
    """
    tf.config.threading.set_intra_op_parallelism_threads(threads)
    tf.config.threading.set_inter_op_parallelism_threads(devices.cores())
    rounds_of = functools.cache(
        lambda case, way, parallel: rounds.WAYS[way](case, parallel)
    )
    memory_rounds = functools.cache(_MemoryRounds)
    questions = {
        "round": lambda *which: measuring.seconds(rounds_of(*which)),
        "memory": lambda which: memory_rounds()(which),
        "group_norm": group_norm_seconds,
        "convolutions": convolution_seconds,
        "iterators": iterator_seconds,
    }
    print("answer null", flush=True)
    for line in sys.stdin:
        question, *arguments = json.loads(line)
        print(f"answer {json.dumps(questions[question](*arguments))}", flush=True)


def group_norm_seconds(turns: int = 30) -> dict[str, float]:
    """Times GroupNorm, forward and backward, at ResNet-20's first stage.

    Args:
      turns: How often.

    Returns:
      The median seconds of "keras" and "tff_reg".
    """
    x = tf.random.stateless_normal([rounds.BATCH, 32, 32, 16], [1, 2])
    layers = {"keras": rounds.keras_group_norm(), "tff_reg": rounds.own_group_norm()}

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
    height, width, _ = rounds.IMAGE
    convolutions = [
        (tf.ones([rounds.BATCH, *rounds.IMAGE]), tf.ones([3, 3, 3, 32])),
        (
            tf.ones([rounds.BATCH, (height - 2) // 2, (width - 2) // 2, 32]),
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
        for _ in tf.range(rounds.CLIENTS * rounds.EXAMPLES // rounds.BATCH):
            total = one_step(total)
        return total

    ways = {"hand_written": rounds.hand_written("cnn", 1), "convolutions": convolve}
    seconds = measuring.in_turns(ways, turns, unmeasured=1)
    return {name: statistics.median(found) for name, found in seconds.items()}


def iterator_seconds(turns: int = 25) -> dict[str, list[float]]:
    """Times loops over ten elements, about a tenth of a second of work.

    Args:
      turns: Loops.

    Returns:
      The seconds of each loop: "tuned" with TensorFlow's default, "untuned" as in the
      runtimes here.
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
    """The memory of rounds of a large model.

    A call with "first", then one with "later", returns the peak of one and of two
    rounds in megabytes (of 2^20 bytes) above the memory before the first.
    """

    def __init__(self):
        runtime.use("in_process")
        size = _MEMORY_MEGABYTES * 2**20 // 4
        numbers = range(_MEMORY_CLIENTS)
        self._data = [tf.data.Dataset.from_tensors(float(i)) for i in numbers]
        self._next_round = _next_round_of_a_large_model(size)
        # Loads code.
        _next_round_of_a_large_model(10)(np.ones(10, np.float32), self._data)
        self._model = np.ones(size, np.float32)
        self._before = measuring.resident_bytes()

    def __call__(self, rounds: str) -> float:
        measuring.forget_peak()
        for _ in range({"first": 1, "later": 2}[rounds]):
            self._model = self._next_round(self._model, self._data)
        return (measuring.resident_bytes(peak=True) - self._before) / 2**20
