"""The server's half of a process: its state (without the model), and its step."""

from __future__ import annotations

import collections
from typing import Any

import tensorflow as tf

from tff_reg.lazy import tff
from tff_reg.training import (
    client_work as client_work_lib,
    description as description_lib,
    memory as memory_lib,
)


class Server:
    """A server without memories: its state is the finalizer's state.

    Args:
      finalizer: Applies the aggregated update to the model.
    """

    def __init__(self, finalizer: tff.learning.templates.FinalizerProcess):
        self._finalizer = finalizer

    def initialize(self, weights: Any) -> Any:
        """Returns the first state, at the server, given the model's `ModelWeights`."""
        return self._finalizer.initialize()

    def leaving(self, state: Any, weights: Any) -> tuple[Any, Any]:
        """Returns the weights for the distributor, and the memories sent to clients."""
        return weights, tff.federated_value(collections.OrderedDict(), tff.CLIENTS)

    def next(
        self,
        state: Any,
        weights: Any,
        update: Any,
        work: client_work_lib.ClientWorkOutput,
    ) -> tuple[Any, Any, dict[str, Any]]:
        """Ends a round: returns the new state, the new `ModelWeights`, and metrics."""
        output = self._finalizer.next(state, weights, update)
        metrics: dict[str, Any] = collections.OrderedDict(finalizer=output.measurements)
        return output.state, output.result, metrics

    def get_hparams(self, state: Any) -> Any:
        """Returns the server optimiser's hyperparameters, as unplaced tensors."""
        return self._finalizer.get_hparams(state)

    def set_hparams(self, state: Any, hparams: Any) -> Any:
        """Returns the state with other hyperparameters, as unplaced tensors."""
        return self._finalizer.set_hparams(state, hparams)

    def set_weights(self, state: Any, weights: Any, is_first: tf.Tensor) -> Any:
        """Returns the state for other model weights; `is_first` resets the memories."""
        return state


class RememberingServer(Server):
    """A server with memories and uploads.

    Its state holds the finalizer's state as `optimizer`, the methods' memories as
    `memory` and the state of the uploads' aggregation as `uploads`. If a method has the
    hook `evaluated`, the process's `ModelWeights` are those that it makes, and the
    state holds the weights that training goes on with as `weights`.
    """

    def __init__(
        self,
        finalizer: tff.learning.templates.FinalizerProcess,
        memories: memory_lib.Memories,
        upload_aggregator: tff.templates.AggregationProcess,
        description: description_lib.Description,
        uploads_type: tff.types.Type,
    ):
        super().__init__(finalizer)
        self._memories = memories
        self._uploads = upload_aggregator
        self._broadcast, self._evaluated = (
            memory_lib.build_weights(hook, description, memories.server_type)
            for hook in ("broadcast", "evaluated")
        )
        self._update = memory_lib.build_memory_update(
            description, memories.server_type, uploads_type
        )

    def initialize(self, weights: Any) -> Any:
        parts: dict[str, Any] = collections.OrderedDict(
            optimizer=super().initialize(weights),
            memory=tff.federated_map(self._memories.initial_server, weights),
            uploads=self._uploads.initialize(),
            **self._kept(weights),
        )
        return tff.federated_zip(parts)

    def _kept(self, weights: Any) -> dict[str, Any]:
        """Returns the part of the state that holds weights beside the evaluated."""
        return {} if self._evaluated is None else {"weights": weights}

    def _trained(self, state: Any, weights: Any) -> Any:
        """Returns the weights that training goes on with."""
        return weights if self._evaluated is None else state["weights"]

    def leaving(self, state: Any, weights: Any) -> tuple[Any, Any]:
        memory, weights = state["memory"], self._trained(state, weights)
        sent = tff.federated_broadcast(tff.federated_map(self._memories.sent, memory))
        if self._broadcast is not None:
            weights = tff.federated_map(self._broadcast, (memory, weights))
        return weights, sent

    def next(
        self,
        state: Any,
        weights: Any,
        update: Any,
        work: client_work_lib.ClientWorkOutput,
    ) -> tuple[Any, Any, dict[str, Any]]:
        weights = self._trained(state, weights)
        optimizer, new, metrics = super().next(
            state["optimizer"], weights, update, work
        )
        summed = self._uploads.next(state["uploads"], work.uploads, work.has_trained)
        uploads, count = summed.result
        memory, new, said = tff.federated_map(
            self._update, (state["memory"], weights, new, update, uploads, count)
        )
        parts: dict[str, Any] = collections.OrderedDict(
            optimizer=optimizer,
            memory=memory,
            uploads=summed.state,
            **self._kept(new),
        )
        if self._evaluated is not None:
            new = tff.federated_map(self._evaluated, (memory, new))
        metrics.update(uploads=summed.measurements, server=said)
        return tff.federated_zip(parts), new, metrics

    def get_hparams(self, state: Any) -> Any:
        return super().get_hparams(state["optimizer"])

    def set_hparams(self, state: Any, hparams: Any) -> Any:
        changed: dict[str, Any] = collections.OrderedDict(state)
        changed["optimizer"] = super().set_hparams(state["optimizer"], hparams)
        return changed

    def set_weights(self, state: Any, weights: Any, is_first: tf.Tensor) -> Any:
        # The first memories of clients and of the server are made from the same model.
        def one(first: tf.Tensor, old: tf.Tensor) -> tf.Tensor:
            return tf.where(is_first, first, old)

        memory = tf.nest.map_structure(
            one,
            collections.OrderedDict(self._memories.initial_server(weights)),
            collections.OrderedDict(state["memory"]),
        )
        changed: dict[str, Any] = collections.OrderedDict(state)
        changed.update(memory=memory, **self._kept(weights))
        return changed
