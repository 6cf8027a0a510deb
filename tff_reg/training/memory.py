"""Computations of the memories and of the server's hooks, before and after a round."""

from __future__ import annotations

import collections
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Optional

import tensorflow as tf

from tff_reg.lazy import tff
from tff_reg.methods import memories, method as method_lib
from tff_reg.seam import tensorflow_internals
from tff_reg.training import (
    debugging,
    description as description_lib,
    numbers,
    server_hooks,
)


class Memories(NamedTuple):
    """Computations of the memories of a combination, by key.

    Attributes:
      initial_client: `ModelWeights` -> the memories of a client that never took part.
      initial_server: `ModelWeights` -> the server's first memories.
      sent: The server's memories -> the memories that clients receive.
    """

    initial_client: tff.Computation
    initial_server: tff.Computation
    sent: tff.Computation

    @property
    def client_type(self) -> tff.types.Type:
        """The type of a client's memories."""
        return self.initial_client.type_signature.result

    @property
    def server_type(self) -> tff.types.Type:
        """The type of the server's memories."""
        return self.initial_server.type_signature.result

    @property
    def sent_type(self) -> tff.types.Type:
        """The type of the memories that clients receive."""
        return self.sent.type_signature.result


def build_memories(
    methods: Sequence[method_lib.Method], weights_type: tff.types.Type
) -> Memories:
    """Builds the computations of the memories; empty structures without memories."""

    def build_initial(attribute: str) -> tff.Computation:
        @tff.tensorflow.computation(weights_type)
        def initial(weights: Any) -> method_lib.Memory:
            first: dict[str, Any] = collections.OrderedDict()
            with tensorflow_internals.elementwise_equality(also_in_plain_graphs=True):
                for m in methods:
                    first.update(memories.initial(m, attribute, weights.trainable))
            return first

        return initial

    initial_server = build_initial("server_memory")

    @tff.tensorflow.computation(initial_server.type_signature.result)
    def sent(memory: Any) -> method_lib.Memory:
        return collections.OrderedDict(
            (name, memory[name])
            for m in methods
            for name in memories.sent_keys(m.name, m.server_memory)
        )

    return Memories(build_initial("client_memory"), initial_server, sent)


def build_weights(
    hook: str, description: description_lib.Description, memory_type: tff.types.Type
) -> Optional[tff.Computation]:
    """Builds the computation that runs the methods' `broadcast` or `evaluated`."""
    training = description.training
    if not any(method_lib.overrides(m, hook) for m in training.methods):
        return None

    @tff.tensorflow.computation(memory_type, description.weights_type)
    def made(memory: Any, weights: Any):
        trainable = list(weights.trainable)
        own = functools.partial(server_hooks.weights_by, hook, training.methods)
        run = _eagerly(description, own, trainable)
        new = tff.learning.models.ModelWeights(
            run(memory, trainable), weights.non_trainable
        )
        is_pair = hook == "broadcast" and training.averaged_rounds
        return (new, weights) if is_pair else new

    return made


def _eagerly(
    description: description_lib.Description, function: Callable[..., Any], like: Any
) -> Callable[..., Any]:
    """Makes a function run eagerly if `debug_eager` is set; `like` shows its result."""
    if not description.training.debug_eager:
        return function
    spec = tf.nest.map_structure(tf.TensorSpec.from_tensor, like)
    return debugging.eagerly(function, spec, description.kept)


def build_memory_update(
    description: description_lib.Description,
    memory_type: tff.types.Type,
    uploads_type: tff.types.Type,
) -> tff.Computation:
    """Builds the computation that runs the methods' `update_memory` and `next_model`.

    After a round in which no client trained, or with a non-finite aggregate, the
    memories do not change.
    """
    weights_type, update_type = description.weights_type, description.update_type

    @tff.tensorflow.computation(
        memory_type, weights_type, weights_type, update_type, uploads_type, tf.int32
    )
    def update_memory(
        memory: Any, before: Any, new: Any, update: Any, uploads: Any, count: Any
    ):
        if isinstance(update, tff.learning.models.ModelWeights):
            update = update.trainable
        has_update = tf.logical_and(numbers.all_finite(update), count > 0)
        # The update is a_i - w_i.
        total = [-tf.cast(count, u.dtype) * u for u in update]
        total = numbers.zero_unless(has_update, total)
        memory = collections.OrderedDict(memory)
        old, after = list(before.trainable), list(new.trainable)
        run = _eagerly(
            description,
            functools.partial(server_hooks.after_round, description.training),
            (memory, after, description.said),
        )
        made = run(memory, old, after, total, uploads, count)
        memory, trainable, said = _kept(has_update, (memory, old, after), *made)
        weights = tff.learning.models.ModelWeights(trainable, new.non_trainable)
        return memory, weights, said

    return update_memory


def _kept(
    has_update: tf.Tensor,
    given: tuple[Any, Any, Any],
    memory: Any,
    weights: Any,
    said: Mapping[str, tf.Tensor],
):
    """Selects the methods' results if all are finite, else the old values."""
    old_memory, before, after = given
    broken = [value for value in said.values() if value.dtype == tf.bool]
    is_whole = tf.logical_not(tf.reduce_any([False, *broken]))
    kept_whole = tf.logical_and(has_update, is_whole)
    # Without clients the server optimiser's step still counts, as in TFF's processes.
    is_broken = tf.logical_and(has_update, tf.logical_not(is_whole))
    old = numbers.where(is_broken, before, after)
    counted: dict[str, Any] = collections.OrderedDict()
    for name, value in said.items():
        if value.dtype == tf.bool:
            value = tf.cast(value, tf.int32)
        counted[name] = numbers.zero_unless(has_update, value)
    return (
        numbers.where(kept_whole, memory, old_memory),
        numbers.where(kept_whole, weights, old),
        counted,
    )
