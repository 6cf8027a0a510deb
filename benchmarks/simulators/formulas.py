"""The papers' formulas in NumPy, and the problem on which libraries are compared.

A formula is a generator of the global weights after one more round, in float64. Its
keywords with a default are departures that some library makes; without them it is the
paper's.

Programs of other libraries read this file: it needs NumPy only. Such a program is
called with a JSON file of problems and of pairs, and writes weights to another.
"""

from __future__ import annotations

import itertools
import json
import pathlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

CLASSES = 10
ROUNDS = 3
Weights = Sequence[np.ndarray]


class Problem(NamedTuple):
    """A network, its initial weights, all clients' data, and their SGD.

    Attributes:
      weights: Kernel [64, hidden], bias, kernel [hidden, 10], bias; ReLU between.
      images: float32 [n, 64] by client; n is a multiple of the batch size.
      labels: int32 [n] by client.
      batch_size: Examples of a step; the order is the data's own in every epoch.
      learning_rate: Of the clients' SGD.
      momentum: Of the clients' SGD.
      epochs: Passes over a client's data per round.
      decay: Factor on the learning rate after each epoch.
    """

    weights: Weights
    images: Sequence[np.ndarray]
    labels: Sequence[np.ndarray]
    batch_size: int = 8
    learning_rate: float = 0.1
    momentum: float = 0.0
    epochs: int = 2
    decay: float = 1.0

    @property
    def shares(self) -> np.ndarray:
        """Each client's share of all examples."""
        sizes = np.array([len(own) for own in self.labels], np.float64)
        return sizes / sizes.sum()

    def steps(self, client: int) -> int:
        """The steps of a client's round."""
        return self.epochs * (len(self.labels[client]) // self.batch_size)

    def batches(self, client: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """The batches of one epoch."""
        for first in range(0, len(self.labels[client]), self.batch_size):
            chosen = slice(first, first + self.batch_size)
            yield self.images[client][chosen], self.labels[client][chosen]


def to_json(problem: Problem) -> list[Any]:
    """A problem as JSON; float32 numbers stay as they are."""
    return [[a.tolist() for a in part] for part in problem[:3]] + list(problem[3:])


def from_json(found: Sequence[Any]) -> Problem:
    """What `to_json` was given."""
    types = (np.float32, np.float32, np.int32)
    parts: list[Any] = [[np.array(a, t) for a in part] for part, t in zip(found, types)]
    return Problem(*parts, *found[3:])


Run = Callable[..., Iterator[Weights]]


def answer(runs: Mapping[str, Run], version: str) -> None:
    """Runs a library's algorithms, as the program's two files say.

    Args:
      runs: By method, a function of a problem and the method's settings that gives the
        global weights after one more round.
      version: The library's version.
    """
    asked = json.loads(pathlib.Path(sys.argv[1]).read_text(encoding="utf-8"))
    weights, errors = {}, {}
    for pair, (method, problem, settings) in asked["pairs"].items():
        try:
            found = runs[method](from_json(asked["problems"][problem]), **settings)
            weights[pair] = [
                [np.asarray(array).tolist() for array in each]
                for each in itertools.islice(found, ROUNDS)
            ]
        except Exception as error:  # A library's own; the table names it.
            errors[pair] = f"{type(error).__name__}: {error}".splitlines()[0]
    text = json.dumps({"version": version, "weights": weights, "errors": errors})
    pathlib.Path(sys.argv[2]).write_text(text, encoding="utf-8")


# --- a client ------------------------------------------------------------------------


def gradient(weights: Weights, x: np.ndarray, y: np.ndarray) -> Weights:
    """The gradient of a batch's mean cross-entropy."""
    hidden = np.maximum(x @ weights[0] + weights[1], 0)
    logits = hidden @ weights[2] + weights[3]
    error = np.exp(logits - logits.max(1, keepdims=True))
    error /= error.sum(1, keepdims=True)
    error[np.arange(len(y)), y] -= 1
    error /= len(y)
    back = (error @ weights[2].T) * (hidden > 0)
    return [x.T @ back, back.sum(0), hidden.T @ error, error.sum(0)]


def train(
    problem: Problem,
    client: int,
    start: Weights,
    change: Callable[..., Weights] | None = None,
    *,
    gradient_of: Callable[..., Weights] = gradient,
    momenta: list[np.ndarray] | None = None,
    rate: float | None = None,
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """A client's SGD.

    Args:
      problem: The problem.
      client: The client's number.
      start: The received weights.
      change: Function of (weights, gradient) that gives the gradient to step with.
      gradient_of: Function of (weights, x, y).
      momenta: Momenta to go on with, in place; None begins anew.
      rate: Learning rate of the first epoch; None for the problem's.

    Returns:
      The new weights, and the sum of the gradients that were stepped with.
    """
    weights = [w.astype(np.float64) for w in start]
    momenta = [np.zeros_like(w) for w in weights] if momenta is None else momenta
    total = [np.zeros_like(w) for w in weights]
    rate = problem.learning_rate if rate is None else rate
    for _ in range(problem.epochs):
        for x, y in problem.batches(client):
            found = gradient_of(weights, x, y)
            found = change(weights, found) if change else found
            for index, g in enumerate(found):
                total[index] += g
                momenta[index] *= problem.momentum
                momenta[index] += g
                weights[index] = weights[index] - rate * momenta[index]
        rate *= problem.decay
    return weights, total


def _mean(shares: Any, models: Sequence[Weights]) -> list[np.ndarray]:
    weighted = [[share * w for w in model] for share, model in zip(shares, models)]
    return [np.sum(each, axis=0) for each in zip(*weighted)]


def _plus(one: Weights, other: Weights, factor: float = 1.0) -> list[np.ndarray]:
    return [a + factor * b for a, b in zip(one, other)]


# --- methods: a local rule and the mean ----------------------------------------------


def fedavg(
    problem: Problem,
    *,
    local: Callable[[int, Weights], dict[str, Any]] = lambda client, start: {},
    server: Callable[..., Weights] = lambda before, mean, models: mean,
    uniform: bool = False,
    keeps_momentum: bool = False,
) -> Iterator[Weights]:
    """McMahan et al. 2017, Algorithm 1; also what differs in one rule.

    Args:
      problem: The problem.
      local: Function of (client, received weights): keyword arguments of `train`.
      server: Function of (old weights, the models' mean, models) for the new weights.
      uniform: Whether clients weigh alike.
      keeps_momentum: Departure: a client's momenta go on in its next round.
    """
    count, weights = len(problem.labels), problem.weights
    shares = [1 / count] * count if uniform else problem.shares
    kept = [[np.zeros(w.shape) for w in weights] for _ in range(count)]
    while True:
        models = []
        for client in range(count):
            momenta = kept[client] if keeps_momentum else None
            given = {"momenta": momenta, **local(client, weights)}
            models.append(train(problem, client, weights, **given)[0])
        weights = server(weights, _mean(shares, models), models)
        yield weights


def fedprox(problem: Problem, *, mu: float, sign: float = 1.0) -> Iterator[Weights]:
    """Li et al. 2020, Eq. 2: the gradient of (mu / 2) ||w - w_g||^2 is added."""

    def local(client, start):
        del client
        add = lambda w, g: _plus(g, _plus(w, start, -1.0), sign * mu)  # noqa: E731
        return {"change": add}

    return fedavg(problem, local=local)


def fedsam(
    problem: Problem, *, rho: float, keeps_gradient: bool = False
) -> Iterator[Weights]:
    """Foret et al. 2021, Eq. 2: the gradient at w + rho g / ||g||.

    Args:
      problem: The problem.
      rho: The radius.
      keeps_gradient: Departure: g has the gradient of the client's last step added.
    """
    last: list[Weights] = [[np.zeros(w.shape) for w in problem.weights]]
    last *= len(problem.labels)

    def local(client, start):
        del start

        def ascended(weights, x, y):
            found = gradient(weights, x, y)
            if keeps_gradient:
                found = _plus(found, last[client])
            norm = np.sqrt(sum(np.sum(g**2) for g in found))
            last[client] = gradient(_plus(weights, found, rho / norm), x, y)
            return last[client]

        return {"gradient_of": ascended}

    return fedavg(problem, local=local)


# --- methods: another server ---------------------------------------------------------


def fedavgm(
    problem: Problem, *, beta: float, skips_first: bool = False
) -> Iterator[Weights]:
    """Hsu et al. 2019: m = beta m + delta, w = w + m.

    Args:
      problem: The problem.
      beta: The momentum.
      skips_first: Departure: the first round's update is lost.
    """
    momentum: list[Weights] = []

    def server(before, mean, models):
        del models
        delta = _plus(mean, before, -1.0)
        if not momentum and skips_first:
            delta = [0 * d for d in delta]
        momentum[:] = [_plus(delta, momentum[0], beta) if momentum else delta]
        return _plus(before, momentum[0])

    return fedavg(problem, server=server)


def adaptive(
    problem: Problem,
    *,
    kind: str,
    eta: float,
    beta1: float,
    beta2: float,
    tau: float,
    initial_m: float = 0.0,
    initial_v: float | None = None,
    corrects_from: int | None = None,
    corrects_v: bool = False,
    update_factor: float = 1.0,
    added_in_root: float | None = None,
) -> Iterator[Weights]:
    """Reddi et al. 2021, Algorithm 2; v begins as tau^2.

    Args:
      problem: The problem.
      kind: 'adam', 'yogi' or 'adagrad'.
      eta: The server's learning rate.
      beta1: Of m.
      beta2: Of v.
      tau: Is added to the root of v.
      initial_m: Departure: m begins as this.
      initial_v: Departure: v begins as this.
      corrects_from: Departure: Kingma and Ba's bias correction, with this as t in the
        first round, as one factor on the learning rate.
      corrects_v: Departure: that correction is made to m and to v.
      update_factor: Departure: the mean update is multiplied by this first.
      added_in_root: Departure: is added to v in the root; nothing to the root.
    """
    state: dict[str, Any] = {"t": corrects_from}

    def server(before, mean, models):
        del models
        start = tau**2 if initial_v is None else initial_v
        m = state.get("m", [np.full_like(w, initial_m) for w in mean])
        v = state.get("v", [np.full_like(w, start) for w in mean])
        delta = [update_factor * d for d in _plus(mean, before, -1.0)]
        m = [beta1 * a + (1 - beta1) * d for a, d in zip(m, delta)]
        squares = [d**2 for d in delta]
        pairs = list(zip(v, squares))
        v = {
            "adam": lambda: [beta2 * a + (1 - beta2) * s for a, s in pairs],
            "yogi": lambda: [a - (1 - beta2) * s * np.sign(a - s) for a, s in pairs],
            "adagrad": lambda: [a + s for a, s in pairs],
        }[kind]()
        rate, factor = eta, 1.0
        if (t := state["t"]) is not None:
            factor = 1 / (1 - beta2**t)
            rate /= 1 - beta1**t
            state["t"] = t + 1
        state.update(m=m, v=v)
        if not corrects_v:
            rate, factor = rate / np.sqrt(factor), 1.0
        if added_in_root is not None:
            roots = [np.sqrt(a + added_in_root) for a in v]
        else:
            roots = [np.sqrt(factor * a) + tau for a in v]
        return [w + rate * a / r for w, a, r in zip(before, m, roots)]

    return fedavg(problem, server=server)


def fednova(problem: Problem, *, keeps_rest: bool = True) -> Iterator[Weights]:
    """Wang et al. 2020, Eq. 8 with plain SGD: a_i is the number of steps.

    Args:
      problem: The problem.
      keeps_rest: False is a departure: the models themselves are summed with weights
        tau p_i / a_i, whose sum is not 1, without the rest of the old weights.
    """
    steps = np.array([problem.steps(i) for i in range(len(problem.labels))])
    factors = (problem.shares @ steps) * problem.shares / steps

    def server(before, mean, models):
        del mean
        rest = (1 - factors.sum()) if keeps_rest else 0.0
        return _plus(_mean(factors, models), before, rest)

    return fedavg(problem, server=server)


# --- methods: clients with a memory --------------------------------------------------


def scaffold(
    problem: Problem,
    *,
    sign: float = 1.0,
    divisor: str = "round",
    variate: str = "weights",
) -> Iterator[Weights]:
    """Karimireddy et al. 2020, Algorithm 1, Option II, all clients in each round.

    Args:
      problem: The problem; the rate decays after each round's only epoch.
      sign: Departure: -1 takes y_i - x for x - y_i.
      divisor: Departure: the learning rate in the control variate is not the round's
        but the 'next' round's, or the 'first'.
      variate: 'gradients' takes the mean of the gradients used for (x - y_i) / (K
        eta). For SGD without momentum both are equal; the paper has no momentum.
    """
    count, weights = len(problem.labels), problem.weights
    zeros = [np.zeros(w.shape) for w in weights]
    common, own = zeros, [zeros] * count
    rate = problem.learning_rate
    while True:
        models, changes = [], []
        rates = {
            "round": rate,
            "next": rate * problem.decay**problem.epochs,
            "first": problem.learning_rate,
        }
        for client in range(count):
            correction = _plus(common, own[client], -1.0)
            model, total = train(
                problem,
                client,
                weights,
                lambda w, g, correction=correction: _plus(g, correction),
                rate=rate,
            )
            steps = problem.steps(client)
            taken = [t / steps for t in total]
            if variate == "weights":
                divided = sign / (steps * rates[divisor])
                taken = [divided * d for d in _plus(weights, model, -1.0)]
            new = _plus(_plus(own[client], common, -1.0), taken)
            models.append(model)
            changes.append(_plus(new, own[client], -1.0))
            own[client] = new
        common = _plus(common, _mean([1 / count] * count, changes))
        weights = _mean([1 / count] * count, models)
        rate = rates["next"]
        yield weights


def feddyn(
    problem: Problem, *, alpha: float, memory_factor: float = 1.0
) -> Iterator[Weights]:
    """Acar et al. 2021, Algorithm 1, in units of weights: h_i is -grad L_i / alpha.

    Args:
      problem: The problem.
      alpha: The strength.
      memory_factor: Departure: h_i grows by this times (w_i - w_g).
    """
    count, weights = len(problem.labels), problem.weights
    memory = [[np.zeros(w.shape) for w in weights] for _ in range(count)]
    while True:
        models = []
        for client in range(count):
            linear = _plus(memory[client], weights, -1.0)

            def change(w, g, linear=linear):
                return _plus(g, _plus(w, linear), alpha)

            models.append(train(problem, client, weights, change)[0])
            moved = _plus(models[client], weights, -1.0)
            memory[client] = _plus(memory[client], moved, memory_factor)
        alike = [1 / count] * count
        weights = _plus(_mean(alike, models), _mean(alike, memory))
        yield weights


def pfedme(
    problem: Problem,
    *,
    lamda: float,
    steps: int,
    rate: float,
    beta: float,
    is_held: bool = True,
    uploads_personal: bool = False,
) -> Iterator[Weights]:
    """Dinh et al. 2020, Algorithm 1.

    Args:
      problem: The problem; its learning rate is that of the local model.
      lamda: The strength.
      steps: K, steps of the personal model on each batch.
      rate: Learning rate of the personal model.
      beta: Share of the clients' mean in the new global model.
      is_held: False is a departure: no proximal term in the personal model's steps.
      uploads_personal: Departure: the personal model is sent, not the local one.
    """
    count, weights = len(problem.labels), problem.weights
    while True:
        models = []
        for client in range(count):
            local = [w.astype(np.float64) for w in weights]
            own = local
            for x, y in problem.epochs * list(problem.batches(client)):
                for _ in range(steps):
                    found = gradient(own, x, y)
                    if is_held:
                        found = _plus(found, _plus(own, local, -1.0), lamda)
                    own = _plus(own, found, -rate)
                away = _plus(local, own, -1.0)
                local = _plus(local, away, -problem.learning_rate * lamda)
            models.append(own if uploads_personal else local)
        mean = _mean([1 / count] * count, models)
        weights = _plus([(1 - beta) * w for w in weights], mean, beta)
        yield weights
