"""What the server remembers beside the model, and what becomes of it after a round."""

from __future__ import annotations

import collections
import dataclasses
import functools
from collections.abc import Mapping
from typing import Any, Optional

import tensorflow as tf

from tff_reg.lazy import tff
from tff_reg.methods import contract, memories, method as method_lib
from tff_reg.training import (
    client_work as client_work_lib,
    debugging,
    local_round,
    local_training,
    numbers,
)

_AT_SERVER = ("update_memory", "next_model")


def build_broadcast(
    training: local_training.LocalTraining,
    memory_type: tff.types.Type,
    weights_type: tff.types.Type,
    kept: list[Any],
) -> Optional[tff.Computation]:
    """Builds what makes of the model what the distributor is given.

    Args:
      training: The client's half of the process.
      memory_type: The type of the server's memory.
      weights_type: The type of the model's `ModelWeights`.
      kept: As for `debugging.eagerly`.

    Returns:
      A computation from (memory, weights) to the weights that are sent, with the
      model's beside them where the distributor averages these; None if they are what is
      sent.
    """
    looking = [m for m in training.methods if method_lib.does(m, "broadcast")]
    if not looking:
        return None

    def sent_weights(memory: Any, trainable: list[Any]) -> list[Any]:
        for method in looking:
            own = memories.own(method.name, method.server_memory, memory)
            sent = contract.call(method, "broadcast", trainable, own)
            trainable = contract.check_like(method, "broadcast", sent, trainable)
        return trainable

    @tff.tensorflow.computation(memory_type, weights_type)
    def broadcast(memory: Any, weights: Any):
        trainable = list(weights.trainable)
        run = sent_weights
        if training.debug_eager:
            spec = tf.nest.map_structure(tf.TensorSpec.from_tensor, trainable)
            run = debugging.eagerly(sent_weights, spec, kept)
        trainable = run(memory, trainable)
        sent = tff.learning.models.ModelWeights(trainable, weights.non_trainable)
        return (sent, weights) if training.averaged_rounds else sent

    return broadcast


def build_memory_update(
    training: local_training.LocalTraining,
    client_work: client_work_lib.StatefulClientWork,
    weights_type: tff.types.Type,
    update_type: tff.types.Type,
    kept: list[Any],
) -> tff.Computation:
    """Builds what the server does when the model is new.

    After a round without an update, in which no client trained or the aggregate is not
    finite, all stays as it was.

    Args:
      training: The client's half of the process.
      client_work: The client work built from it.
      weights_type: The TFF type of the model's `ModelWeights`.
      update_type: The type of the clients' mean update.
      kept: As for `debugging.eagerly`.

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
        run = functools.partial(_after_round, training)
        arguments = (
            collections.OrderedDict(memory),
            list(before.trainable),
            list(weights.trainable),
            total,
            uploads,
            count,
        )
        if training.debug_eager:
            told = collections.OrderedDict(
                (f"{m.name}/{local_round.NOT_FINITE}", tf.constant(False))
                for m in training.methods
                if any(method_lib.does(m, hook) for hook in _AT_SERVER)
            )
            spec = tf.nest.map_structure(
                tf.TensorSpec.from_tensor, (arguments[0], arguments[2], told)
            )
            run = debugging.eagerly(run, spec, kept)
        new_memory, new_weights, broken = run(*arguments)
        is_whole = tf.logical_not(tf.reduce_any([False, *broken.values()]))
        kept_whole = tf.logical_and(has_update, is_whole)
        new_memory = numbers.where(kept_whole, new_memory, arguments[0])
        # Without clients the server optimiser's step stands, as in TFF's processes.
        is_broken = tf.logical_and(has_update, tf.logical_not(is_whole))
        old_weights = numbers.where(is_broken, arguments[1], arguments[2])
        trainable = numbers.where(kept_whole, new_weights, old_weights)
        new_weights = tff.learning.models.ModelWeights(trainable, weights.non_trainable)
        said = collections.OrderedDict(
            (name, tf.cast(tf.logical_and(has_update, value), tf.int32))
            for name, value in broken.items()
        )
        return new_memory, new_weights, said

    return update_memory


def _after_round(
    training: local_training.LocalTraining,
    memory: Mapping[str, Any],
    before: list[Any],
    weights: list[Any],
    delta_sum: list[Any],
    uploads: Mapping[str, Any],
    count: Any,
) -> tuple[Mapping[str, Any], list[Any], Mapping[str, Any]]:
    """The new memory and weights, and which methods' numbers are not finite."""
    population = training.population
    new_memory = collections.OrderedDict(memory)
    broken: dict[str, Any] = collections.OrderedDict()
    for method in training.methods:
        if not any(method_lib.does(method, hook) for hook in _AT_SERVER):
            continue
        own = memories.own(method.name, method.server_memory, memory)
        server = _Server(
            before=list(before),
            weights=list(weights),
            memory=own,
            old_memory=memories.own(method.name, method.server_memory, memory),
            delta_sum=list(delta_sum),
            uploads=_uploads_of(method, uploads),
            count=count,
            num_clients=population.num_clients if population else None,  # pyright: ignore
        )
        changed, made = _at_server(method, server)
        keys = memories.keys(method.name, method.server_memory)
        new_memory.update((keys[name], value) for name, value in changed.items())
        is_finite = numbers.all_finite([changed, made or []])
        broken[f"{method.name}/{local_round.NOT_FINITE}"] = tf.logical_not(is_finite)
        weights = weights if made is None else made
    return new_memory, weights, broken


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
