"""How far the clients of a round drift apart, measured on their updates.

Of the updates u_i that are averaged with the weights p_i to their mean m: the norm
sum_i p_i |u_i|, the cosine sum_i p_i <u_i, m> / (|u_i| |m|), and the divergence
sqrt(sum_i p_i |u_i - m|^2) / |m|. All follow from means over the clients: no update is
kept.
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

    @tff.tensorflow.computation(update_type)
    def of_client(update: Any):
        vectors = vectors_of(update)
        norms = tf.stack([tf.norm(each) for each in vectors])
        units = [
            tf.math.divide_no_nan(*pair) for pair in zip(vectors, tf.unstack(norms))
        ]
        # One tensor: a mean costs by tensors, not by numbers.
        parts = tf.concat([norms, norms**2, *units], axis=0)
        return collections.OrderedDict([(PARTS, parts)])

    @tff.tensorflow.computation(update_type, of_client.type_signature.result)
    def of_all(mean: Any, clients: Any):
        found: dict[str, Any] = collections.OrderedDict()
        vectors, count = vectors_of(mean), len(groups)
        sizes = [count, count, *(each.shape[0] for each in vectors)]
        norms, squares, *units = tf.split(clients[PARTS], sizes)
        for index, (name, vector) in enumerate(zip(groups, vectors)):
            length = tf.norm(vector)
            inner = tf.reduce_sum(units[index] * vector)
            variance = tf.maximum(squares[index] - length**2, 0.0)
            found[name] = collections.OrderedDict(
                norm=norms[index],
                cosine=tf.math.divide_no_nan(inner, length),
                divergence=tf.math.divide_no_nan(tf.sqrt(variance), length),
            )
        return found

    @tff.federated_computation(*aggregator.next.type_signature.parameter)
    def next_fn(state: Any, updates: Any, weights: Any):
        output = aggregator.next(state, updates, weights)
        clients = tff.federated_mean(tff.federated_map(of_client, updates), weights)
        drift = tff.federated_map(of_all, (output.result, clients))
        measurements = tff.federated_zip(collections.OrderedDict(drift=drift))
        return tff.templates.MeasuredProcessOutput(
            output.state, output.result, measurements
        )

    return tff.templates.AggregationProcess(aggregator.initialize, next_fn)
