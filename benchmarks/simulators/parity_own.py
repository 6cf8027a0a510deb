"""Runs this package's methods, or TFF's own, for `bin/bench parity`.

The program's third argument is 'tff_reg' or 'tff'. Each runs in its own runtime.
"""

from __future__ import annotations

import collections
import sys
from collections.abc import Iterator
from typing import Any

from tff_reg import quiet

if __name__ == "__main__":
    quiet.silence()

import keras
import tensorflow as tf

from benchmarks.simulators import formulas
from tff_reg import models, runtime, training
from tff_reg.lazy import np, tff
from tff_reg.methods import catalogue
from tff_reg.training import optimizers


def _model_fn(problem: formulas.Problem):
    hidden, classes = (len(problem.weights[i]) for i in (1, 3))
    layers = keras.layers
    model = keras.Sequential(
        [
            keras.Input([len(problem.weights[0])]),
            layers.Dense(hidden, activation="relu"),
            layers.Dense(classes),
        ]
    )
    model.set_weights(problem.weights)
    return models.from_keras(model)


def ours(
    problem: formulas.Problem,
    name: str,
    server: Any = None,
    uniform: bool = False,
    **hyperparameters: Any,
) -> Iterator[formulas.Weights]:
    """Rounds of a method of this package.

    Args:
      problem: The problem.
      name: The method's name.
      server: The server's optimiser.
      uniform: Whether clients weigh alike.
      **hyperparameters: The method's, by field.
    """
    given = {f"{name}_{field}": value for field, value in hyperparameters.items()}
    weighting = tff.learning.ClientWeighting
    process = training.build_regularized(
        _model_fn(problem),
        catalogue.build(name, given),
        training.build_sgd(problem.learning_rate, problem.momentum),
        server,
        weighting.UNIFORM if uniform else weighting.NUM_EXAMPLES,
        client_data=training.WholeClientData(
            problem.batch_size, local_epochs=problem.epochs, shuffle=False
        ),
        learning_rate_schedule=training.exponential(problem.decay),
        population=training.Population(len(problem.labels)),
    )
    data = [
        tf.data.Dataset.from_tensors(
            collections.OrderedDict(x=x, y=y, key=np.array([0, i], np.int64))
        )
        for i, (x, y) in enumerate(zip(problem.images, problem.labels))
    ]
    with runtime.running("in_process"):
        state = process.initialize()
        memories = None
        if hasattr(process, "initial_client_state"):
            memories = [process.initial_client_state(state)] * len(data)
        while True:
            if memories is None:
                state = process.next(state, data).state
            else:
                state, memories, _ = process.next(state, data, memories)
            # What clients receive next; FedExP evaluates another model.
            yield state.finalizer.get("weights", state.global_model_weights).trainable


def _adaptive(kind, eta, beta1, beta2, tau):
    return optimizers.build_adaptive(kind, eta, beta1=beta1, beta2=beta2, epsilon=tau)


def _momentum(beta):
    return tff.learning.optimizers.build_sgdm(1.0, beta)


OURS = {
    "fedavg": lambda p: ours(p, "fedavg"),
    "fedprox": lambda p, mu: ours(p, "fedprox", strength=mu),
    "fedavgm": lambda p, beta: ours(p, "fedavgm", _momentum(beta)),
    "adaptive": lambda p, kind, **own: ours(p, f"fed{kind}", _adaptive(kind, **own)),
    "fednova": lambda p: ours(p, "fednova"),
    "scaffold": lambda p: ours(p, "scaffold", uniform=True),
    "feddyn": lambda p, alpha: ours(p, "feddyn", uniform=True, strength=alpha),
    "moon": lambda p, mu, tau: ours(p, "moon", strength=mu, temperature=tau),
    "fedlc": lambda p, tau: ours(p, "fedlc", strength=tau),
    "fedrs": lambda p, alpha: ours(p, "fedrs", factor=alpha),
    "fedsam": lambda p, rho: ours(p, "fedsam", radius=rho),
    "fedexp": lambda p, epsilon: ours(
        p, "fedexp", uniform=True, rule="paper", epsilon=epsilon, decay=1.0
    ),
    "fedper": lambda p: ours(p, "fedper"),
    "fedrep": lambda p, head_share: ours(p, "fedrep", head_share=head_share),
    "pfedme": lambda p, lamda, steps, rate, beta: ours(
        p,
        "pfedme",
        tff.learning.optimizers.build_sgdm(beta),
        uniform=True,
        strength=lamda,
        steps=steps,
        learning_rate=rate,
    ),
}


def _tffs(problem: formulas.Problem, server: Any = None, mu: float | None = None):
    """Rounds of TFF's own FedAvg or FedProx in TFF's own runtime."""
    build = tff.learning.optimizers.build_sgdm
    chosen = [build(problem.learning_rate), server or build(1.0)]
    if mu is None:
        make = tff.learning.algorithms.build_weighted_fed_avg
        process = make(_model_fn(problem), *chosen)
    else:
        make = tff.learning.algorithms.build_weighted_fed_prox
        process = make(_model_fn(problem), mu, *chosen)
    data = [
        tf.data.Dataset.from_tensor_slices(collections.OrderedDict(x=x, y=y))
        .batch(problem.batch_size)
        .repeat(problem.epochs)
        for x, y in zip(problem.images, problem.labels)
    ]
    state = process.initialize()
    while True:
        state = process.next(state, data).state
        yield process.get_model_weights(state).trainable


def _tffs_adaptive(kind, eta, beta1, beta2, tau):
    # As near to the paper as TFF's settings go.
    build = getattr(tff.learning.optimizers, f"build_{kind}")
    if kind == "adagrad":
        return build(eta, initial_preconditioner_value=tau**2, epsilon=tau**2)
    first = {"initial_preconditioner_value": tau**2} if kind == "yogi" else {}
    return build(eta, beta_1=beta1, beta_2=beta2, epsilon=tau, **first)


TFFS = {
    "fedavg": _tffs,
    "fedprox": lambda p, mu: _tffs(p, mu=mu),
    "fedavgm": lambda p, beta: _tffs(p, _momentum(beta)),
    "adaptive": lambda p, kind, **own: _tffs(p, _tffs_adaptive(kind, **own)),
}


if __name__ == "__main__":
    formulas.answer({"tff_reg": OURS, "tff": TFFS}[sys.argv[3]], tff.__version__)
