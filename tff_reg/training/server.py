"""The server as functions of TensorFlow alone: what it sends, and a round's end."""

from __future__ import annotations

import collections
import functools
from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

from tff_reg.lazy import tff
from tff_reg.methods import contract, memories, method as method_lib
from tff_reg.seam import tensorflow_internals
from tff_reg.training import (
    debugging,
    finishing,
    hooks as hooks_lib,
    local_training,
    numbers,
    optimizers,
)

NO_OPTIMIZER = (
    "{} makes the new model itself, without a server optimiser: use SGD with learning"
    " rate 1 in all rounds, the default."
)
_in_plain_graphs = tensorflow_internals.elementwise_equality(also_in_plain_graphs=True)


class Server:
    """The server's half of a process.

    Its state, `own`, has the server optimiser's state as `optimizer` and the methods'
    memories by key as `memory`. If a method has the hook `evaluated`, the process's
    `ModelWeights` are those that it makes, and `own` holds those that training goes on
    with as `weights`.

    Args:
      optimizer: The server optimiser; it acts on trainable weights.
      training: The clients' half.
      hooks: Calls the methods' hooks.
      said: With `debug_eager`, what `after_round` told in the trial.
      eager: With `debug_eager`, takes the Python functions that graphs call.
    """

    def __init__(
        self,
        optimizer: Any,
        training: local_training.LocalTraining,
        hooks: hooks_lib.Hooks = hooks_lib.PLAIN,
        said: Any = None,
        eager: Any = None,
    ):
        self._optimizer, self._training = optimizer, training
        self._hooks, self._said, self._eager = hooks, said, eager
        self._methods = training.methods
        self._evaluates = self._has("evaluated")

    def _has(self, *hooks: str) -> bool:
        return any(method_lib.overrides(m, h) for m in self._methods for h in hooks)

    @property
    def counts(self) -> bool:
        """Whether methods upload, or need the number of clients that trained."""
        return self._has("finish", "update_memory", "next_model")

    # A round --------------------------------------------------------------------------

    @_in_plain_graphs
    def first(self, weights: Any) -> collections.OrderedDict[str, Any]:
        """Returns the first state, given the model's `ModelWeights`.

        The optimiser's hyperparameters are float64 if all trainable weights are.
        """
        specs = tf.nest.map_structure(tf.TensorSpec.from_tensor, weights.trainable)
        state = self._optimizer.initialize(specs)
        is_double = all(s.dtype == tf.float64 for s in tf.nest.flatten(specs))
        dtype = tf.float64 if is_double else tf.float32
        hparams = collections.OrderedDict(
            (name, tf.constant(value, dtype) if isinstance(value, float) else value)
            for name, value in self._optimizer.get_hparams(state).items()
        )
        memory = memories.first(self._methods, "server_memory", weights.trainable)
        own: dict[str, Any] = collections.OrderedDict(
            optimizer=self._optimizer.set_hparams(state, hparams), memory=memory
        )
        return own | self._trained(weights)

    def _trained(self, weights: Any) -> dict[str, Any]:
        """Returns the part of the state that holds weights beside the evaluated."""
        return {"weights": weights} if self._evaluates else {}

    @_in_plain_graphs
    def send(self, own: Any, weights: Any) -> tuple[Any, Any]:
        """Returns the `ModelWeights` that leave the server, and the memories sent."""
        weights = own.get("weights", weights)
        memory = memories.leaving(self._methods, own["memory"], weights.trainable)
        if self._has("broadcast"):
            weights = self._by("broadcast", own["memory"], weights)
        return weights, memory

    @_in_plain_graphs
    def step(
        self, own: Any, weights: Any, update: Any, summed: Any
    ) -> tuple[Any, Any, dict[str, Any]]:
        """Ends a round: returns the new state, the new `ModelWeights` and metrics.

        `summed` is the uploads' sums and the number of clients that trained; an empty
        tuple for methods without `counts`.

        BatchNorm's running statistics become the clients' weighted average if that is
        finite. If the aggregate of the trainable weights is not finite, they and the
        optimiser's state do not change, and the measurement `update_non_finite` is 1,
        as in TFF's own processes. After a round in which no client trained, or with a
        non-finite aggregate, the methods' memories do not change.
        """
        before = own.get("weights", weights)
        statistics = before.non_trainable
        if isinstance(update, tff.learning.models.ModelWeights):
            statistics = _averaged(statistics, update.non_trainable)
            update = update.trainable
        is_finite = numbers.all_finite(update)
        optimizer, trainable = numbers.where(
            is_finite,
            _stepped(self._optimizer, own["optimizer"], before.trainable, update),
            (_skipped(self._optimizer, own["optimizer"]), before.trainable),
        )
        of_step: dict[str, Any] = collections.OrderedDict(
            update_non_finite=tf.cast(tf.logical_not(is_finite), tf.int32)
        )
        metrics: dict[str, Any] = collections.OrderedDict(finalizer=of_step)
        memory = own["memory"]
        if self.counts:
            memory, trainable, metrics["server"] = self._ended(
                memory,
                list(before.trainable),
                list(trainable),
                tf.logical_and(is_finite, summed[1] > 0),
                update,
                *summed,
            )
        memory = memories.with_recent(self._methods, memory, before.trainable)
        new = tff.learning.models.ModelWeights(trainable, statistics)
        state: dict[str, Any] = collections.OrderedDict(
            optimizer=optimizer, memory=memory, **self._trained(new)
        )
        if self._evaluates:
            new = self._by("evaluated", memory, new)
        return state, new, metrics

    def _by(self, hook: str, memory: Any, weights: Any) -> Any:
        trainable = list(weights.trainable)
        run = self._eagerly(functools.partial(self.weights_by, hook), trainable)
        return tff.learning.models.ModelWeights(
            run(memory, trainable), weights.non_trainable
        )

    def _ended(
        self,
        memory: Any,
        before: list[Any],
        after: list[Any],
        has_update: tf.Tensor,
        update: Any,
        uploads: Any,
        count: Any,
    ) -> tuple[Any, Any, dict[str, Any]]:
        """Returns the methods' memories, weights and metrics if all are finite."""
        # The update is a_i - w_i.
        total = [-tf.cast(count, u.dtype) * u for u in update]
        total = numbers.zero_unless(has_update, total)
        old = collections.OrderedDict(memory)
        run = self._eagerly(self.after_round, (old, after, self._said))
        memory, weights, said = run(old, before, after, total, uploads, count)
        broken = [value for value in said.values() if value.dtype == tf.bool]
        is_whole = tf.logical_not(tf.reduce_any([False, *broken]))
        is_kept = tf.logical_and(has_update, is_whole)
        # Without clients the server optimiser's step still counts, as in TFF's.
        is_broken = tf.logical_and(has_update, tf.logical_not(is_whole))
        counted: dict[str, Any] = collections.OrderedDict()
        for name, value in said.items():
            if value.dtype == tf.bool:
                value = tf.cast(value, tf.int32)
            counted[name] = numbers.zero_unless(has_update, value)
        return (
            numbers.where(is_kept, memory, old),
            numbers.where(is_kept, weights, numbers.where(is_broken, before, after)),
            counted,
        )

    def _eagerly(self, function: Callable[..., Any], like: Any) -> Callable[..., Any]:
        """Makes a function run eagerly with `debug_eager`; `like` shows its result."""
        if not self._training.debug_eager:
            return function
        spec = tf.nest.map_structure(tf.TensorSpec.from_tensor, like)
        return debugging.eagerly(function, spec, self._eager)

    # Hooks ----------------------------------------------------------------------------

    def weights_by(
        self, hook: str, memory: Mapping[str, Any], weights: list[Any]
    ) -> list[Any]:
        """Calls the methods' `broadcast` or `evaluated`, which make other weights."""
        for method in self._methods:
            if method_lib.overrides(method, hook):
                own = memories.own(method.name, method.server_memory, memory)
                made = self._hooks.call(method, hook, weights, own)
                contract.check(method, hook, "the result", made, weights)
                weights = list(made)
        return weights

    def after_round(
        self,
        memory: Mapping[str, Any],
        before: list[Any],
        weights: list[Any],
        delta_sum: list[Any],
        uploads: Mapping[str, Any],
        count: Any,
    ) -> tuple[Mapping[str, Any], list[Any], Mapping[str, Any]]:
        """Calls the hooks `update_memory` and `next_model` of all methods.

        Returns:
          The new memories, the new weights, and by name whether a method made numbers
          that are not finite, and its measurements.
        """
        population = self._training.population
        num_clients: Any = population.num_clients if population else None
        new_memory = collections.OrderedDict(memory)
        said: dict[str, Any] = collections.OrderedDict()
        for method in sorted(self._methods, key=lambda method: method.adds_to_model):
            if not any(
                method_lib.overrides(method, hook)
                for hook in ("update_memory", "next_model")
            ):
                continue
            old = memories.own(method.name, method.server_memory, memory)
            server_with = functools.partial(
                _View,
                before=tuple(before),
                weights=tuple(weights),
                old_memory=old,
                delta_sum=tuple(delta_sum),
                uploads={
                    name: memories.frozen(uploads[f"{method.name}/{name}"])
                    for name in method.uploads
                },
                count=count,
                num_clients=num_clients,
            )
            measured, changed = self._changed_memory(method, server_with(memory=old))
            keys = memories.keys(method.name, method.server_memory)
            for name, value in changed.items():
                new_memory[keys[name]] = memories.packed_as(memory[keys[name]], value)
            made: list[Any] = []
            if method_lib.overrides(method, "next_model"):
                new = memories.own(method.name, method.server_memory, new_memory)
                given = self._hooks.call(method, "next_model", server_with(memory=new))
                given = hooks_lib.change_of(method, "next_model", given)
                made = contract.check(
                    method, "next_model", "the result", given.value, weights
                )
                made = list(made)
                measured = {**measured, **given.measurements}
            is_finite = numbers.all_finite([changed, made])
            said[f"{method.name}/{finishing.NOT_FINITE}"] = tf.logical_not(is_finite)
            for name, value in measured.items():
                said[f"{method.name}/{name}"] = tf.cast(value, tf.float32)
            weights = made or weights
        return new_memory, weights, said

    def _changed_memory(
        self, method: method_lib.Method, server: method_lib.Server
    ) -> tuple[Mapping[str, Any], dict[str, Any]]:
        """Returns what `update_memory` measured, and its memories, by name."""
        hook, old = "update_memory", server.old_memory
        if not method_lib.overrides(method, hook):
            return {}, {}
        given = self._hooks.call(method, hook, server)
        given = hooks_lib.change_of(method, hook, given)
        contract.check(method, hook, "memory", given.value, old, is_part=True)
        return given.measurements, dict(given.value)

    # Access from outside --------------------------------------------------------------

    def get_hparams(self, own: Any) -> Any:
        """Returns the server optimiser's hyperparameters."""
        return self._optimizer.get_hparams(own["optimizer"])

    def set_hparams(self, own: Any, hparams: Any) -> Any:
        """Returns the state with other hyperparameters."""
        hparams = optimizers.check(hparams)
        if owner := next((m.name for m in self._methods if m.server_step), None):
            is_one = tf.equal(hparams["learning_rate"], 1.0)
            said = [NO_OPTIMIZER.format(owner)]
            with tf.control_dependencies([tf.debugging.Assert(is_one, said)]):
                hparams["learning_rate"] = tf.identity(hparams["learning_rate"])
        changed = self._optimizer.set_hparams(own["optimizer"], hparams)
        return collections.OrderedDict[str, Any](own, optimizer=changed)

    def set_weights(self, own: Any, weights: Any, is_first: tf.Tensor) -> Any:
        """Returns the state for other model weights; `is_first` resets the memories."""
        # The first memories of clients and of the server are made from the same model.
        memory = numbers.where(is_first, self.first(weights)["memory"], own["memory"])
        both = dict(memory=memory, **self._trained(weights))
        return collections.OrderedDict[str, Any](own, **both)


class _View(method_lib.Server):
    """A server with an error for reads of `num_clients` if the number is unknown."""

    def __getattribute__(self, name: str) -> Any:
        value = super().__getattribute__(name)
        if name == "num_clients" and value is None:
            raise contract.NeedError(
                "it needs the number of all clients, sampled or not: give num_clients,"
                " or a population (tff_reg.training.Population)."
            )
        return value


def _skipped(optimizer: Any, state: Any) -> Any:
    """Returns the optimiser's state after a round without a step."""
    has_schedule = hasattr(optimizer, "skipped")
    return optimizer.skipped(state) if has_schedule else state


def _averaged(statistics: Any, steps: Any) -> list[Any]:
    """Returns the clients' mean statistics; the old ones if the mean is not finite."""
    old = numbers.floats(statistics)
    averages = [s - step for s, step in zip(old, steps, strict=True)]
    new = iter(numbers.where(numbers.all_finite(steps), averages, old))
    return [next(new) if s.dtype.is_floating else s for s in statistics]


def _stepped(optimizer: Any, state: Any, trainable: Any, update: Any) -> Any:
    try:
        return optimizer.next(state, trainable, update)
    except tf.errors.OperatorNotAllowedInGraphError:  # For example by `if tensor:`.
        step = tf.autograph.to_graph(type(optimizer).next)  # pyright: ignore
        return step(optimizer, state, trainable, update)
