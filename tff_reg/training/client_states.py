"""What a client's round passes from one function to the next."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple


class Visit(NamedTuple):
    """What a client has before it trains.

    Attributes:
      received: The model's `ModelWeights`.
      start: The trainable weights that the client begins with.
      client: The client's memories, by name.
      server: The memories that the server sent, by name.
      class_counts: int32 [classes], or None where no method needs them.
      hparams: The client optimiser's, before any decay.
      decayed: The same with the round's learning rate.
    """

    received: Any
    start: Sequence[Any]
    client: Mapping[str, Sequence[Any]]
    server: Mapping[str, Any]
    class_counts: Any
    hparams: Mapping[str, Any]
    decayed: Mapping[str, Any]


class Progress(NamedTuple):
    """How far a client's training is.

    Attributes:
      optimizer: The optimiser's state.
      num_examples: int64, examples trained on, counted in every epoch.
      num_steps: int32, steps taken.
      relative_size: float64, wt_i.
      sums: Measurements, summed over examples, by name.
      gradient_sum: The sum of the gradients that the optimiser followed, one tensor a
        weight, where a method needs it and how far the client moved does not say it.
      kept: What each method keeps, by its name.
    """

    optimizer: Any
    num_examples: Any
    num_steps: Any
    relative_size: Any
    sums: Mapping[str, Any]
    gradient_sum: Sequence[Any]
    kept: Mapping[str, Any]


class ClientOutput(NamedTuple):
    """What a client gives.

    Attributes:
      result: A `tff.learning.templates.ClientResult`.
      metrics: Unfinalised, by name.
      client: The client's new memories, by name.
      uploads: What is summed for the server's memory, by name.
      has_trained: 1 or 0, int32.
    """

    result: Any
    metrics: Mapping[str, Any]
    client: Mapping[str, Any]
    uploads: Mapping[str, Any]
    has_trained: Any
