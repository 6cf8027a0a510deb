"""What the server remembers for corrections, and what it does with it after a round."""

from __future__ import annotations

import collections

import tensorflow as tf
import tensorflow_federated as tff

from tff_reg.client import client_work as client_work_lib


def build_memory_update(
    training: client_work_lib.LocalTraining,
    client_work: client_work_lib.StatefulClientWork,
    weights_type: tff.types.Type,
    update_type: tff.types.Type,
) -> tff.Computation:
    """Builds the server half of a correction.

    Every memory grows by the sum of the clients' uploads divided by the number of all
    clients; the correction may have one of them added to the new model. After a round
    without an update, in which no client trained or the aggregate is not finite, all
    stays as it was.

    Args:
      training: The client's half of the method.
      client_work: The client work built from it.
      weights_type: The TFF type of the model's `ModelWeights`.
      update_type: The type of the clients' mean update.

    Returns:
      A computation from (memory, new weights, mean update, summed uploads, number of
      clients that trained) to the new memory and the weights with what is added.
    """
    memory_type = client_work.initial_memory.type_signature.result
    outputs = client_work.next.type_signature.result
    uploads_type = outputs.uploads.member
    correction, population = training.correction, training.population

    @tff.tensorflow.computation(
        memory_type, weights_type, update_type, uploads_type, tf.int32
    )
    def update_memory(memory, weights, mean_update, uploads, count):
        if isinstance(mean_update, tff.learning.models.ModelWeights):
            mean_update = mean_update.trainable
        is_finite = [tf.reduce_all(tf.math.is_finite(u)) for u in mean_update]
        has_update = tf.logical_and(tf.reduce_all(is_finite), count > 0)

        def if_updated(value):
            return tf.where(has_update, value, tf.zeros_like(value))

        sums = dict(uploads)
        for name in correction.from_update if correction else ():
            # The update is cloud - w_i.
            sums[name] = [
                if_updated(-tf.cast(count, u.dtype) * u) for u in mean_update
            ]
        new_memory = collections.OrderedDict(
            (name, [m + s / population.num_clients for m, s in zip(old, sums[name])])
            for name, old in memory.items()
        )
        if correction is not None and correction.added_to_model:
            added = new_memory[correction.added_to_model]
            weights = tff.learning.models.ModelWeights(
                [w + if_updated(a) for w, a in zip(weights.trainable, added)],
                weights.non_trainable,
            )
        return new_memory, weights

    return update_memory
