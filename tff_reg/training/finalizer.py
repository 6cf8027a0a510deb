"""The finalizer: the server optimiser's step, and averaged statistics."""

from __future__ import annotations

import collections
from typing import Any, Optional

import tensorflow as tf

from tff_reg.lazy import tff
from tff_reg.seam import tensorflow_internals
from tff_reg.training import description, numbers, optimizers

NO_OPTIMIZER = (
    "{} makes the new model itself, without a server optimiser: use SGD with learning"
    " rate 1 in all rounds, the default."
)


def build_finalizer(
    server_optimizer: tff.learning.optimizers.Optimizer,
    model_weights_type: tff.types.StructWithPythonType,
    server_step_owner: Optional[str] = None,
) -> tff.learning.templates.FinalizerProcess:
    """Builds the finalizer of every process.

    The server optimiser updates the trainable weights. If their aggregate is not
    finite, the weights and the optimiser's state stay unchanged, and the measurement
    `update_non_finite` is 1, as in TFF's own finalizer. BatchNorm's running statistics
    are set to the clients' weighted average if that is finite. All is one TFF
    computation without a condition, which builds in half the time of TFF's. The
    optimiser's hyperparameters are float64 if all trainable weights are.

    Args:
      server_optimizer: The server optimiser; SGD with learning rate 1 sets the model
        to the weighted average of the clients' models.
      model_weights_type: The TFF type of the model's `ModelWeights`.
      server_step_owner: The name of a method that makes the new model itself, or None.
        With such a method the learning rate must be 1.

    Returns:
      A `tff.learning.templates.FinalizerProcess`. If the model has statistics, its
      update is a `ModelWeights` (see `description.update_type`).
    """
    applying = _Applying(server_optimizer, model_weights_type)
    state_type = applying.initial_state.type_signature.result

    @tff.federated_computation
    def initialize():
        return tff.federated_eval(applying.initial_state, tff.SERVER)

    @tff.federated_computation(
        initialize.type_signature.result,
        *(tff.FederatedType(each, tff.SERVER) for each in applying.types),
    )
    def next_fn(state: Any, weights: Any, update: Any):
        return tff.templates.MeasuredProcessOutput(
            *tff.federated_map(applying.apply, (state, weights, update))
        )

    @tff.tensorflow.computation(state_type)
    def get_hparams(state: Any):
        return server_optimizer.get_hparams(state)

    @tff.tensorflow.computation(state_type, get_hparams.type_signature.result)
    def set_hparams(state: Any, hparams: Any):
        hparams = optimizers.check(hparams)
        if server_step_owner:
            is_one = tf.equal(hparams["learning_rate"], 1.0)
            said = [NO_OPTIMIZER.format(server_step_owner)]
            with tf.control_dependencies([tf.debugging.Assert(is_one, said)]):
                hparams["learning_rate"] = tf.identity(hparams["learning_rate"])
        return server_optimizer.set_hparams(state, hparams)

    return tff.learning.templates.FinalizerProcess(
        initialize, next_fn, get_hparams_fn=get_hparams, set_hparams_fn=set_hparams
    )


class _Applying:
    """The optimiser's first state, and the step from an aggregate to a new model.

    Attributes:
      types: The types of the weights and of the update.
      initial_state: () -> state, unplaced.
      apply: (state, weights, update) -> (state, weights, measurements), unplaced.
    """

    def __init__(self, optimizer: Any, weights_type: Any):
        update_type = description.update_type(weights_type)
        has_statistics = update_type is not weights_type.trainable

        @tff.tensorflow.computation
        def initial_state() -> Any:
            specs = tff.types.type_to_tf_tensor_specs(weights_type.trainable)
            state = optimizer.initialize(specs)
            is_double = all(s.dtype == tf.float64 for s in tf.nest.flatten(specs))
            dtype = tf.float64 if is_double else tf.float32
            hparams = collections.OrderedDict(
                (name, tf.constant(value, dtype) if isinstance(value, float) else value)
                for name, value in optimizer.get_hparams(state).items()
            )
            return optimizer.set_hparams(state, hparams)

        state_type = initial_state.type_signature.result

        @tff.tensorflow.computation(state_type, weights_type, update_type)
        def apply(state: Any, weights: Any, update: Any):
            trainable, statistics = weights.trainable, weights.non_trainable
            if has_statistics:
                statistics = _averaged(statistics, update.non_trainable)
                update = update.trainable
            is_finite = numbers.all_finite(update)
            stepped = _stepped(optimizer, state, trainable, update)
            unmoved: Any = (_skipped(optimizer, state), trainable)
            new_state, trainable = numbers.where(is_finite, stepped, unmoved)
            measurements: dict[str, Any] = collections.OrderedDict(
                update_non_finite=tf.cast(tf.logical_not(is_finite), tf.int32)
            )
            weights = tff.learning.models.ModelWeights(trainable, statistics)
            return new_state, weights, measurements

        self.types = (weights_type, update_type)
        self.initial_state, self.apply = initial_state, apply


def _skipped(optimizer: Any, state: Any) -> Any:
    """Returns the optimiser's state after a round without a step."""
    has_schedule = hasattr(optimizer, "skipped")
    return optimizer.skipped(state) if has_schedule else state


def _averaged(statistics: Any, steps: Any) -> list[Any]:
    """Returns the clients' mean statistics; the old ones if the mean is not finite."""
    old = numbers.floats(statistics)
    averages = [s - step for s, step in zip(old, steps, strict=True)]
    new = iter(numbers.where(numbers.all_finite(steps), averages, old))
    return [next(new) if s.dtype.is_floating else s for s in statistics]


@tensorflow_internals.elementwise_equality(also_in_plain_graphs=True)
def _stepped(optimizer: Any, state: Any, trainable: Any, update: Any) -> Any:
    try:
        return optimizer.next(state, trainable, update)
    except tf.errors.OperatorNotAllowedInGraphError:  # For example by `if tensor:`.
        step = tf.autograph.to_graph(type(optimizer).next)  # pyright: ignore
        return step(optimizer, state, trainable, update)
