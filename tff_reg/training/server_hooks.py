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
    hooks as hooks_lib,
    local_training,
    numbers,
)

_AT_SERVER = ("update_memory", "next_model")


@tensorflow_internals.elementwise_equality(also_in_plain_graphs=True)
def broadcast(
    methods: Sequence[method_lib.Method],
    memory: Mapping[str, Any],
    weights: list[Any],
    hooks: hooks_lib.Hooks = hooks_lib.PLAIN,
) -> list[Any]:
    """Calls the hook `broadcast` of all methods."""
    for method in methods:
        if method_lib.overrides(method, "broadcast"):
            own = memories.own(method.name, method.server_memory, memory)
            sent = hooks.call(method, "broadcast", weights, own)
            weights = contract.check_like(method, "broadcast", sent, weights)
    return weights


def _acts_at_server(method: method_lib.Method) -> bool:
    return any(method_lib.overrides(method, hook) for hook in _AT_SERVER)


def all_finite(methods: Sequence[method_lib.Method]) -> dict[str, tf.Tensor]:
    """Returns `<method>/not_finite` for a round in which all numbers are finite."""
    return collections.OrderedDict(
        (f"{m.name}/{finishing.NOT_FINITE}", tf.constant(False))
        for m in methods
        if _acts_at_server(m)
    )


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
    """Calls the hooks `update_memory` and `next_model` of all methods."""
    population = training.population
    num_clients: Any = population.num_clients if population else None
    new_memory = collections.OrderedDict(memory)
    broken: dict[str, Any] = collections.OrderedDict()
    for method in filter(_acts_at_server, training.methods):
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
        changed = _changed_memory(method, server_with(memory=own()), hooks)
        keys = memories.keys(method.name, method.server_memory)
        for name, value in changed.items():
            new_memory[keys[name]] = memories.packed_as(memory[keys[name]], value)
        made: list[Any] = []
        if method_lib.overrides(method, "next_model"):
            new = memories.own(method.name, method.server_memory, new_memory)
            made = hooks.call(method, "next_model", server_with(memory=new))
            made = contract.check_like(method, "next_model", made, weights)
        is_finite = numbers.all_finite([changed, made])
        broken[f"{method.name}/{finishing.NOT_FINITE}"] = tf.logical_not(is_finite)
        weights = made or weights
    return new_memory, weights, broken


def _changed_memory(
    method: method_lib.Method, server: method_lib.Server, hooks: hooks_lib.Hooks
) -> dict[str, Any]:
    """Returns the memories that `update_memory` returned, by the method's names."""
    if not method_lib.overrides(method, "update_memory"):
        return {}
    given, old = hooks.call(method, "update_memory", server), server.old_memory
    contract.check_names(method, "update_memory", "memory", given, [*old])
    return {
        name: contract.check_structure(
            method, "update_memory", f"memory {name!r}", value, old[name]
        )
        for name, value in given.items()
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
