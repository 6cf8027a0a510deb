"""Applies the aggregated update: an optimiser's step, and averaged statistics."""

from __future__ import annotations

import collections
from typing import Any, Optional

import tensorflow as tf

from tff_reg.lazy import tff
from tff_reg.training import client_work, numbers, optimizers

NO_OPTIMIZER = (
    "{} makes the new model itself, so a server optimiser has no place: leave it SGD"
    " with learning rate 1."
)


def build_finalizer(
    server_optimizer: tff.learning.optimizers.Optimizer,
    model_weights_type: tff.types.StructWithPythonType,
    stepping: Optional[str] = None,
) -> tff.learning.templates.FinalizerProcess:
    """Builds the finalizer of every process.

    The server optimiser acts on the trainable weights. Where the aggregate of these is
    not finite, they and its state stay as they are, which counts as
    `update_non_finite`, as in TFF's own finalizer. What a model has besides,
    BatchNorm's running statistics, is set to the clients' weighted average, if that is
    finite: an optimiser's step would have no meaning there. It is one TFF computation
    without a condition; TFF's, and another one for the statistics, take twice as long
    to build. The optimiser's hyperparameters are float32, beside float64 weights, too.

    Args:
      server_optimizer: The server optimiser; SGD with learning rate 1 sets the model
        to the weighted average of the clients' models.
      model_weights_type: The TFF type of the model's `ModelWeights`.
      stepping: The method that makes the new model itself, if there is one: another
        learning rate than 1 cannot be set then.

    Returns:
      A `tff.learning.templates.FinalizerProcess`. With weights that are not trainable
      its update is a `ModelWeights` (see `tff_reg.training.client_work.update_type`).
    """
    update_type = client_work.update_type(model_weights_type)
    has_statistics = update_type is not model_weights_type.trainable

    @tff.tensorflow.computation
    def initial_state() -> Any:
        specs = tff.types.type_to_tf_tensor_specs(model_weights_type.trainable)
        return server_optimizer.initialize(specs)

    state_type = initial_state.type_signature.result

    @tff.tensorflow.computation(state_type, model_weights_type, update_type)
    def apply(state: Any, weights: Any, update: Any):
        trainable, statistics = weights.trainable, weights.non_trainable
        if has_statistics:
            steps, update = update.non_trainable, update.trainable
            old = numbers.floats(statistics)
            averages = [s - step for s, step in zip(old, steps, strict=True)]
            new = iter(numbers.where(numbers.all_finite(steps), averages, old))
            statistics = [next(new) if s.dtype.is_floating else s for s in statistics]
        is_finite = numbers.all_finite(update)
        try:
            stepped = server_optimizer.next(state, trainable, update)
        except tf.errors.OperatorNotAllowedInGraphError:  # As by `if tensor:`.
            step = tf.autograph.to_graph(type(server_optimizer).next)  # pyright: ignore
            stepped = step(server_optimizer, state, trainable, update)
        new_state, new_trainable = numbers.where(is_finite, stepped, (state, trainable))
        measurements: dict[str, Any] = collections.OrderedDict(
            update_non_finite=tf.cast(tf.logical_not(is_finite), tf.int32)
        )
        new_weights = tff.learning.models.ModelWeights(new_trainable, statistics)
        return new_state, new_weights, measurements

    @tff.federated_computation
    def initialize():
        return tff.federated_eval(initial_state, tff.SERVER)

    @tff.federated_computation(
        initialize.type_signature.result,
        tff.FederatedType(model_weights_type, tff.SERVER),
        tff.FederatedType(update_type, tff.SERVER),
    )
    def next_fn(state: Any, weights: Any, update: Any):
        return tff.templates.MeasuredProcessOutput(
            *tff.federated_map(apply, (state, weights, update))
        )

    @tff.tensorflow.computation(state_type)
    def get_hparams(state: Any):
        return server_optimizer.get_hparams(state)

    @tff.tensorflow.computation(state_type, get_hparams.type_signature.result)
    def set_hparams(state: Any, hparams: Any):
        hparams = optimizers.check(hparams)
        if stepping:
            is_one = tf.equal(hparams["learning_rate"], 1.0)
            said = [NO_OPTIMIZER.format(stepping)]
            with tf.control_dependencies([tf.debugging.Assert(is_one, said)]):
                hparams["learning_rate"] = tf.identity(hparams["learning_rate"])
        return server_optimizer.set_hparams(state, hparams)

    return tff.learning.templates.FinalizerProcess(
        initialize, next_fn, get_hparams_fn=get_hparams, set_hparams_fn=set_hparams
    )
