"""The optimisers of the papers: PyTorch's SGD, and adaptive server optimisers.

TFF's own `build_sgdm` lacks Nesterov's form and weight decay, which all four papers
use; its Adam, Yogi and Adagrad differ from "Adaptive Federated Optimization". Any other
`tff.learning.optimizers.Optimizer` can be used as well.
"""

from __future__ import annotations

import collections
import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any, Optional

import numpy as np
import tensorflow as tf

from tff_reg.lazy import tff
from tff_reg.training import schedules
from tff_reg.training.process_settings import ProcessSettings

# Ranges of any optimiser's hyperparameters by name: (minimum, upper bound, words).
_FRACTION = (0.0, 1.0, "in [0, 1)")
_AT_LEAST_0 = (0.0, math.inf, "at least 0 and finite")
_RANGES = {
    "learning_rate": _AT_LEAST_0,
    "momentum": _FRACTION,
    "weight_decay": _AT_LEAST_0,
    "beta_1": _FRACTION,
    "beta_2": _FRACTION,
    "decay": _FRACTION,
    "epsilon": (float(np.finfo(np.float32).tiny), math.inf, "above 0 and finite"),
}


def check(hparams: Mapping[str, Any]) -> collections.OrderedDict[str, Any]:
    """Checks ranges; returns hyperparameters, in graphs with checks before."""
    checked = collections.OrderedDict(hparams)
    for name, value in hparams.items():
        if name not in _RANGES:
            continue
        least, below, words = _RANGES[name]
        said = f"{name} must be {words}, but is"
        is_fine = (value >= least) & (value < below)
        if not tf.is_tensor(value) or tf.executing_eagerly():
            if not is_fine:
                raise ValueError(f"{said} {value}.")
            continue
        with tf.control_dependencies([tf.debugging.Assert(is_fine, [said, value])]):
            checked[name] = tf.identity(value)
    return checked


class _Optimizer(tff.learning.optimizers.Optimizer):
    """An optimiser whose state contains its hyperparameters by name."""

    _hparams: dict[str, float]

    def get_hparams(self, state: Any) -> collections.OrderedDict[str, Any]:
        return collections.OrderedDict((k, state[k]) for k in self._hparams)

    def set_hparams(
        self, state: Any, hparams: Any
    ) -> collections.OrderedDict[str, Any]:
        return collections.OrderedDict(
            (k, hparams[k] if k in self._hparams else v) for k, v in state.items()
        )


class _SGD(_Optimizer):
    """See `build_sgd`."""

    def __init__(
        self, learning_rate: float, momentum: float, nesterov: bool, weight_decay: float
    ):
        given: dict[str, float] = collections.OrderedDict(
            learning_rate=learning_rate, momentum=momentum, weight_decay=weight_decay
        )
        check(given)
        self._hparams = collections.OrderedDict(
            (name, value)
            for name, value in given.items()
            if value or name == "learning_rate"
        )
        self._nesterov = nesterov

    def initialize(self, specs: Any):
        state: dict[str, Any] = collections.OrderedDict(self._hparams)
        if "momentum" in state:
            state["accumulator"] = tf.nest.map_structure(_zeros, specs)
        return state

    def next(self, state: Any, weights: Any, gradients: Sequence[Any]):
        def hparam(name: str, like: Any):
            return _as_tensor(state[name], like)

        tf.nest.assert_same_structure(weights, gradients)
        flat_weights = tf.nest.flatten(weights)
        # A weight that the loss does not reach has gradient None or zero; weight decay
        # and momentum still apply to it.
        directions = [
            tf.zeros_like(w) if g is None else tf.convert_to_tensor(g)
            for w, g in zip(flat_weights, tf.nest.flatten(gradients))
        ]
        directions = self.decayed(state, flat_weights, directions)
        if "momentum" in self._hparams:
            accumulator = [
                hparam("momentum", d) * a + d
                for a, d in zip(tf.nest.flatten(state["accumulator"]), directions)
            ]
            if self._nesterov:
                directions = [
                    d + hparam("momentum", d) * a
                    for a, d in zip(accumulator, directions)
                ]
            else:
                directions = accumulator
            state = collections.OrderedDict(state)
            state["accumulator"] = tf.nest.pack_sequence_as(weights, accumulator)
        new_weights = [
            w - hparam("learning_rate", w) * d for w, d in zip(flat_weights, directions)
        ]
        return state, tf.nest.pack_sequence_as(weights, new_weights)

    @property
    def is_plain(self) -> bool:
        """Whether a step is the learning rate times the gradient, without momentum."""
        return "momentum" not in self._hparams

    def decayed(
        self, hparams: Any, weights: Sequence[Any], gradients: Sequence[Any]
    ) -> list[Any]:
        """Adds the gradients of the weight decay; one tensor per weight."""
        if "weight_decay" not in self._hparams:
            return list(gradients)
        decay = hparams["weight_decay"]
        return [g + _as_tensor(decay, w) * w for w, g in zip(weights, gradients)]

    def make_slots(self, variables: Sequence[Any]) -> list[tf.Variable]:
        """Makes the momentum buffers that `apply` needs: one per weight, or none."""
        if "momentum" not in self._hparams:
            return []
        return [tf.Variable(tf.zeros_like(v), trainable=False) for v in variables]

    def apply(
        self,
        hparams: Any,
        slots: Sequence[Any],
        variables: Sequence[Any],
        gradients: Sequence[Any],
    ):
        """Takes the step of `next` in place, with one pass over each weight."""
        gradients = self.decayed(hparams, variables, gradients)
        for i, (variable, gradient) in enumerate(zip(variables, gradients)):
            scalar = {k: tf.cast(v, variable.dtype) for k, v in hparams.items()}
            if slots:
                tf.raw_ops.ResourceApplyMomentum(
                    var=variable.handle,
                    accum=slots[i].handle,
                    lr=scalar["learning_rate"],
                    grad=gradient,
                    momentum=scalar["momentum"],
                    use_nesterov=self._nesterov,
                )
            else:
                tf.raw_ops.ResourceApplyGradientDescent(
                    var=variable.handle, alpha=scalar["learning_rate"], delta=gradient
                )


class _Adaptive(_Optimizer):
    """See `build_adaptive`."""

    def __init__(self, kind: str, hparams: dict[str, float], initial_v: float):
        self._kind = kind
        self._hparams = hparams
        self._initial_v = initial_v

    def initialize(self, specs: Any):
        def initial_v(spec: tf.TensorSpec) -> tf.Tensor:
            return tf.fill(spec.shape, tf.constant(self._initial_v, spec.dtype))

        state: dict[str, Any] = collections.OrderedDict(self._hparams)
        state["m"] = tf.nest.map_structure(_zeros, specs)
        state["v"] = tf.nest.map_structure(initial_v, specs)
        return state

    def next(self, state: Any, weights: Any, gradients: Sequence[Any]):
        tf.nest.assert_same_structure(weights, gradients)

        def hparam(name: str, like: Any):
            return _as_tensor(state[name], like)

        def next_m(m: Any, g: Any):
            beta = hparam("beta_1", g)
            return beta * m + (1 - beta) * g

        def next_v(v: Any, g: Any):
            square = tf.square(g)
            if self._kind == "adagrad":
                return v + square
            rest = 1 - hparam("beta_2", g)
            if self._kind == "yogi":
                return v - rest * square * tf.sign(v - square)
            return v - rest * (v - square)

        def step(w: Any, m: Any, v: Any):
            scale = tf.sqrt(v) + hparam("epsilon", w)
            return w - hparam("learning_rate", w) * m / scale

        state = collections.OrderedDict(state)
        state["m"] = tf.nest.map_structure(next_m, state["m"], gradients)
        state["v"] = tf.nest.map_structure(next_v, state["v"], gradients)
        return state, tf.nest.map_structure(step, weights, state["m"], state["v"])


@dataclasses.dataclass(frozen=True)
class _Scheduled(tff.learning.optimizers.Optimizer):
    """An optimiser whose learning rate follows a schedule over rounds.

    The state holds the round's number and the optimiser's own state, whose
    hyperparameters do not decay.
    """

    optimizer: Any
    schedule: schedules.Schedule

    def initialize(self, specs: Any):
        state: dict[str, Any] = collections.OrderedDict(
            round=tf.constant(0), scheduled=self.optimizer.initialize(specs)
        )
        return state

    def next(self, state: Any, weights: Any, gradients: Any):
        own = state["scheduled"]
        hparams = self.optimizer.get_hparams(own)
        rate = tf.convert_to_tensor(hparams["learning_rate"])
        scaled = rate * tf.cast(self.schedule(state["round"]), rate.dtype)
        decayed: dict[str, Any] = collections.OrderedDict(hparams, learning_rate=scaled)
        own = self.optimizer.set_hparams(own, decayed)
        own, weights = self.optimizer.next(own, weights, gradients)
        own = self.optimizer.set_hparams(own, hparams)
        new: dict[str, Any] = collections.OrderedDict(
            round=state["round"] + 1, scheduled=own
        )
        return new, weights

    def skipped(self, state: Any):
        """Returns the state after a round without a step."""
        new: dict[str, Any] = collections.OrderedDict(state, round=state["round"] + 1)
        return new

    def get_hparams(self, state: Any):
        return self.optimizer.get_hparams(state["scheduled"])

    def set_hparams(self, state: Any, hparams: Any):
        own = self.optimizer.set_hparams(state["scheduled"], hparams)
        new: dict[str, Any] = collections.OrderedDict(state, scheduled=own)
        return new


def _zeros(spec: tf.TensorSpec) -> tf.Tensor:
    return tf.zeros(spec.shape, spec.dtype)


def _as_tensor(value: Any, like: Any) -> tf.Tensor:
    """Converts a hyperparameter to the data type of a weight."""
    if tf.is_tensor(value):
        return tf.cast(value, like.dtype)
    # tf.cast would first round a Python number to float32.
    return tf.constant(value, like.dtype)


def build_sgd(
    learning_rate: float,
    momentum: float = 0.0,
    *,
    nesterov: bool = False,
    weight_decay: float = 0.0,
) -> tff.learning.optimizers.Optimizer:
    """Builds stochastic gradient descent with PyTorch's rules.

    With g the gradient, w the weights, v the momentum buffer (0 at first):
    d = g + weight_decay w (L2, coupled); v = momentum v + d; then w moves by
    -learning_rate times v, or times d + momentum v in Nesterov's form.

    Args:
      learning_rate: The step size, at least 0.
      momentum: In [0, 1); 0 keeps no buffer.
      nesterov: Whether Nesterov's form is used; needs a momentum.
      weight_decay: At least 0; added after any clipping of the gradient, to all
        trainable weights, norms and biases among them.

    Returns:
      A `tff.learning.optimizers.Optimizer` whose hparams are `learning_rate` and,
      where they are not 0, `momentum` and `weight_decay`.

    Raises:
      ValueError: If a value is out of range.
    """
    if nesterov and not momentum:
        raise ValueError("Nesterov's form needs a momentum above 0.")
    return _SGD(learning_rate, momentum, nesterov, weight_decay)


def build_adaptive(
    kind: str,
    learning_rate: float,
    *,
    beta1: Optional[float] = None,
    beta2: float = ProcessSettings.server_beta2,
    epsilon: float = ProcessSettings.server_epsilon,
    initial_v: Optional[float] = None,
) -> tff.learning.optimizers.Optimizer:
    """Builds the server optimiser of FedAdam, FedYogi or FedAdagrad.

    Source: S. J. Reddi et al., "Adaptive Federated Optimization", ICLR 2021,
    Algorithm 2. With g the negative mean update, m (0 at first) and v for each weight:

        m = beta1 m + (1 - beta1) g
        adam:    v = beta2 v + (1 - beta2) g^2
        yogi:    v = v - (1 - beta2) g^2 sign(v - g^2)
        adagrad: v = v + g^2
        w = w - learning_rate m / (sqrt(v) + epsilon)

    The first steps have no bias correction, unlike in TFF's own Adam and Yogi. `beta1`
    is by default that of the paper's experiments: 0.9, and 0 for adagrad.
    """
    if kind not in ("adam", "yogi", "adagrad"):
        raise ValueError(f"kind must be adam, yogi or adagrad, but is {kind!r}.")
    if beta1 is None:
        beta1 = 0.0 if kind == "adagrad" else 0.9
    hparams = check(
        collections.OrderedDict(
            learning_rate=learning_rate, beta_1=beta1, beta_2=beta2, epsilon=epsilon
        )
    )
    if initial_v is None:
        initial_v = epsilon**2
    if not initial_v >= 0.0:
        raise ValueError(f"initial_v must be at least 0, but is {initial_v!r}.")
    if kind == "adagrad":
        del hparams["beta_2"]
    return _Adaptive(kind, hparams, initial_v)


def of_clients(settings: ProcessSettings) -> tff.learning.optimizers.Optimizer:
    """Builds the client optimiser from the settings of a process."""
    rate, kind = settings.client_learning_rate, settings.client_optimizer
    if kind == "sgd":
        return build_sgd(
            rate,
            settings.client_momentum,
            nesterov=settings.client_nesterov,
            weight_decay=settings.client_weight_decay,
        )
    ours = tff.learning.optimizers
    given: dict[str, Any] = {"epsilon": settings.client_epsilon or 1e-7}
    if kind in ("adam", "adamw"):
        given["beta_1"] = settings.client_beta1
        given["beta_2"] = settings.client_beta2
    elif kind == "rmsprop":
        given["decay"] = settings.client_beta2
    if kind == "adamw":
        given["weight_decay"] = settings.client_weight_decay
    build = {
        "adam": ours.build_adam,
        "adamw": ours.build_adamw,
        "adagrad": ours.build_adagrad,
        "rmsprop": ours.build_rmsprop,
    }[kind]
    return build(rate, **{k: v for k, v in given.items() if v is not None})


def of_server(settings: ProcessSettings) -> tff.learning.optimizers.Optimizer:
    """Builds the server optimiser from the settings of a process."""
    rate = settings.server_learning_rate
    if settings.server_optimizer == "sgd":
        built = tff.learning.optimizers.build_sgdm(
            rate, settings.server_momentum or None
        )
    else:
        built = build_adaptive(
            settings.server_optimizer,
            rate,
            beta1=settings.server_beta1,
            beta2=settings.server_beta2,
            epsilon=settings.server_epsilon,
        )
    schedule = schedules.of_server(settings)
    is_constant = schedule == schedules.constant()
    return built if is_constant else _Scheduled(built, schedule)
