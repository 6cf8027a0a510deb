"""The aggregation of updates and uploads: TFF's aggregators, `weigh`, the drift."""

from __future__ import annotations

import collections
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Optional

import numpy as np
import tensorflow as tf
from absl import logging

from tff_reg.lazy import tff
from tff_reg.methods import all_clients, contract, method as method_lib
from tff_reg.seam import tensorflow_internals
from tff_reg.training import (
    aggregators,
    hooks as hooks_lib,
    personal as personal_lib,
    traffic,
)
from tff_reg.training.aggregators import AggregationFactory, PrivateMeanFactory

_UNWEIGHTED = tff.aggregators.UnweightedAggregationFactory


def build_update_aggregator(
    model_aggregator: Optional[AggregationFactory],
    update_type: Any,
    *,
    is_sent: Optional[Sequence[bool]] = None,
    has_statistics: bool = False,
    needing_exact: Sequence[str] = (),
    weighing: Sequence[str] = (),
    weight_dtype: Any = np.float32,
) -> tff.templates.AggregationProcess:
    """Builds the aggregation of the clients' updates.

    `is_sent` tells of each tensor of an update whether clients send it; None sends all.
    Without `has_statistics`, training changes no non-trainable weights that are sent,
    and an aggregator gets the trainable ones only. `needing_exact` are the names of the
    methods that need exact sums of uploads, `weighing` of those that weigh clients.
    """
    factory: Any = tff.aggregators.MeanFactory()
    is_whole = getattr(update_type, "python_container", None) is (
        tff.learning.models.ModelWeights
    )
    if model_aggregator is not None:
        factory = _as_weighted(model_aggregator, weighing)
        if needing_exact and not aggregators.keeps_sums(model_aggregator):
            raise ValueError(_exact_needed(needing_exact[0]))
        if is_whole and not has_statistics:
            flat = tff.structure.flatten(update_type.trainable)
            is_sent = list(is_sent or [True] * len(flat))[: len(flat)]
            is_sent += [False] * len(tff.structure.flatten(update_type.non_trainable))
    sent_type = personal_lib.sent_type(update_type, is_sent)
    aggregator = factory.create(sent_type, tff.TensorType(weight_dtype))
    if model_aggregator is not None and is_whole and has_statistics:
        _check_noise(aggregators.adds_noise(model_aggregator, aggregator))
    aggregated_type = aggregator.next.type_signature.result.result.member
    if not sent_type.is_assignable_from(aggregated_type):
        raise TypeError(
            "The model_aggregator must keep the type of the clients' updates, "
            f"{sent_type}, but it returns {aggregated_type}."
        )
    return personal_lib.send_part(aggregator, update_type, is_sent)


def _check_noise(adds_noise: Optional[bool]) -> None:
    """Refuses noise on BatchNorm's statistics; warns if it is unknown."""
    if adds_noise:
        raise ValueError(
            "The aggregator adds noise, which can make running variances negative:"
            " use a network without BatchNorm, for example with norm='group', or an"
            " aggregator without noise."
        )
    if adds_noise is None:
        logging.warning(
            "It is unknown whether this aggregator adds noise, which can make"
            " BatchNorm's running variances negative; aggregators.declare says it."
        )


def _exact_needed(name: str) -> str:
    without = "averages_all_clients" if name == all_clients.NAME else "this method"
    return (
        f"{name} needs exact sums of the clients' uploads, and the aggregator is not"
        " known to give them: use the mean, or robust or compressed without zeroing and"
        " clipping (--noaggregator_zeroing --noaggregator_clipping), declare an"
        " aggregator that neither clips nor adds noise by aggregators.declare, or do"
        f" without {without}."
    )


def build_upload_aggregator(
    model_aggregator: Optional[AggregationFactory], uploads_type: tff.types.Type
) -> tff.templates.AggregationProcess:
    """Builds the summation of the clients' uploads."""
    if model_aggregator is None or not tff.structure.flatten(uploads_type):
        return _plain_sums(model_aggregator, uploads_type)
    try:
        mean = _as_weighted(model_aggregator).create(
            uploads_type, tff.TensorType(np.float32)
        )
    except (TypeError, ValueError) as error:
        raise ValueError(
            "The model_aggregator takes updates only, and clients also upload"
            f" {', '.join(tff.structure.name_list(uploads_type))}: use an aggregator"
            " for values of any type, or a method without uploads."
        ) from error

    as_weight = tff.tensorflow.computation(_as_float, np.int32)

    @tff.tensorflow.computation(uploads_type, np.int32)
    def times(uploads: Any, count: Any):
        # The mean over no clients may be NaN.
        def total(mean: tf.Tensor) -> tf.Tensor:
            return tf.math.multiply_no_nan(mean, tf.cast(count, mean.dtype))

        return tf.nest.map_structure(total, uploads)

    @tff.federated_computation(
        mean.initialize.type_signature.result, *_uploaded_types(uploads_type)
    )
    def next_fn(state: Any, uploads: Any, has_trained: Any):
        count = _number_of(model_aggregator, has_trained)
        weight = tff.federated_map(as_weight, has_trained)
        output = mean.next(state, uploads, weight)
        sums = tff.federated_map(times, (output.result, count))
        return tff.templates.MeasuredProcessOutput(
            output.state, tff.federated_zip((sums, count)), output.measurements
        )

    return tff.templates.AggregationProcess(mean.initialize, next_fn)


def _as_float(has_trained: Any) -> tf.Tensor:
    return tf.cast(has_trained, tf.float32)


def _uploaded_types(uploads_type: tff.types.Type) -> tuple[Any, Any]:
    return (
        tff.FederatedType(uploads_type, tff.CLIENTS),
        tff.FederatedType(np.int32, tff.CLIENTS),
    )


def _plain_sums(
    model_aggregator: Optional[AggregationFactory], uploads_type: tff.types.Type
) -> tff.templates.AggregationProcess:
    """Builds plain sums of the uploads, without an aggregator."""

    @tff.federated_computation
    def no_state():
        return tff.federated_value((), tff.SERVER)

    @tff.federated_computation(
        no_state.type_signature.result, *_uploaded_types(uploads_type)
    )
    def next_fn(state: Any, uploads: Any, has_trained: Any):
        if model_aggregator is None:
            sums = tff.federated_sum(tff.federated_zip((uploads, has_trained)))
        else:
            count = _number_of(model_aggregator, has_trained)
            sums = tff.federated_zip((tff.federated_sum(uploads), count))
        return tff.templates.MeasuredProcessOutput(
            state, sums, tff.federated_value((), tff.SERVER)
        )

    return tff.templates.AggregationProcess(no_state, next_fn)


def _number_of(model_aggregator: Any, has_trained: Any) -> Any:
    """Computes the count that `build_upload_aggregator` returns, at the server."""
    if isinstance(model_aggregator, PrivateMeanFactory):
        return tff.federated_value(model_aggregator.clients_per_round, tff.SERVER)
    trained = tff.federated_secure_sum(has_trained, 1)
    if not isinstance(model_aggregator, _UNWEIGHTED):
        return trained

    @tff.tensorflow.computation(np.int32, np.int32)
    def cohort_of(size: Any, trained: Any):
        return tf.where(trained > 0, size, 0)

    size = tff.federated_secure_sum(tff.federated_value(1, tff.CLIENTS), 1)
    return tff.federated_map(cohort_of, (size, trained))


def _as_weighted(
    factory: Any, weighing: Sequence[str] = ()
) -> tff.aggregators.WeightedAggregationFactory:
    """Returns the factory for weighted values; some take clients alike."""
    if not aggregators.takes_alike(factory):
        return factory
    if weighing:
        raise ValueError(
            f"{weighing[0]} weighs the clients, and the aggregator takes them alike:"
            " use a weighted one (mean, robust, compressed, secure), or do without this"
            " method."
        )
    if not isinstance(factory, _UNWEIGHTED):
        return factory
    return tff.aggregators.as_weighted_aggregator(factory)


# (shares, has_trained), at the clients -> their weights, and metrics at the server.
Weigh = Callable[[Any, Any], tuple[Any, Any]]


@tensorflow_internals.elementwise_equality(also_in_plain_graphs=True)
def weight(
    method: method_lib.Method,
    own: Mapping[str, Any],
    total: Mapping[str, Any],
    hooks: hooks_lib.Hooks = hooks_lib.PLAIN,
) -> Any:
    """Calls the hook."""
    given = hooks.call(method, "weigh", dict(own), dict(total))
    dtype = next(iter(own.values())).dtype
    return contract.check(method, "weigh", "the weight", given, dtype)


def build_weigh(
    methods: Sequence[method_lib.Method],
    share_type: tff.types.Type,
    dtype: Any,
) -> Optional[Weigh]:
    """Builds the weighing of a cohort; None if no method has the hook.

    Args:
      methods: The methods.
      share_type: The type of a client's share.
      dtype: The weights' data type.
    """
    own = [m for m in methods if method_lib.overrides(m, "weigh")]
    if not own:
        return None

    @tff.tensorflow.computation(share_type, share_type, tf.int32)
    def first(share: Any, total: Any, has_trained: Any):
        given = weight(own[0], share, total)
        given = tf.cast(given, dtype)
        return tf.where(has_trained > 0, given, tf.zeros_like(given))

    weight_type = first.type_signature.result

    @tff.tensorflow.computation(weight_type, weight_type, tf.int32)
    def or_alike(given: Any, total: Any, has_trained: Any):
        return tf.where(total > 0, given, tf.cast(has_trained, given.dtype))

    @tff.tensorflow.computation(weight_type, tf.int32)
    def metrics(total: Any, count: Any) -> dict[str, Any]:
        is_alike = tf.logical_and(tf.logical_not(total > 0), count > 0)
        return collections.OrderedDict(all_zero=tf.cast(is_alike, tf.int32))

    def weigh(shares: Any, has_trained: Any) -> tuple[Any, Any]:
        sums = tff.federated_broadcast(tff.federated_sum(shares))
        given = tff.federated_map(first, (shares, sums, has_trained))
        total = tff.federated_sum(given)
        weights = tff.federated_map(
            or_alike, (given, tff.federated_broadcast(total), has_trained)
        )
        count = tff.federated_sum(has_trained)
        return weights, tff.federated_map(metrics, (total, count))

    return weigh


def drift_groups(
    model: Any, personal: Optional[personal_lib.Personal]
) -> dict[str, list[int]]:
    """Returns which shared variables are in `all` and in each block of a network."""
    places = {v.ref(): index for index, v in enumerate(model.trainable_variables)}
    if personal:
        own = {index for index, each in enumerate(personal.trainable) if each}
        places = {ref: index for ref, index in places.items() if index not in own}
    groups = {"all": [*places.values()]}
    if network := getattr(model, "network", None):
        for name, block in zip(network.block_names, network.blocks):
            refs = [variable.ref() for variable in block.trainable_variables]
            if own := [places[ref] for ref in refs if ref in places]:
                groups[name] = own
    return groups


def with_drift(
    aggregator: tff.templates.AggregationProcess,
    update_type: tff.types.Type,
    groups: Mapping[str, Sequence[int]],
) -> tff.templates.AggregationProcess:
    """Adds to an aggregation how far the clients of a round drift apart, as `drift`.

    Of the updates u_i that are averaged with the weights p_i to their mean m: the norm
    sum_i p_i |u_i|, the cosine sum_i p_i <u_i, m> / (|u_i| |m|), and the divergence
    sqrt(sum_i p_i |u_i - m|^2) / |m|. Clients get m and send their own parts.
    """

    def vectors_of(update: Any) -> list[tf.Tensor]:
        weights = tf.nest.flatten(getattr(update, "trainable", update))
        flat = [tf.reshape(each, [-1]) for each in weights]
        return [tf.concat([flat[i] for i in own], axis=0) for own in groups.values()]

    parts_type = tff.types.to_type(
        collections.OrderedDict([(traffic.DRIFT_PARTS, update_type)])
    )

    @tff.tensorflow.computation(update_type)
    def as_part(mean: Any):
        return collections.OrderedDict([(traffic.DRIFT_PARTS, mean)])

    @tff.tensorflow.computation(update_type, parts_type)
    def of_client(update: Any, received: Any):
        parts: list[Any] = []
        for own, mean in zip(*map(vectors_of, (update, received[traffic.DRIFT_PARTS]))):
            norm, length = tf.norm(own), tf.norm(mean)
            cosine = tf.math.divide_no_nan(tf.reduce_sum(own * mean), norm * length)
            apart = tf.math.divide_no_nan(tf.norm(own - mean), length)
            parts.append(tf.stack([norm, cosine, apart**2]))
        # One tensor: a mean costs by tensors, not by numbers.
        return collections.OrderedDict([(traffic.DRIFT_PARTS, tf.stack(parts))])

    @tff.tensorflow.computation(of_client.type_signature.result)
    def of_all(clients: Any):
        found: dict[str, Any] = collections.OrderedDict()
        for index, name in enumerate(groups):
            norm, cosine, square = tf.unstack(clients[traffic.DRIFT_PARTS][index])
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
