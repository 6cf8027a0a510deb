"""Rounds of this package, in process or in TFF's own runtime.

The program's second argument is the runtime, or "weights" if only the network's initial
weights are wanted; the third is the clients at a time; the fourth the device, and the
fifth "compiled" if XLA compiles the steps. TFF's own runtime runs TFF's own
FedAvg, on this package's network.
"""

from __future__ import annotations

import collections
import sys
from collections.abc import Callable

from tff_reg import quiet

if __name__ == "__main__":
    quiet.silence()

import numpy as np
import tensorflow as tf

from benchmarks.shared import rounds
from benchmarks.simulators import serving
from tff_reg import models, runtime, training
from tff_reg.lazy import tff
from tff_reg.methods import catalogue
from tff_reg.runtime import devices


def model_fn_of(case: serving.Case) -> Callable:
    """The `model_fn` of a case; its initial weights are the same at every call."""
    if case.network == "cnn":
        return rounds.our_model_fn("cnn")
    projector = "moon" if case.method == "moon" else "none"
    return models.build_model_fn(
        case.network,
        image_shape=case.images.shape[2:],
        num_classes=10,
        norm=case.norm,
        projector=projector,
    )


def _trainable(model) -> list[np.ndarray]:
    return [variable.numpy() for variable in model.trainable_variables]


def main(
    path: str, kind: str, parallel: str, device: str = "CPU:0", compiles: str = ""
) -> None:
    """Answers questions about the case in a file."""
    case = serving.read(path)
    threads = max(1, devices.cores() // int(parallel))
    build = model_fn_of(case)
    if kind == "weights":
        serving.serve(lambda: None, lambda: _trainable(build()))
        return
    optimizer = training.build_sgd(case.learning_rate, case.momentum)
    if kind == "tff":
        process = tff.learning.algorithms.build_weighted_fed_avg(
            build, optimizer, tff.learning.optimizers.build_sgdm(1.0)
        )
        data = [
            tf.data.Dataset.from_tensor_slices(collections.OrderedDict(x=x, y=y)).batch(
                case.batch_size
            )
            for x, y in zip(case.images, case.labels)
        ]
    else:
        runtime.use(
            "in_process",
            devices=[device],
            clients_in_parallel=int(parallel),
            intra_op_threads=threads,
        )
        process = training.build_regularized(
            build,
            catalogue.build(case.method, {}),
            optimizer,
            client_data=training.WholeClientData(
                batch_size=case.batch_size, shuffle=False
            ),
            max_gradient_norm=case.max_gradient_norm,
            compile_steps=compiles == "compiled",
        )
        data = [
            tf.data.Dataset.from_tensors(
                collections.OrderedDict(x=x, y=y, key=np.array([0, i], np.int64))
            )
            for i, (x, y) in enumerate(zip(case.images, case.labels))
        ]
    state = process.initialize()
    client_states = None
    if hasattr(process, "initial_client_state"):
        client_states = [process.initial_client_state(state)] * len(data)

    def one_round():
        nonlocal state, client_states
        if client_states is None:
            state = process.next(state, data).state
            return
        state, client_states, _ = process.next(state, data, client_states)

    serving.serve(one_round, lambda: process.get_model_weights(state).trainable)


if __name__ == "__main__":
    main(*sys.argv[1:])
