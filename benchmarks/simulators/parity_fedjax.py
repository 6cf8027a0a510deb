"""Runs FedJAX's algorithms for `bin/bench parity`."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Iterator
from typing import Any

import fedjax
import jax
import jax.numpy as jnp
import numpy as np
from fedjax.algorithms import fed_avg, fed_prox

from benchmarks.simulators import formulas

_OPTIMIZERS = fedjax.optimizers


def _losses(weights, batch, rng):
    """The cross-entropy of each example."""
    del rng
    hidden = jax.nn.relu(batch["x"] @ weights[0] + weights[1])
    logits = hidden @ weights[2] + weights[3]
    return -jnp.take_along_axis(jax.nn.log_softmax(logits), batch["y"][:, None], 1)[
        :, 0
    ]


def run(
    problem: formulas.Problem, server: Any = None, mu: float | None = None
) -> Iterator[formulas.Weights]:
    """Runs FedAvg with a server optimiser, or FedProx if there is a mu."""
    shared = (
        _OPTIMIZERS.sgd(problem.learning_rate),
        server or _OPTIMIZERS.sgd(1.0),
        fedjax.ShuffleRepeatBatchHParams(
            problem.batch_size, num_epochs=problem.epochs, skip_shuffle=True
        ),
    )
    if mu is None:
        gradient = jax.grad(lambda *batch: _losses(*batch).mean())
        algorithm = fed_avg.federated_averaging(gradient, *shared)
    else:
        algorithm = fed_prox.fed_prox(_losses, *shared, mu)
    clients = [
        (str(index), fedjax.ClientDataset({"x": x, "y": y}), jax.random.PRNGKey(index))
        for index, (x, y) in enumerate(zip(problem.images, problem.labels))
    ]
    state = algorithm.init([jnp.asarray(w) for w in problem.weights])
    while True:
        state, _ = algorithm.apply(state, clients)
        yield [np.asarray(w) for w in state.params]


def _adaptive(problem, kind, eta, beta1, beta2, tau):
    if kind == "adagrad":
        server = _OPTIMIZERS.adagrad(eta, initial_accumulator_value=tau**2, eps=tau**2)
    else:
        server = getattr(_OPTIMIZERS, kind)(eta, b1=beta1, b2=beta2, eps=tau)
    return run(problem, server)


RUNS = {
    "fedavg": run,
    "fedprox": lambda p, mu: run(p, mu=mu),
    "fedavgm": lambda p, beta: run(p, _OPTIMIZERS.sgd(1.0, beta)),
    "adaptive": _adaptive,
}


if __name__ == "__main__":
    versions = [f"{n} {importlib.metadata.version(n)}" for n in ("fedjax", "optax")]
    formulas.answer(RUNS, ", ".join(versions).removeprefix("fedjax "))
