"""The function that a client runs: its round over its data set."""

from __future__ import annotations

import collections
import functools
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tff_reg.lazy import tff
from tff_reg.training import (
    client_states,
    data_forms,
    debugging,
    local_round as local_round_lib,
    local_training,
    needs as needs_lib,
)


def build_client_update(
    model_fn: Callable[[], Any],
    training: local_training.LocalTraining,
    weighting: tff.learning.ClientWeighting,
    needs: needs_lib.Needs,
) -> Callable[..., Any]:
    """Builds the `tf.function` that a client runs."""
    local_round = local_round_lib.LocalRound(model_fn, training, weighting, needs)
    is_whole = isinstance(training.data_form, data_forms.WholeClientData)
    needs_autograph = not (is_whole and local_round.has_network)
    return tf.function(_build(local_round, training, needs), autograph=needs_autograph)


def build_eager_client_update(
    model_fn: Callable[[], Any],
    training: local_training.LocalTraining,
    weighting: tff.learning.ClientWeighting,
    needs: needs_lib.Needs,
    spec: Any,
    kept: list[Any],
) -> Callable[..., Any]:
    """Builds the function that a client runs, as `build_client_update`, but eagerly."""

    def update(*arguments: Any) -> client_states.ClientOutput:
        own = local_round_lib.LocalRound(model_fn, training, weighting, needs)
        return as_tensors(_build(own, training, needs)(*arguments))

    return debugging.eagerly(update, spec, kept)


def as_tensors(output: client_states.ClientOutput) -> client_states.ClientOutput:
    """Converts an output's values to tensors, and its metrics to an OrderedDict."""
    output = output._replace(metrics=collections.OrderedDict(output.metrics))
    return tf.nest.map_structure(tf.convert_to_tensor, output)


def _build(
    local_round: local_round_lib.LocalRound,
    training: local_training.LocalTraining,
    needs: needs_lib.Needs,
) -> Callable[..., Any]:
    """Builds the Python function of a client's round, traced or eager."""
    form = training.data_form
    # Only models other than `LearningModel`s need AutoGraph; its search for code to
    # convert takes a quarter of the tracing time.
    as_written = tf.autograph.experimental.do_not_convert
    run, step = form.run, local_round.step
    if local_round.has_network:
        run, step = as_written(run), as_written(step)

    def client_update(
        hparams: Any,
        round_num: Any,
        rate_factor: Any,
        received: Any,
        data: Any,
        client: Any,
        server: Any,
    ):
        if needs.class_counts:
            # A data set may give different examples in every pass, but training has to
            # use the examples that were counted.
            data = data.cache()
        visit, progress = as_written(local_round.begin)(
            hparams, round_num, rate_factor, received, data, client, server
        )

        def train_on_element(state: Any, element: Any):
            state = as_written(local_round.enter)(state, element)
            return run(functools.partial(step, visit), state, element)

        if isinstance(form, data_forms.WholeClientData):
            progress = train_on_element(progress, as_written(form.element)(data))
        else:
            batches = data.filter(as_written(_has_examples))
            for batch in iter(batches):
                progress = train_on_element(progress, batch)
        return as_written(local_round.finish)(visit, progress)

    return client_update


def _has_examples(*batch: Any) -> tf.Tensor:
    """Whether a batch is not empty; oneDNN's convolutions crash on empty ones."""
    parts = [part for part in tf.nest.flatten(batch) if part.shape.rank != 0]
    return tf.reduce_all([tf.shape(part)[0] > 0 for part in parts])
