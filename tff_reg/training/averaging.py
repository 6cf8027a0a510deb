"""Sends the mean of the last global models with the model, as FedGKD needs it."""

from __future__ import annotations

import collections
from typing import Any

import tensorflow as tf

from tff_reg.lazy import tff


def build_averaging_distributor(
    model_distributor: tff.learning.templates.DistributionProcess,
    received_type: tff.types.Type,
    num_models: int,
) -> tff.learning.templates.DistributionProcess:
    """Builds a distributor that remembers the models it has sent.

    The model itself goes through `model_distributor`, the mean of the last models, this
    round's among them, is broadcast beside it. In the first rounds it is the mean of
    those that there are.

    Args:
      model_distributor: How the model reaches the clients.
      received_type: The type of what a client receives: a structure of `model`, the
        model's `ModelWeights`, and one more entry, its trainable weights' mean.
      num_models: How many models the mean is of, at least 1.

    Returns:
      A `tff.learning.templates.DistributionProcess`. Its state holds the trainable
      weights of `num_models` - 1 earlier models.
    """
    model_name, mean_name = tff.structure.name_list(received_type)
    weights_type = received_type[model_name]
    num_earlier = num_models - 1

    @tff.tensorflow.computation
    def no_history() -> collections.OrderedDict[str, Any]:
        return collections.OrderedDict(
            earlier=[
                tf.zeros([num_earlier, *t.shape], t.dtype)
                for t in tff.structure.flatten(weights_type.trainable)
            ],
            count=tf.constant(0),
        )

    history_type = no_history.type_signature.result

    @tff.tensorflow.computation(history_type, weights_type)
    def add(history: Any, weights: Any) -> collections.OrderedDict[str, Any]:
        latest = [tf.expand_dims(w, 0) for w in weights.trainable]
        earlier = [
            tf.concat([new, old], axis=0)[:num_earlier]
            for new, old in zip(latest, history["earlier"])
        ]
        count = tf.minimum(history["count"] + 1, num_earlier)
        return collections.OrderedDict(earlier=earlier, count=count)

    @tff.tensorflow.computation(history_type, weights_type)
    def mean(history: Any, weights: Any):
        # Models that there have not been yet are zeros in the sum.
        total = [
            w + tf.reduce_sum(earlier, axis=0)
            for w, earlier in zip(weights.trainable, history["earlier"])
        ]
        return [t / tf.cast(history["count"] + 1, t.dtype) for t in total]

    @tff.federated_computation
    def init_fn():
        return tff.federated_zip(
            (model_distributor.initialize(), tff.federated_eval(no_history, tff.SERVER))
        )

    @tff.federated_computation(
        init_fn.type_signature.result, tff.FederatedType(weights_type, tff.SERVER)
    )
    def next_fn(state: Any, weights: Any):
        distributor_state, history = state
        output = model_distributor.next(distributor_state, weights)
        average = tff.federated_broadcast(tff.federated_map(mean, (history, weights)))
        received = tff.federated_zip(
            collections.OrderedDict([(model_name, output.result), (mean_name, average)])
        )
        new_history = tff.federated_map(add, (history, weights))
        return tff.templates.MeasuredProcessOutput(
            tff.federated_zip((output.state, new_history)),
            received,
            output.measurements,
        )

    return tff.learning.templates.DistributionProcess(init_fn, next_fn)
