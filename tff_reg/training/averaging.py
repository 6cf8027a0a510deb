"""Distribution of the mean of the last global models with the model, for FedGKD."""

from __future__ import annotations

import collections
from typing import Any

import tensorflow as tf

from tff_reg.lazy import tff


def build_averaging_distributor(
    model_distributor: tff.learning.templates.DistributionProcess,
    received_type: tff.types.Type,
    num_models: int,
    looks_ahead: bool = False,
) -> tff.learning.templates.DistributionProcess:
    """Builds a distributor that also sends the mean of the last models.

    The model itself goes through `model_distributor`; the mean, which includes this
    round's model, is broadcast. A model equal to the previous one (no client trained)
    is not counted again.
    """
    model_name, mean_name = tff.structure.name_list(received_type)
    weights_type = received_type[model_name]
    given_type = weights_type
    if looks_ahead:
        given_type = tff.types.to_type((weights_type, weights_type))
    history_of = _History(weights_type, num_models)

    @tff.federated_computation
    def init_fn():
        history = tff.federated_eval(history_of.nothing, tff.SERVER)
        return tff.federated_zip((model_distributor.initialize(), history))

    @tff.federated_computation(
        init_fn.type_signature.result, tff.FederatedType(given_type, tff.SERVER)
    )
    def next_fn(state: Any, given: Any):
        distributor_state, history = state
        leaving, weights = given if looks_ahead else (given, given)
        output = model_distributor.next(distributor_state, leaving)
        new_history = tff.federated_map(history_of.add, (history, weights))
        average = tff.federated_broadcast(
            tff.federated_map(history_of.mean, new_history)
        )
        received = tff.federated_zip(
            collections.OrderedDict([(model_name, output.result), (mean_name, average)])
        )
        return tff.templates.MeasuredProcessOutput(
            tff.federated_zip((output.state, new_history)),
            received,
            output.measurements,
        )

    return tff.learning.templates.DistributionProcess(init_fn, next_fn)


class _History:
    """The trainable weights of the last models, the newest first, and their number.

    Attributes:
      nothing: () -> history without models.
      add: (history, `ModelWeights`) -> history with these weights as the newest.
      mean: history -> mean weights.
    """

    def __init__(self, weights_type: Any, num_models: int):
        @tff.tensorflow.computation
        def nothing() -> collections.OrderedDict[str, Any]:
            return collections.OrderedDict(
                models=[
                    tf.zeros([num_models, *t.shape], t.dtype)
                    for t in tff.structure.flatten(weights_type.trainable)
                ],
                count=tf.constant(0),
            )

        history_type = nothing.type_signature.result

        @tff.tensorflow.computation(history_type, weights_type)
        def add(history: Any, weights: Any) -> collections.OrderedDict[str, Any]:
            pairs = list(zip(weights.trainable, history["models"]))
            is_same = tf.reduce_all(
                [tf.reduce_all(tf.equal(w, old[0])) for w, old in pairs]
            )
            is_new = tf.logical_or(
                tf.equal(history["count"], 0), tf.logical_not(is_same)
            )
            models = [
                tf.where(is_new, tf.concat([[w], old], axis=0)[:num_models], old)
                for w, old in pairs
            ]
            count = history["count"] + tf.cast(is_new, tf.int32)
            return collections.OrderedDict(
                models=models, count=tf.minimum(count, num_models)
            )

        @tff.tensorflow.computation(history_type)
        def mean(history: Any):
            # Unused entries of the history are zeros.
            total = [m[0] + tf.reduce_sum(m[1:], axis=0) for m in history["models"]]
            return [t / tf.cast(history["count"], t.dtype) for t in total]

        self.nothing, self.add, self.mean = nothing, add, mean
