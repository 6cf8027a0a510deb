"""What the server remembers beside the model, and what becomes of it after a round."""

from __future__ import annotations

import collections
from typing import Any, Optional

import tensorflow as tf

from tff_reg.lazy import tff
from tff_reg.methods import method as method_lib
from tff_reg.training import client_work as client_work_lib, local_round, local_training


def build_broadcast(
    training: local_training.LocalTraining,
    memory_type: tff.types.Type,
    weights_type: tff.types.Type,
) -> Optional[tff.Computation]:
    """Builds what makes of the model what the distributor is given.

    Args:
      training: The client's half of the process.
      memory_type: The type of the server's memory.
      weights_type: The type of the model's `ModelWeights`.

    Returns:
      A computation from (memory, weights) to the weights that are sent, with the
      model's beside them where the distributor averages these; None if they are what is
      sent.
    """
    looking = [m for m in training.methods if method_lib.does(m, "broadcast")]
    if not looking:
        return None

    @tff.tensorflow.computation(memory_type, weights_type)
    def broadcast(memory: Any, weights: Any):
        trainable = list(weights.trainable)
        for method in looking:
            trainable = method.broadcast(trainable, memory)
        sent = tff.learning.models.ModelWeights(trainable, weights.non_trainable)
        return (sent, weights) if training.averaged_rounds else sent

    return broadcast


def build_memory_update(
    training: local_training.LocalTraining,
    client_work: client_work_lib.RememberingClientWork,
    weights_type: tff.types.Type,
    update_type: tff.types.Type,
) -> tff.Computation:
    """Builds what the server does when the model is new.

    After a round without an update, in which no client trained or the aggregate is not
    finite, all stays as it was.

    Args:
      training: The client's half of the process.
      client_work: The client work built from it.
      weights_type: The TFF type of the model's `ModelWeights`.
      update_type: The type of the clients' mean update.

    Returns:
      A computation from (memory, weights before, new weights, mean update, summed
      uploads, number of clients that trained) to the new memory and weights.
    """
    memory_type = client_work.initial_server_memory.type_signature.result
    uploads_type = client_work.next.type_signature.result.uploads.member
    # Methods that look at it have a population.
    num_clients = training.population.num_clients if training.population else 0

    @tff.tensorflow.computation(
        memory_type, weights_type, weights_type, update_type, uploads_type, tf.int32
    )
    def update_memory(
        memory: Any,
        before: Any,
        weights: Any,
        mean_update: Any,
        uploads: Any,
        count: Any,
    ):
        if isinstance(mean_update, tff.learning.models.ModelWeights):
            mean_update = mean_update.trainable
        is_finite = local_round.all_finite(mean_update)
        has_update = tf.logical_and(is_finite, count > 0)
        # The update is cloud - w_i.
        moved = [-tf.cast(count, u.dtype) * u for u in mean_update]
        moved = local_round.zero_unless(has_update, moved)
        new_memory: dict[str, Any] = {}
        new_weights = list(weights.trainable)
        for method in training.methods:
            server = method_lib.Server(
                before=list(before.trainable),
                weights=new_weights,
                memory=memory,
                moved=moved,
                uploads=uploads,
                count=count,
                num_clients=num_clients,
            )
            own, new_weights = method.update_server(server)
            new_memory.update(own)

        new_memory = collections.OrderedDict(
            (name, local_round.where(has_update, new_memory.get(name, old), old))
            for name, old in memory.items()
        )
        trainable = local_round.where(has_update, new_weights, list(weights.trainable))
        new_weights = tff.learning.models.ModelWeights(trainable, weights.non_trainable)
        return new_memory, new_weights

    return update_memory
