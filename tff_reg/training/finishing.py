"""What a client's round passes on, and its end: update, memories, uploads, metrics."""

from __future__ import annotations

import collections
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Optional

import tensorflow as tf

from tff_reg.lazy import tff
from tff_reg.methods import memories, method as method_lib
from tff_reg.training import hooks as hooks_lib, numbers, personal as personal_lib


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
      factor: float64, multiplies the arrays that the client uploads; () for nothing.
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
    factor: Any = ()


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


# The number of clients that are left out of the round because of non-finite numbers.
REJECTED = "rejected_clients"
# `<method>/not_finite`: the number of clients rejected for a method's own numbers.
NOT_FINITE = "not_finite"


class Finishing:
    """The end of a client's round: makes the client's output."""

    def __init__(
        self,
        model: Any,
        methods: Sequence[method_lib.Method],
        is_uniform: bool,
        hooks: hooks_lib.Hooks,
        personal: Optional[personal_lib.Personal],
    ):
        self._model, self._is_uniform, self._hooks = model, is_uniform, hooks
        self._by_name = {method.name: method for method in methods}
        self._personal = personal

    def finish(
        self, visit: Visit, progress: Progress, locals_: Mapping[str, Any]
    ) -> ClientOutput:
        """Ends the training."""
        finished = {
            name: self._finished(method, locals_[name], visit)
            for name, method in self._by_name.items()
        }
        update = self._update(visit, progress, finished)
        is_finite = numbers.all_finite(update)
        blamed = {
            name: tf.logical_not(
                self._is_sound(name, finished[name], progress, is_finite)
            )
            for name in blamed_names([*self._by_name.values()])
        }
        is_finite = tf.reduce_all([is_finite, *map(tf.logical_not, blamed.values())])
        uploads = _uploads(finished)
        if isinstance(progress.factor, tf.Tensor):

            def attacked(value: tf.Tensor) -> tf.Tensor:
                if value.shape.rank == 0:  # Weights and counts of a mean are honest.
                    return value
                return tf.cast(progress.factor, value.dtype) * value

            both = update, uploads
            update, uploads = tf.nest.map_structure(attacked, both)
        has_trained = tf.logical_and(is_finite, progress.num_examples > 0)
        return ClientOutput(
            result=tff.learning.templates.ClientResult(
                update=numbers.zero_unless(is_finite, update),
                update_weight=self._client_weight(progress, is_finite),
            ),
            metrics=self._metrics(progress, is_finite, blamed),
            client=self._memory(visit, finished, has_trained),
            uploads=numbers.zero_unless(has_trained, uploads),
            has_trained=tf.cast(has_trained, tf.int32),
            share=self._share(finished, has_trained),
        )

    def _finished(
        self, method: method_lib.Method, local: Any, visit: Visit
    ) -> method_lib.Finished:
        own = method_lib.Finished()
        if method_lib.overrides(method, "finish"):
            own = self._hooks.call(method, "finish", local)
        memory = memories.own(method.name, method.client_memory, visit.client)
        return hooks_lib.checked_finished(method, own, memory)

    def _memory(
        self,
        visit: Visit,
        finished: Mapping[str, method_lib.Finished],
        has_trained: tf.Tensor,
    ) -> dict[str, Any]:
        """Returns the client's new memories by key."""
        new: dict[str, Any] = {}
        for name, own in finished.items():
            method = self._by_name[name]
            keys = memories.keys(name, method.client_memory)
            for each, value in own.memory.items():
                key = keys[each]
                new[key] = memories.packed_as(visit.client[key], value)
        if self._personal:
            weights = tff.learning.models.ModelWeights.from_model(self._model)
            new[personal_lib.KEY] = self._personal.of(weights)
        return collections.OrderedDict(
            (name, numbers.where(has_trained, new.get(name, old), old))
            for name, old in visit.client.items()
        )

    def _update(
        self,
        visit: Visit,
        progress: Progress,
        finished: Mapping[str, method_lib.Finished],
    ) -> Any:
        """Returns a_i - w_i of weights (times the methods' scales) and statistics."""
        weights = tff.learning.models.ModelWeights.from_model(self._model)
        start = tf.nest.pack_sequence_as(visit.received.trainable, visit.start)
        before, after = (
            tff.learning.models.ModelWeights(trainable, numbers.floats(w.non_trainable))
            for trainable, w in (
                (start, visit.received),
                (weights.trainable, weights),
            )
        )
        update = tf.nest.map_structure(tf.subtract, before, after)
        for own in finished.values():
            if own.scale is not None:
                # The scale of a client without steps may be 1 / 0.
                one = tf.ones_like(own.scale)
                factor = tf.where(progress.num_steps > 0, own.scale, one)
                scaled = [factor * u for u in update.trainable]
                update = tff.learning.models.ModelWeights(scaled, update.non_trainable)
        return update if after.non_trainable else update.trainable

    def _share(
        self, finished: Mapping[str, method_lib.Finished], has_trained: tf.Tensor
    ) -> dict[str, Any]:
        """Returns the scalars for `weigh`, by name; zeros if the client did not train.

        They are those of the one method that has the hook.
        """
        for name, own in finished.items():
            if method_lib.overrides(self._by_name[name], "weigh"):
                share = collections.OrderedDict(sorted(own.share.items()))
                return numbers.zero_unless(has_trained, share)
        return collections.OrderedDict()

    def _is_sound(
        self,
        name: str,
        own: method_lib.Finished,
        progress: Progress,
        is_finite: tf.Tensor,
    ) -> tf.Tensor:
        """Whether a method's numbers are finite, or only broken weights broke them."""
        parts = numbers.all_finite([own.memory, own.upload, own.share])
        # Broken weights break memories and uploads, but not the sums of terms.
        is_sound = tf.logical_or(parts, tf.logical_not(is_finite))
        if f"{name}/term" in progress.sums:
            of_terms = numbers.all_finite(progress.sums[f"{name}/term"])
            is_sound = tf.logical_and(is_sound, of_terms)
        return is_sound

    def _client_weight(self, progress: Progress, is_finite: tf.Tensor) -> tf.Tensor:
        weight = 1.0 if self._is_uniform else tf.cast(progress.weighed, tf.float32)
        has_trained = tf.logical_and(is_finite, progress.num_examples > 0)
        return tf.where(has_trained, weight, 0.0)

    def _metrics(
        self, progress: Progress, is_finite: tf.Tensor, blamed: Mapping[str, tf.Tensor]
    ) -> dict[str, Any]:
        """Returns the client's metrics; those of a rejected client are empty."""
        model = self._model

        def reset_metrics():
            model.reset_metrics()
            return tf.no_op()

        tf.cond(is_finite, tf.no_op, reset_metrics)
        metrics = collections.OrderedDict(model.report_local_unfinalized_metrics())
        for name, total in progress.sums.items():
            examples = tf.cast(progress.num_examples, tf.float32)
            metrics[name] = [
                tf.where(is_finite, total, 0.0),
                tf.where(is_finite, examples, 0.0),
            ]
        for name, is_blamed in blamed.items():
            metrics[f"{name}/{NOT_FINITE}"] = tf.cast(is_blamed, tf.int32)
        metrics[REJECTED] = tf.cast(tf.logical_not(is_finite), tf.int32)
        return metrics


def blamed_names(methods: Sequence[method_lib.Method]) -> list[str]:
    """Returns the names of the methods that have a metric `<method>/not_finite`.

    They have a term, memories, uploads or shares, which may not be finite.
    """
    return [
        m.name
        for m in methods
        if m.client_memory
        or m.uploads
        or any(method_lib.overrides(m, hook) for hook in ("term", "weigh"))
    ]


def _uploads(finished: Mapping[str, method_lib.Finished]) -> dict[str, Any]:
    """Returns all uploads by `<method>/<name>`."""
    uploads = {
        f"{name}/{each}": value
        for name, own in finished.items()
        for each, value in own.upload.items()
    }
    return collections.OrderedDict(sorted(uploads.items()))
