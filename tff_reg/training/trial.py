"""A trial round of two random examples, which shows the needs of hooks."""

from __future__ import annotations

import collections
import contextlib
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tff_reg.lazy import tff
from tff_reg.methods import checks, memories, method as method_lib
from tff_reg.training import (
    client_states,
    local_round,
    local_training,
    needs as needs_lib,
)

_HOOKS_OF_CLIENTS = (
    "term",
    "gradient",
    "correct",
    "correct_clipped",
    "keep",
    "begin",
    "start",
    "finish",
    *("change_batch", "change_pass", "change_logits"),
)


def find_needs(
    model_fn: Callable[[], Any], training: local_training.LocalTraining
) -> needs_lib.Needs:
    """Runs the hooks of a client once, eagerly, and notes their reads.

    Args:
      model_fn: Makes the model, as `adaptation.adapt_model_fn` leaves it.
      training: What a client does.

    Returns:
      The values that the client's round has to provide.

    Raises:
      HookError: If a hook fails or returns a wrong value.
      NetworkNeededError: If a hook needs the network and the model does not show it.
      ClassifierNeededError: If a hook needs a classifier and the network is none.
    """
    if not any(map(_has_client_part, training.methods)):
        return needs_lib.Needs()
    # An init_scope stops tapes: all gradients would be missing.
    with contextlib.nullcontext() if tf.executing_eagerly() else tf.init_scope():
        return _run(needs_lib.Reads(model_fn()), training)


def _has_client_part(method: method_lib.Method) -> bool:
    declares = method.client_memory or method.uploads
    return bool(declares) or any(method_lib.does(method, h) for h in _HOOKS_OF_CLIENTS)


def _run(
    reads: needs_lib.Reads, training: local_training.LocalTraining
) -> needs_lib.Needs:
    names = frozenset(method.name for method in training.methods)
    everything = needs_lib.Needs(gradient_sum=True, keys=names, activations=names)
    trial = local_round.LocalRound(
        lambda: reads.model,
        training,
        tff.learning.ClientWeighting.NUM_EXAMPLES,
        everything,
        reads,
    )
    run(trial, reads.model, training)
    return _needs_of(reads, training)


def run(
    trial: local_round.LocalRound, model: Any, training: local_training.LocalTraining
) -> client_states.ClientOutput:
    """Runs a client's round of one step on two random examples.

    Args:
      trial: The round.
      model: A model like the round's; its weights are sent.
      training: What a client does.

    Returns:
      The client's output.
    """
    shows = checks.has_network(model)
    classes = model.network.num_classes if shows else None
    weights = [tf.identity(v) for v in model.trainable_variables]
    client: dict[str, Any] = collections.OrderedDict()
    server: dict[str, Any] = {}
    for method in training.methods:
        client.update(memories.initial(method, "client_memory", weights))
        sent = memories.sent_keys(method.name, method.server_memory)
        first = memories.initial(method, "server_memory", weights)
        server.update({name: first[name] for name in sent})
    received: dict[str, Any] = {
        local_round.MODEL: tff.learning.models.ModelWeights(
            weights, [tf.identity(v) for v in model.non_trainable_variables]
        )
    }
    if training.averaged_rounds:
        received[method_lib.AVERAGED] = weights
    dtype = tf.float64 if weights[0].dtype == tf.float64 else tf.float32
    hparams = collections.OrderedDict(
        (name, tf.constant(value, dtype))
        for name, value in training.optimizer.get_hparams(
            training.optimizer.initialize(tf.TensorSpec([], dtype))
        ).items()
    )
    visit, progress = trial.begin(hparams, 1.0, received, None, client, server)
    batch = None
    if shows or not trial.is_trial:
        batch = needs_lib.random_batch(model.input_spec, classes)
    key = tf.constant([1, 2], tf.int64)
    progress = trial.step(visit, progress, batch, lambda: key)
    return trial.finish(visit, progress)


def _needs_of(
    reads: needs_lib.Reads, training: local_training.LocalTraining
) -> needs_lib.Needs:
    def reading(name: str) -> set[str]:
        return {method for method, what in reads.found if what == name}

    def doing(*hooks: str) -> set[str]:
        return {
            m.name for m in training.methods for h in hooks if method_lib.does(m, h)
        }

    return needs_lib.Needs(
        class_counts=bool(reading("class_counts") | doing("change_logits")),
        gradient_sum=bool(reading("taken") | reading("scaled_gradient_sum")),
        keys=frozenset(reading("key") | doing("change_batch", "change_pass")),
        activations=frozenset(reading("activations")),
        references=tuple(sorted(reads.references)),
        measurements={name: tuple(own) for name, own in reads.measured.items()},
    )
