"""The values that the functions of a client's round pass to each other."""

from __future__ import annotations

import collections
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from tff_reg.lazy import tf


class Visit(NamedTuple):
    """A client before it trains.

    Attributes:
      received: The model's `ModelWeights`.
      start: The trainable weights that the client begins with.
      client: The client's memories, by key.
      server: The memories that the server sent, by key.
      class_counts: int32 [classes], or None if no method needs them.
      round_num: The round, int32, from 1.
      hparams: The client optimiser's hyperparameters, before any decay.
      decayed: The hyperparameters with the round's decayed learning rate.
    """

    received: Any
    start: Sequence[Any]
    client: Mapping[str, Sequence[Any]]
    server: Mapping[str, Any]
    class_counts: Any
    round_num: Any
    hparams: Mapping[str, Any]
    decayed: Mapping[str, Any]


class Progress(NamedTuple):
    """The progress of a client's training.

    Attributes:
      optimizer: The optimiser's state.
      num_examples: int64, examples trained on, counted in every epoch.
      weighed: int64, the examples that the client has (of full batches, if shorter ones
        are dropped); of batched data, which do not show them, those trained on.
      num_steps: int32, steps taken.
      relative_size: float64, wt_i.
      epoch_steps: int32, steps of an epoch; 1 before they are known.
      total_steps: int32, steps of the round; 1 before they are known.
      sums: Measurements, summed over examples, by name.
      gradient_sum: The sum of the gradients that the optimiser used, one tensor per
        weight; empty if no method needs it or the client's delta determines it.
      uncorrected_sum: The sum of the gradients before any correction, one tensor per
        weight; empty if no method needs it.
      kept: Each method's state, by the method's name.
    """

    optimizer: Any
    num_examples: Any
    weighed: Any
    num_steps: Any
    relative_size: Any
    epoch_steps: Any
    total_steps: Any
    sums: Mapping[str, Any]
    gradient_sum: Sequence[Any]
    uncorrected_sum: Sequence[Any]
    kept: Mapping[str, Any]


class ClientOutput(NamedTuple):
    """The output of a client's round.

    Attributes:
      result: A `tff.learning.templates.ClientResult`.
      metrics: Unfinalised metrics, by name.
      client: The client's new memories, by key.
      uploads: The methods' uploads, by `<method>/<name>`.
      has_trained: Whether the client trained: 1 or 0, int32.
      share: What `weigh` needs of the client and of the cohort, by name.
    """

    result: Any
    metrics: Mapping[str, Any]
    client: Mapping[str, Any]
    uploads: Mapping[str, Any]
    has_trained: Any
    share: Mapping[str, Any]


def as_tensors(output: ClientOutput) -> ClientOutput:
    """Converts an output's values to tensors, and its metrics to an OrderedDict."""
    output = output._replace(metrics=collections.OrderedDict(output.metrics))
    return tf.nest.map_structure(tf.convert_to_tensor, output)
