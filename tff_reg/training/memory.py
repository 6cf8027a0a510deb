"""What the server remembers beside the model, and what becomes of it after a round."""

from __future__ import annotations

import collections
import dataclasses
from typing import Any, Optional

import tensorflow as tf

from tff_reg.lazy import tff
from tff_reg.methods import contract, memories, method as method_lib
from tff_reg.training import (
    client_work as client_work_lib,
    local_round,
    local_training,
    numbers,
)


def build_broadcast(
    training: local_training.LocalTraining,
    memory_type: tff.types.Type,
    weights_type: tff.types.Type,
) -> Optional[tff.Computation]:
    """Builds what makes of the model what the distributor is given.

    Args:
      training: The client's half of the process.
      memory_type: The type of the server's memory.
      weights_type: The type of the model's `ModelWeights`.

    Returns:
      A computation from (memory, weights) to the weights that are sent, with the
      model's beside them where the distributor averages these; None if they are what is
      sent.
    """
    looking = [m for m in training.methods if method_lib.does(m, "broadcast")]
    if not looking:
        return None

    @tff.tensorflow.computation(memory_type, weights_type)
    def broadcast(memory: Any, weights: Any):
        trainable = list(weights.trainable)
        for method in looking:
            own = memories.own(method.name, method.server_memory, memory)
            sent = contract.call(method, "broadcast", trainable, own)
            trainable = contract.check_like(method, "broadcast", sent, trainable)
        sent = tff.learning.models.ModelWeights(trainable, weights.non_trainable)
        return (sent, weights) if training.averaged_rounds else sent

    return broadcast


def build_memory_update(
    training: local_training.LocalTraining,
    client_work: client_work_lib.StatefulClientWork,
    weights_type: tff.types.Type,
    update_type: tff.types.Type,
) -> tff.Computation:
    """Builds what the server does when the model is new.

    After a round without an update, in which no client trained or the aggregate is not
    finite, all stays as it was.

    Args:
      training: The client's half of the process.
      client_work: The client work built from it.
      weights_type: The TFF type of the model's `ModelWeights`.
      update_type: The type of the clients' mean update.

    Returns:
      A computation from (memory, weights before, new weights, mean update, summed
      uploads, number of clients that trained) to the new memory and weights, and for
      each method of the server whether its numbers were not finite (1 or 0, int32, by
      `<method>/not_finite`): then all of the round's memory and model are the old.

    Raises:
      HookError: If a hook fails or returns what it must not.
    """
    memory_type = client_work.initial_server_memory.type_signature.result
    uploads_type = client_work.next.type_signature.result.uploads.member
    num_clients = training.population.num_clients if training.population else None

    @tff.tensorflow.computation(
        memory_type, weights_type, weights_type, update_type, uploads_type, tf.int32
    )
    def update_memory(
        memory: Any,
        before: Any,
        weights: Any,
        mean_update: Any,
        uploads: Any,
        count: Any,
    ):
        if isinstance(mean_update, tff.learning.models.ModelWeights):
            mean_update = mean_update.trainable
        has_update = tf.logical_and(numbers.all_finite(mean_update), count > 0)
        # The update is a_i - w_i.
        total = [-tf.cast(count, u.dtype) * u for u in mean_update]
        total = numbers.zero_unless(has_update, total)
        new_memory: dict[str, Any] = {}
        new_weights = list(weights.trainable)
        broken: dict[str, Any] = collections.OrderedDict()
        for method in training.methods:
            own = memories.own(method.name, method.server_memory, memory)
            server = _Server(
                before=list(before.trainable),
                weights=new_weights,
                memory=own,
                old_memory=own,
                delta_sum=total,
                uploads=_uploads_of(method, uploads),
                count=count,
                num_clients=num_clients,  # pyright: ignore[reportArgumentType]
            )
            changed, made = _at_server(method, server)
            keys = memories.keys(method.name, method.server_memory)
            new_memory.update((keys[name], value) for name, value in changed.items())
            if changed or made is not None:
                is_finite = numbers.all_finite([changed, made or []])
                is_broken = tf.logical_and(has_update, tf.logical_not(is_finite))
                broken[f"{method.name}/{local_round.NOT_FINITE}"] = is_broken
            new_weights = new_weights if made is None else made
        is_whole = tf.logical_not(tf.reduce_any([False, *broken.values()]))
        counts = has_update
        has_update = tf.logical_and(has_update, is_whole)
        new_memory = collections.OrderedDict(
            (name, numbers.where(has_update, new_memory.get(name, old), old))
            for name, old in memory.items()
        )
        # Without clients the server optimiser's step stands, as in TFF's processes.
        old_weights = numbers.where(
            tf.logical_and(counts, tf.logical_not(is_whole)),
            list(before.trainable),
            list(weights.trainable),
        )
        trainable = numbers.where(has_update, new_weights, old_weights)
        new_weights = tff.learning.models.ModelWeights(trainable, weights.non_trainable)
        said = collections.OrderedDict(
            (name, tf.cast(value, tf.int32)) for name, value in broken.items()
        )
        return new_memory, new_weights, said

    return update_memory


class _Server(method_lib.Server):
    """A server that may not know how many clients there are."""

    def __getattribute__(self, name: str) -> Any:
        value = super().__getattribute__(name)
        if name == "num_clients" and value is None:
            raise contract.NeedError(
                "it has to know how many clients there are in all, in a round or not:"
                " give num_clients, or a population (tff_reg.training.Population)."
            )
        return value


def _uploads_of(method: method_lib.Method, uploads: Any) -> dict[str, Any]:
    return {name: uploads[f"{method.name}/{name}"] for name in method.uploads}


def _at_server(
    method: method_lib.Method, server: method_lib.Server
) -> tuple[dict[str, Any], Optional[list[Any]]]:
    """A method's new memories by its own names, and its model if it makes one."""
    changed: dict[str, Any] = {}
    if method_lib.does(method, "update_memory"):
        given = contract.call(method, "update_memory", server)
        contract.check_names(
            method, "update_memory", "memory", given, [*server.old_memory]
        )
        for name, value in given.items():
            old = server.old_memory[name]
            changed[name] = contract.check_structure(
                method, "update_memory", f"memory {name!r}", value, old
            )
    if not method_lib.does(method, "next_model"):
        return changed, None
    weights = contract.call(method, "next_model", _with(server, changed))
    return changed, contract.check_like(method, "next_model", weights, server.weights)


def _with(server: method_lib.Server, changed: dict[str, Any]) -> method_lib.Server:
    """The server with new memories."""
    fields = {
        field.name: object.__getattribute__(server, field.name)
        for field in dataclasses.fields(server)
    }
    return type(server)(**{**fields, "memory": {**server.old_memory, **changed}})
