"""The client optimiser of the papers: SGD as PyTorch runs it.

TFF's own `build_sgdm` has neither Nesterov's form nor weight decay, with which all
four papers train. Any other `tff.learning.optimizers.Optimizer` can stand in its
place.
"""

from __future__ import annotations

import collections
from collections.abc import Sequence
from typing import Any

import tensorflow as tf
import tensorflow_federated as tff


class _SGD(tff.learning.optimizers.Optimizer):
    """See `build_sgd`."""

    def __init__(
        self, learning_rate: float, momentum: float, nesterov: bool, weight_decay: float
    ):
        self._hparams: dict[str, float] = collections.OrderedDict(
            learning_rate=learning_rate
        )
        if momentum:
            self._hparams["momentum"] = momentum
        if weight_decay:
            self._hparams["weight_decay"] = weight_decay
        self._nesterov = nesterov

    def initialize(self, specs: Any):
        state: dict[str, Any] = collections.OrderedDict(self._hparams)
        if "momentum" in state:
            state["accumulator"] = tf.nest.map_structure(_zeros, specs)
        return state

    def next(self, state: Any, weights: Any, gradients: Sequence[Any]):
        def hparam(name: str, like: Any):
            value = state[name]
            if tf.is_tensor(value):
                return tf.cast(value, like.dtype)
            # tf.cast would round a Python number to float32 on the way.
            return tf.constant(value, like.dtype)

        tf.nest.assert_same_structure(weights, gradients)
        flat_weights = tf.nest.flatten(weights)
        # A weight that the loss does not reach has the gradient None, or zero; its
        # decay and its momentum go on in both cases.
        directions = [
            tf.zeros_like(w) if g is None else tf.convert_to_tensor(g)
            for w, g in zip(flat_weights, tf.nest.flatten(gradients))
        ]
        if "weight_decay" in self._hparams:
            directions = [
                d + hparam("weight_decay", w) * w
                for w, d in zip(flat_weights, directions)
            ]
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

    def make_slots(self, variables: Sequence[Any]) -> list[tf.Variable]:
        """Makes the variables that `apply` needs: one buffer a weight, or none."""
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
        """Takes the step of `next` in place, with one pass over each weight.

        Args:
          hparams: Scalars, as `get_hparams` gives them.
          slots: What `make_slots` made; changed in place.
          variables: The weights; changed in place.
          gradients: One tensor a weight.
        """
        for i, (variable, gradient) in enumerate(zip(variables, gradients)):
            scalar = {k: tf.cast(v, variable.dtype) for k, v in hparams.items()}
            if "weight_decay" in scalar:
                gradient = gradient + scalar["weight_decay"] * variable
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

    def get_hparams(self, state: Any) -> collections.OrderedDict[str, Any]:
        return collections.OrderedDict((k, state[k]) for k in self._hparams)

    def set_hparams(
        self, state: Any, hparams: Any
    ) -> collections.OrderedDict[str, Any]:
        return collections.OrderedDict(
            (k, hparams[k] if k in self._hparams else v) for k, v in state.items()
        )


def _zeros(spec: tf.TensorSpec) -> tf.Tensor:
    return tf.zeros(spec.shape, spec.dtype)


class Updater:
    """Steps of an optimiser on a model's variables, within one client's training.

    An optimiser with `make_slots` and `apply`, like `build_sgd`'s, changes variables in
    place. For any other one its state travels through the training loop and new
    weights are assigned, as in TFF's own client work.

    Args:
      optimizer: A `tff.learning.optimizers.Optimizer`.
      variables: The trainable variables.
    """

    def __init__(
        self, optimizer: tff.learning.optimizers.Optimizer, variables: Sequence[Any]
    ):
        self._optimizer = optimizer
        self._variables = tuple(variables)
        self._in_place = hasattr(optimizer, "apply")
        self._slots: Sequence[tf.Variable] = (
            optimizer.make_slots(variables) if self._in_place else []
        )

    def begin(self, hparams: Any):
        """Resets the optimiser and returns the state of the loop."""
        if self._in_place:
            for slot in self._slots:
                slot.assign(tf.zeros_like(slot))
            return collections.OrderedDict(hparams)
        specs = tuple(tf.TensorSpec(v.shape, v.dtype) for v in self._variables)
        return self._optimizer.set_hparams(self._optimizer.initialize(specs), hparams)

    def step(self, state: Any, gradients: Sequence[Any]):
        """Changes the variables and returns the new state of the loop."""
        if self._in_place:
            self._optimizer.apply(state, self._slots, self._variables, gradients)
            return state
        state, weights = self._optimizer.next(state, self._variables, tuple(gradients))
        for variable, weight in zip(self._variables, weights):
            variable.assign(weight)
        return state


def build_sgd(
    learning_rate: float,
    momentum: float = 0.0,
    *,
    nesterov: bool = False,
    weight_decay: float = 0.0,
) -> tff.learning.optimizers.Optimizer:
    """Stochastic gradient descent with PyTorch's rules.

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
    if not learning_rate >= 0.0:
        raise ValueError(f"learning_rate must be at least 0, but is {learning_rate!r}.")
    if not 0.0 <= momentum < 1.0:
        raise ValueError(f"momentum must be in [0, 1), but is {momentum!r}.")
    if not weight_decay >= 0.0:
        raise ValueError(f"weight_decay must be at least 0, but is {weight_decay!r}.")
    if nesterov and not momentum:
        raise ValueError("Nesterov's form needs a momentum above 0.")
    return _SGD(learning_rate, momentum, nesterov, weight_decay)
