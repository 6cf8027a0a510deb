"""Runs functions of a process eagerly, so that a debugger works inside hooks.

`print`, `breakpoint()`, `if` on values and NumPy work there as in any Python code. It
is slow, and only possible in the Python process that built the TFF process.
"""

from __future__ import annotations

import collections
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tff_reg.lazy import tff
from tff_reg.runtime import python_calls
from tff_reg.training import (
    client_states,
    local_round,
    local_training,
    needs as needs_lib,
    trial,
)


def eagerly(
    function: Callable[..., Any], spec: Any, kept: list[Any]
) -> Callable[..., Any]:
    """Wraps a function so that a graph calls it eagerly.

    Args:
      function: Function from structures of tensors and `tf.data.Dataset`s to a
        structure of tensors.
      spec: The `tf.TensorSpec`s of that structure.
      kept: List for objects that must live as long as the graph runs.

    Returns:
      A function of the same arguments, to be called in a graph.
    """

    def call(*arguments: Any) -> Any:
        flat = tf.nest.flatten(arguments)
        elements = [
            value.element_spec if isinstance(value, tf.data.Dataset) else None
            for value in flat
        ]

        def run(*tensors: Any) -> list[Any]:
            values = [
                tensor
                if element is None
                else tf.data.experimental.from_variant(tensor, element)
                for tensor, element in zip(tensors, elements)
            ]
            result = function(*tf.nest.pack_sequence_as(arguments, values))
            tf.nest.assert_same_structure(result, spec)
            return [tf.convert_to_tensor(value) for value in tf.nest.flatten(result)]

        inputs = [
            value if element is None else tf.data.experimental.to_variant(value)
            for value, element in zip(flat, elements)
        ]
        results, made = python_calls.add(run, inputs, tf.nest.flatten(spec))
        kept.append(made)
        return tf.nest.pack_sequence_as(spec, results)

    return call


def build_client_update(
    model_fn: Callable[[], Any],
    training: local_training.LocalTraining,
    weighting: tff.learning.ClientWeighting,
    needs: needs_lib.Needs,
    spec: Any,
    kept: list[Any],
) -> Callable[..., Any]:
    """As `client_update.build_client_update`, running eagerly.

    Args:
      model_fn: Makes the model, for each visit anew.
      training: What the client does.
      weighting: The clients' weights.
      needs: What the methods' hooks need.
      spec: The result of `output_spec`.
      kept: As for `eagerly`.

    Returns:
      A function from the arguments of `LocalRound.begin` to a `ClientOutput`.
    """

    def update(
        hparams: Any, rate: Any, received: Any, data: Any, client: Any, server: Any
    ) -> client_states.ClientOutput:
        own = local_round.LocalRound(model_fn, training, weighting, needs)
        form = training.data_form
        visit, progress = own.begin(hparams, rate, received, data, client, server)

        def step(progress: Any, batch: Any, compute_key: Callable[[], Any]) -> Any:
            return own.step(visit, progress, batch, compute_key)

        for element in data:
            if all(tf.size(part) > 0 for part in tf.nest.flatten(element)):
                progress = own.enter(progress, element)
                progress = form.run(step, progress, element)
        return own.finish(visit, progress)

    return eagerly(lambda *arguments: _tensors(update(*arguments)), spec, kept)


def output_spec(
    model_fn: Callable[[], Any],
    training: local_training.LocalTraining,
    needs: needs_lib.Needs,
) -> Any:
    """Returns the `tf.TensorSpec`s of a client's output, from a trial round.

    Args:
      model_fn: Makes the model.
      training: What the client does.
      needs: What the methods' hooks need.

    Returns:
      A `ClientOutput` of them.
    """
    with tf.init_scope():
        uniform = tff.learning.ClientWeighting.UNIFORM
        own = local_round.LocalRound(model_fn, training, uniform, needs)
        output = _tensors(trial.run(own, model_fn(), training))
    return tf.nest.map_structure(tf.TensorSpec.from_tensor, output)


def _tensors(output: client_states.ClientOutput) -> client_states.ClientOutput:
    """The output with tensors only, in structures that keep their order."""
    output = output._replace(metrics=collections.OrderedDict(output.metrics))
    return tf.nest.map_structure(tf.convert_to_tensor, output)
