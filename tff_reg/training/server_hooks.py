"""Calls of the methods' hooks at the server."""

from __future__ import annotations

import collections
import functools
from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from tff_reg.methods import contract, memories, method as method_lib
from tff_reg.seam import tensorflow_internals
from tff_reg.training import (
    finishing,
    hook_results,
    hooks as hooks_lib,
    local_training,
    numbers,
)

_AT_SERVER = ("update_memory", "next_model")


@tensorflow_internals.elementwise_equality(also_in_plain_graphs=True)
def weights_by(
    hook: str,
    methods: Sequence[method_lib.Method],
    memory: Mapping[str, Any],
    weights: list[Any],
    hooks: hooks_lib.Hooks = hooks_lib.PLAIN,
) -> list[Any]:
    """Calls a hook of all methods that makes other weights: broadcast, evaluated."""
    for method in methods:
        if method_lib.overrides(method, hook):
            own = memories.own(method.name, method.server_memory, memory)
            made = hooks.call(method, hook, weights, own)
            weights = contract.check_like(method, hook, made, weights)
    return weights


def _acts_at_server(method: method_lib.Method) -> bool:
    return any(method_lib.overrides(method, hook) for hook in _AT_SERVER)


@tensorflow_internals.elementwise_equality(also_in_plain_graphs=True)
def after_round(
    training: local_training.LocalTraining,
    memory: Mapping[str, Any],
    before: list[Any],
    weights: list[Any],
    delta_sum: list[Any],
    uploads: Mapping[str, Any],
    count: Any,
    hooks: hooks_lib.Hooks = hooks_lib.PLAIN,
) -> tuple[Mapping[str, Any], list[Any], Mapping[str, Any]]:
    """Calls the hooks `update_memory` and `next_model` of all methods.

    Returns:
      The new memories, the new weights, and by name whether a method made numbers that
      are not finite, and its measurements.
    """
    population = training.population
    num_clients: Any = population.num_clients if population else None
    new_memory = collections.OrderedDict(memory)
    said: dict[str, Any] = collections.OrderedDict()
    acting = sorted(training.methods, key=lambda method: method.adds_to_model)
    for method in filter(_acts_at_server, acting):
        own = functools.partial(memories.own, method.name, method.server_memory, memory)
        server_with = functools.partial(
            _Server,
            before=tuple(before),
            weights=tuple(weights),
            old_memory=own(),
            delta_sum=tuple(delta_sum),
            uploads={
                name: memories.frozen(uploads[f"{method.name}/{name}"])
                for name in method.uploads
            },
            count=count,
            num_clients=num_clients,
        )
        measured, changed = _changed_memory(method, server_with(memory=own()), hooks)
        keys = memories.keys(method.name, method.server_memory)
        for name, value in changed.items():
            new_memory[keys[name]] = memories.packed_as(memory[keys[name]], value)
        made: list[Any] = []
        if method_lib.overrides(method, "next_model"):
            new = memories.own(method.name, method.server_memory, new_memory)
            given = hooks.call(method, "next_model", server_with(memory=new))
            given = hook_results.change_of(method, "next_model", given)
            made = contract.check_like(method, "next_model", given.value, weights)
            measured = {**measured, **given.measurements}
        is_finite = numbers.all_finite([changed, made])
        said[f"{method.name}/{finishing.NOT_FINITE}"] = tf.logical_not(is_finite)
        for name, value in measured.items():
            said[f"{method.name}/{name}"] = tf.cast(value, tf.float32)
        weights = made or weights
    return new_memory, weights, said


def _changed_memory(
    method: method_lib.Method, server: method_lib.Server, hooks: hooks_lib.Hooks
) -> tuple[Mapping[str, Any], dict[str, Any]]:
    """Returns what `update_memory` measured, and its memories, by name."""
    if not method_lib.overrides(method, "update_memory"):
        return {}, {}
    given, old = hooks.call(method, "update_memory", server), server.old_memory
    given = hook_results.change_of(method, "update_memory", given)
    contract.check_names(method, "update_memory", "memory", given.value, [*old])
    return given.measurements, {
        name: contract.check_structure(
            method, "update_memory", f"memory {name!r}", value, old[name]
        )
        for name, value in given.value.items()
    }


class _Server(method_lib.Server):
    """A server with an error for reads of `num_clients` if the number is unknown."""

    def __getattribute__(self, name: str) -> Any:
        value = super().__getattribute__(name)
        if name == "num_clients" and value is None:
            raise contract.NeedError(
                "it needs the number of all clients, sampled or not: give num_clients,"
                " or a population (tff_reg.training.Population)."
            )
        return value
