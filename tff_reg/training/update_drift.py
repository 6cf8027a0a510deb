"""How far the clients of a round drift apart, measured on their updates.

Of the updates u_i that are averaged with the weights p_i to their mean m: the norm
sum_i p_i |u_i|, the cosine sum_i p_i <u_i, m> / (|u_i| |m|), and the divergence
sqrt(sum_i p_i |u_i - m|^2) / |m|. Clients get m and send their own parts.
"""

from __future__ import annotations

import collections
from collections.abc import Mapping, Sequence
from typing import Any

from tff_reg.lazy import tf, tff

# Name of what clients send for the measurement alone.
PARTS = "for_drift"


def groups_of(model: Any) -> dict[str, list[int]]:
    """Returns which trainable variables are in `all` and in each block of a network."""
    places = {v.ref(): index for index, v in enumerate(model.trainable_variables)}
    groups = {"all": [*places.values()]}
    if network := getattr(model, "network", None):
        for name, block in zip(network.block_names, network.blocks):
            refs = [variable.ref() for variable in block.trainable_variables]
            if own := [places[ref] for ref in refs if ref in places]:
                groups[name] = own
    return groups


def measured(
    aggregator: tff.templates.AggregationProcess,
    update_type: tff.types.Type,
    groups: Mapping[str, Sequence[int]],
) -> tff.templates.AggregationProcess:
    """Adds the measurement `drift` to an aggregation, whose result stays the same."""

    def vectors_of(update: Any) -> list[tf.Tensor]:
        weights = tf.nest.flatten(getattr(update, "trainable", update))
        flat = [tf.reshape(each, [-1]) for each in weights]
        return [tf.concat([flat[i] for i in own], axis=0) for own in groups.values()]

    parts_type = tff.types.to_type(collections.OrderedDict([(PARTS, update_type)]))

    @tff.tensorflow.computation(update_type)
    def as_part(mean: Any):
        return collections.OrderedDict([(PARTS, mean)])

    @tff.tensorflow.computation(update_type, parts_type)
    def of_client(update: Any, received: Any):
        parts: list[Any] = []
        for own, mean in zip(*map(vectors_of, (update, received[PARTS]))):
            norm, length = tf.norm(own), tf.norm(mean)
            cosine = tf.math.divide_no_nan(tf.reduce_sum(own * mean), norm * length)
            apart = tf.math.divide_no_nan(tf.norm(own - mean), length)
            parts.append(tf.stack([norm, cosine, apart**2]))
        # One tensor: a mean costs by tensors, not by numbers.
        return collections.OrderedDict([(PARTS, tf.stack(parts))])

    @tff.tensorflow.computation(of_client.type_signature.result)
    def of_all(clients: Any):
        found: dict[str, Any] = collections.OrderedDict()
        for index, name in enumerate(groups):
            norm, cosine, square = tf.unstack(clients[PARTS][index])
            found[name] = collections.OrderedDict(
                norm=norm, cosine=cosine, divergence=tf.sqrt(square)
            )
        return found

    @tff.federated_computation(*aggregator.next.type_signature.parameter)
    def next_fn(state: Any, updates: Any, weights: Any):
        output = aggregator.next(state, updates, weights)
        mean = tff.federated_broadcast(tff.federated_map(as_part, output.result))
        parts = tff.federated_map(of_client, (updates, mean))
        drift = tff.federated_map(of_all, tff.federated_mean(parts, weights))
        measurements = tff.federated_zip(collections.OrderedDict(drift=drift))
        return tff.templates.MeasuredProcessOutput(
            output.state, output.result, measurements
        )

    return tff.templates.AggregationProcess(aggregator.initialize, next_fn)
