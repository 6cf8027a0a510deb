"""Applies the aggregated update: an optimiser's step, and averaged statistics."""

from __future__ import annotations

import collections
from typing import Any

import tensorflow as tf
import tensorflow_federated as tff

from tff_reg.training import local_round


def _reject_non_finite(state: Any, update: Any) -> tuple[tf.Tensor, dict[str, Any]]:
    """Says what TFF's finalizer says by default, in fewer operations."""
    del state
    is_rejected = tf.logical_not(local_round.all_finite(update))
    measured: dict[str, Any] = collections.OrderedDict(
        update_non_finite=tf.cast(is_rejected, tf.int32)
    )
    return is_rejected, measured


def build_finalizer(
    server_optimizer: tff.learning.optimizers.Optimizer,
    model_weights_type: tff.types.StructWithPythonType,
) -> tff.learning.templates.FinalizerProcess:
    """Builds the finalizer of every process.

    The server optimiser acts on the trainable weights, by TFF's own finalizer (which
    leaves them alone where the aggregate is not finite, and counts that as
    `update_non_finite`). What a model has besides, BatchNorm's running statistics, is
    set to the clients' weighted average: an optimiser's step would have no meaning
    there.

    Args:
      server_optimizer: The server optimiser; SGD with learning rate 1 sets the model
        to the weighted average of the clients' models.
      model_weights_type: The TFF type of the model's `ModelWeights`.

    Returns:
      A `tff.learning.templates.FinalizerProcess`. With weights that are not trainable
      its update is a `ModelWeights` (see `tff_reg.training.client_work.update_type`).
    """
    trainable_finalizer = tff.learning.templates.build_apply_optimizer_finalizer(
        server_optimizer, model_weights_type, _reject_non_finite
    )
    if not tff.structure.flatten(model_weights_type.non_trainable):
        return trainable_finalizer
    statistics_type = model_weights_type.non_trainable

    @tff.tensorflow.computation(statistics_type, statistics_type)
    def average_statistics(statistics: Any, update: Any):
        def average(old: tf.Tensor, step: tf.Tensor) -> tf.Tensor:
            return tf.where(tf.reduce_all(tf.math.is_finite(step)), old - step, old)

        return tf.nest.map_structure(average, statistics, update)

    @tff.federated_computation(
        trainable_finalizer.initialize.type_signature.result,
        tff.FederatedType(model_weights_type, tff.SERVER),
        tff.FederatedType(model_weights_type, tff.SERVER),
    )
    def next_fn(state: Any, weights: Any, update: Any):
        output = trainable_finalizer.next(state, weights, update.trainable)
        statistics = tff.federated_map(
            average_statistics, (weights.non_trainable, update.non_trainable)
        )
        new_weights = tff.federated_zip(
            tff.learning.models.ModelWeights(output.result.trainable, statistics)
        )
        return tff.templates.MeasuredProcessOutput(
            output.state, new_weights, output.measurements
        )

    return tff.learning.templates.FinalizerProcess(
        trainable_finalizer.initialize,
        next_fn,
        get_hparams_fn=trainable_finalizer.get_hparams,
        set_hparams_fn=trainable_finalizer.set_hparams,
    )
