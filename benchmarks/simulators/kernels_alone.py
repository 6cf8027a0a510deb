"""A round's convolutions, matrix products, BatchNorms and ReLUs alone, one by one.

They are those of FedAvg's steps on the case's network, forward and backward, with
random inputs of the same shapes. What a step needs beside them is left out: GroupNorm,
additions, sums over gradients, the optimiser, batches, the server.
"""

from __future__ import annotations

import concurrent.futures
import sys
from collections.abc import Callable, Sequence
from typing import Any

from tff_reg import quiet

if __name__ == "__main__":
    quiet.silence()

import tensorflow as tf

from benchmarks.simulators import own, serving
from tff_reg.runtime import devices

_KERNELS = (
    "Conv2D",
    "Conv2DBackpropFilter",
    "Conv2DBackpropInput",
    "FusedBatchNormGradV3",
    "FusedBatchNormV3",
    "MatMul",
    "Relu",
    "ReluGrad",
)


def of_step(model: Any, case: serving.Case, size: int) -> list[tf.Operation]:
    """The kernels of a step on a batch of a size, in their order."""
    batch = {"x": case.images[0, :size], "y": case.labels[0, :size]}

    @tf.function(autograph=False)
    def step():
        with tf.GradientTape() as tape:
            loss = model.forward_pass(batch, training=True).loss
        return tape.gradient(loss, model.trainable_variables)

    operations = step.get_concrete_function().graph.get_operations()
    # The gradient of the images is in the graph, but nothing reads it.
    return [
        each
        for each in operations
        if each.type in _KERNELS and each.outputs[0].consumers()
    ]


def alone(kernels: Sequence[tf.Operation]) -> Callable[[], Any]:
    """A function that runs kernels one after another, on random inputs of its own."""
    given = [each for kernel in kernels for each in kernel.inputs if _is_fed(each)]

    def body(*inputs: tf.Tensor) -> tf.Tensor:
        left, done = iter(inputs), []
        for kernel in kernels:
            sizes = [*kernel.outputs[0].shape]  # The only argument that is no float.
            arguments = [
                next(left) if _is_fed(each) else tf.constant(sizes, tf.int32)
                for each in kernel.inputs
            ]
            with tf.control_dependencies(done):
                made = tf.compat.v1.get_default_graph().create_op(
                    kernel.type,
                    arguments,
                    [each.dtype for each in kernel.outputs],
                    attrs=dict(kernel.node_def.attr),
                )
            done = [made]
        with tf.control_dependencies(done):
            return tf.zeros([])

    # One tensor for each shape: a step, too, reads what has just been written.
    of_shape = {shape: tf.random.normal(shape) for shape in map(_shape, given)}
    inputs = [of_shape[_shape(each)] for each in given]
    specs = [tf.TensorSpec.from_tensor(each) for each in inputs]
    function = tf.compat.v1.wrap_function(body, specs)
    return lambda: function(*inputs)


def _is_fed(argument: tf.Tensor) -> bool:
    return argument.dtype.is_floating


def _shape(argument: tf.Tensor) -> tuple[int, ...]:
    # A CPU's BatchNorm leaves its third reserve, whose shape is unknown, empty.
    return tuple(argument.shape) if argument.shape.is_fully_defined() else (0,)


def main(path: str, parallel: str) -> None:
    """Answers questions about the case in a file; the weights stay as they are."""
    # TensorFlow would leave out what nobody reads.
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
    devices.set_threads(max(1, devices.cores() // int(parallel)))
    case = serving.read(path)
    model = own.model_fn_of(case)()
    clients, examples = case.labels.shape
    sizes = [
        min(case.batch_size, examples - start)
        for start in range(0, examples, case.batch_size)
    ]
    steps = {size: alone(of_step(model, case, size)) for size in set(sizes)}

    def visit(client: int) -> None:
        del client  # All have the same sizes.
        for size in sizes:
            steps[size]()

    with concurrent.futures.ThreadPoolExecutor(int(parallel)) as pool:
        serving.serve(
            lambda: list(pool.map(visit, range(clients))), lambda: case.weights
        )


if __name__ == "__main__":
    main(*sys.argv[1:])
