"""Steps of any TFF optimiser on a model's variables, within one client's training."""

from __future__ import annotations

import collections
from collections.abc import Sequence
from typing import Any, Optional

import tensorflow as tf

from tff_reg.lazy import tff
from tff_reg.training import needs


def _first(optimizer: Any, weights: Sequence[Any]) -> Any:
    specs = tuple(tf.TensorSpec(w.shape, w.dtype) for w in weights)
    return optimizer.initialize(specs)


def _without_hparams(optimizer: Any, state: Any) -> dict[str, Any]:
    known = optimizer.get_hparams(state)
    return {k: v for k, v in state.items() if k not in known}


def first_state(optimizer: Any, weights: Sequence[Any]) -> list[Any]:
    """Returns what `Updater.kept` returns before the first step."""
    rest = _without_hparams(optimizer, _first(optimizer, weights))
    return [*map(tf.convert_to_tensor, tf.nest.flatten(rest))]


class Updater:
    """Steps of an optimiser on a model's variables, within one client's training.

    An optimiser with `make_slots`, `apply` and `decayed`, like `build_sgd`'s, changes
    variables in place. For any other optimiser the training loop carries its state, and
    new weights are assigned, as in TFF's own client work.
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

    @property
    def is_plain(self) -> bool:
        """Whether the delta is minus the learning rate times the sum of gradients."""
        return getattr(self._optimizer, "is_plain", False)

    def followed(self, state: Any, gradients: Sequence[Any]) -> list[Any]:
        """Returns the gradients that `step` uses, including coupled weight decay."""
        if self._in_place:
            return self._optimizer.decayed(state, self._variables, gradients)
        return list(gradients)

    def begin(self, hparams: Any, kept: Optional[Sequence[Any]] = None):
        """Returns the optimiser's first state in the training loop.

        It begins anew, or with the result of `kept` of an earlier round.
        """
        if self._in_place:
            for slot, value in zip(
                self._slots, kept or map(tf.zeros_like, self._slots)
            ):
                slot.assign(value)
            return collections.OrderedDict(hparams)
        state = _first(self._optimizer, self._variables)
        if kept is not None:
            rest = _without_hparams(self._optimizer, state)
            state.update(tf.nest.pack_sequence_as(rest, kept))
        return self._optimizer.set_hparams(state, hparams)

    def kept(self, state: Any) -> list[Any]:
        """Returns all of the optimiser's state but its hyperparameters."""
        if self._in_place:
            return [tf.convert_to_tensor(slot) for slot in self._slots]
        return tf.nest.flatten(_without_hparams(self._optimizer, state))

    def step(self, state: Any, gradients: Sequence[Any], factor: Any = None):
        """Updates the variables and returns the optimiser's new state.

        A `factor` multiplies the learning rate of this step alone.
        """
        hparams = state if self._in_place else self._optimizer.get_hparams(state)
        scaled = hparams if factor is None else needs.scaled(hparams, factor)
        if self._in_place:
            self._optimizer.apply(scaled, self._slots, self._variables, gradients)
            return state
        if factor is not None:
            state = self._optimizer.set_hparams(state, scaled)
        state, weights = self._optimizer.next(state, self._variables, tuple(gradients))
        for variable, weight in zip(self._variables, weights):
            variable.assign(weight)
        if factor is not None:
            state = self._optimizer.set_hparams(state, hparams)
        return state
