"""Rounds in FedJAX, its compiled form: one client after another.

FedJAX has no state beside the weights: BatchNorm keeps no running statistics here.
"""

from __future__ import annotations

import sys

import fedjax
import jax
import jax.numpy as jnp
import numpy as np
from fedjax.algorithms import fed_avg
from jax import lax

from benchmarks.simulators import serving

_EPSILON = 1e-5
_GROUPS = 2


def _convolve(x, kernel, stride: int = 1):
    pad = (kernel.shape[0] - 1) // 2
    return lax.conv_general_dilated(
        x,
        kernel,
        (stride, stride),
        [(pad, pad), (pad, pad)],
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
    )


def _normalize(x, weights, norm: str):
    gamma, beta = weights
    if norm == "batch":
        mean, variance = x.mean((0, 1, 2)), x.var((0, 1, 2))
        return (x - mean) * (gamma * lax.rsqrt(variance + _EPSILON)) + beta
    grouped = x.reshape(*x.shape[:-1], _GROUPS, -1)
    mean = grouped.mean((1, 2, 4), keepdims=True)
    variance = grouped.var((1, 2, 4), keepdims=True)
    grouped = (grouped - mean) * lax.rsqrt(variance + _EPSILON)
    return grouped.reshape(x.shape) * gamma + beta


def _cnn(weights, x):
    kernel1, bias1, kernel2, bias2, hidden, hidden_bias, linear, bias = weights

    def block(x, kernel, bias):
        x = lax.conv_general_dilated(
            x, kernel, (1, 1), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
        x = jax.nn.relu(x + bias)
        return lax.reduce_window(
            x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID"
        )

    x = block(block(x, kernel1, bias1), kernel2, bias2)
    x = jax.nn.relu(x.reshape(len(x), -1) @ hidden + hidden_bias)
    return x @ linear + bias


def _resnet(weights, x, name: str, norm: str):
    rest = iter(weights)

    def take(count: int):
        return [next(rest) for _ in range(count)]

    def run(x, kernel, norm_weights, stride: int = 1):
        return _normalize(_convolve(x, kernel, stride), norm_weights, norm)

    x = jax.nn.relu(run(x, next(rest), take(2)))
    units, is_bottleneck = {
        "resnet8": (1, False),
        "resnet20": (3, False),
        "resnet56": (6, True),
    }[name]
    for stage in range(3):
        for unit in range(units):
            stride = 2 if stage and not unit else 1
            strides = (1, stride, 1) if is_bottleneck else (stride, 1)
            kernels = take(len(strides))
            norms = [take(2) for _ in strides]
            y = x
            for index, each in enumerate(strides):
                y = jax.nn.relu(y) if index else y
                y = run(y, kernels[index], norms[index], each)
            if y.shape != x.shape:
                x = run(x, next(rest), take(2), stride)
            x = jax.nn.relu(x + y)
    kernel, bias = rest
    return x.mean((1, 2)) @ kernel + bias


def main(path: str) -> None:
    """Answers questions about the case in a file."""
    case = serving.read(path)

    def loss(weights, batch, rng):
        del rng
        if case.network == "cnn":
            logits = _cnn(weights, batch["x"])
        else:
            logits = _resnet(weights, batch["x"], case.network, case.norm)
        chosen = jnp.take_along_axis(jax.nn.log_softmax(logits), batch["y"][:, None], 1)
        return -chosen.mean()

    fedjax.set_for_each_client_backend("jit")
    algorithm = fed_avg.federated_averaging(
        jax.grad(loss),
        fedjax.optimizers.sgd(case.learning_rate, case.momentum),
        fedjax.optimizers.sgd(1.0),
        fedjax.ShuffleRepeatBatchHParams(case.batch_size, skip_shuffle=True),
    )
    clients = [
        (str(index), fedjax.ClientDataset({"x": x, "y": y}), jax.random.PRNGKey(index))
        for index, (x, y) in enumerate(zip(case.images, case.labels))
    ]
    state = algorithm.init([jnp.asarray(w) for w in case.weights])

    def one_round():
        nonlocal state
        state, _ = algorithm.apply(state, clients)
        jax.block_until_ready(state.params)

    serving.serve(one_round, lambda: [np.asarray(w) for w in state.params])


if __name__ == "__main__":
    main(sys.argv[1])
