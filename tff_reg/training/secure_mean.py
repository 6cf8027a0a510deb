"""The mean of clients' updates by secure summation."""

from __future__ import annotations

import collections
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from tff_reg.lazy import tff


class SecureMeanFactory(tff.aggregators.WeightedAggregationFactory):
    """The mean of `tff.learning.robust_aggregator` by secure summation.

    Secure sums take integers in a range, so clients' values need a bound.
    `tff.learning.secure_aggregator` estimates a bound of weight times update; the bound
    grows over rounds and cuts off larger values. It also cuts weights at 2**20 - 1, but
    not the updates multiplied by them. Here a client divides its update by the clipping
    norm and its weight by `largest_weight`: both are at most 1, with 32 bits.
    """

    def __init__(
        self,
        *,
        largest_weight: float,
        zeroing: bool = True,
        clipping: bool = True,
    ):
        """Makes the factory.

        Args:
          largest_weight: The largest weight of a client; larger weights are cut. The
            error of the mean is about 2**-31 of the norm times `largest_weight` divided
            by the clients' mean weight.
          zeroing: As for `tff.learning.secure_aggregator`.
          clipping: Whether updates are clipped at the 0.8 quantile of their norms. If
            not, they are still clipped, because a bound is needed: at twice the 0.95
            quantile of their largest absolute values, in the first round at 100.

        Raises:
          ValueError: If `largest_weight` is not a positive number.
        """
        if not 0 < largest_weight < math.inf:
            raise ValueError(
                f"largest_weight is {largest_weight}; it must be a positive number."
            )
        self._zeroing, self._clipping = zeroing, clipping
        self._largest_weight = largest_weight

    def of_ones(self) -> SecureMeanFactory:
        """Returns the same factory for clients of weight 1 or 0."""
        return SecureMeanFactory(
            zeroing=self._zeroing, clipping=self._clipping, largest_weight=1.0
        )

    def create(self, value_type: Any, weight_type: Any):
        library = tff.aggregators
        estimate = library.PrivateQuantileEstimationProcess.no_noise
        count = library.SecureSumFactory(1, 0)
        if self._clipping:
            bound = estimate(1.0, 0.8, 0.2, secure_estimation=True)
        else:
            bound = estimate(50.0, 0.95, 1.0, multiplier=2.0, secure_estimation=True)
        factory = _RelativeMeanFactory(
            bound,
            tf.linalg.global_norm if self._clipping else _largest,
            self._largest_weight,
        )
        if self._zeroing:
            bound = estimate(
                10.0,
                0.98,
                math.log(10.0),
                multiplier=2.0,
                increment=1.0,
                secure_estimation=True,
            )
            factory = library.zeroing_factory(
                bound, factory, zeroed_count_sum_factory=count
            )
        return factory.create(value_type, weight_type)


class _RelativeMeanFactory(tff.aggregators.WeightedAggregationFactory):
    """The secure mean of values that are clipped at a bound.

    Args:
      bound: A `tff.templates.EstimationProcess` that estimates the bound from norms.
      norm: Computes the norm of a value, given as a list of tensors.
      largest_weight: The largest weight of a client.
    """

    def __init__(
        self,
        bound: Any,
        norm: Callable[[list[tf.Tensor]], tf.Tensor],
        largest_weight: float,
    ):
        self._bound, self._norm, self._largest_weight = bound, norm, largest_weight

    def create(self, value_type: Any, weight_type: Any):
        bound = self._bound
        at_client = _AtClient(value_type, weight_type, self._norm, self._largest_weight)
        sums = _Sums(value_type, weight_type)

        @tff.tensorflow.computation(value_type, weight_type, np.float32)
        def mean(total: Any, weight: Any, bound: Any):
            return _scaled(total, bound / tf.cast(weight, tf.float32))

        @tff.federated_computation
        def initialize():
            return tff.federated_zip(
                collections.OrderedDict(bound=bound.initialize(), **sums.initialize())
            )

        @tff.federated_computation(
            initialize.type_signature.result,
            tff.FederatedType(value_type, tff.CLIENTS),
            tff.FederatedType(weight_type, tff.CLIENTS),
        )
        def next_fn(state: Any, values: Any, weights: Any):
            limit = bound.report(state["bound"])
            sent = tff.federated_broadcast(limit)
            norms = tff.federated_map(at_client.norm, values)
            shares = tff.federated_map(at_client.relative_weight, weights)
            relative = (values, sent, shares)
            summed = sums.values.next(
                state["values"], tff.federated_map(at_client.relative_value, relative)
            )
            weighed = sums.weights.next(state["weights"], shares)
            clipped = sums.counts.next(
                state["counts"], tff.federated_map(at_client.is_above, (norms, sent))
            )
            cut = sums.counts.next(
                clipped.state, tff.federated_map(at_client.is_cut, weights)
            )
            new_state: dict[str, Any] = collections.OrderedDict(
                bound=bound.next(state["bound"], norms),
                values=summed.state,
                weights=weighed.state,
                counts=cut.state,
            )
            measured: dict[str, Any] = collections.OrderedDict(
                clipping_norm=limit,
                clipped_count=clipped.result,
                cut_weights=cut.result,
            )
            return tff.templates.MeasuredProcessOutput(
                tff.federated_zip(new_state),
                tff.federated_map(mean, (summed.result, weighed.result, limit)),
                tff.federated_zip(measured),
            )

        return tff.templates.AggregationProcess(initialize, next_fn)


class _Sums:
    """Secure sums of relative values, of relative weights and of flags."""

    def __init__(self, value_type: Any, weight_type: Any):
        library = tff.aggregators
        self.values = library.SecureSumFactory(1.0, -1.0).create(value_type)
        self.weights = library.SecureSumFactory(1.0, 0.0).create(weight_type)
        flag_type = tff.TensorType(np.int32)
        self.counts = library.SecureSumFactory(1, 0).create(flag_type)

    def initialize(self) -> dict[str, Any]:
        """Returns the sums' first states by name, at the server."""
        return {name: own.initialize() for name, own in vars(self).items()}


class _AtClient:
    """The computations of a client that sends a value and a weight.

    Attributes:
      norm: Value -> its norm.
      relative_value: (value, bound, relative weight) -> the value to sum.
      relative_weight: Weight -> its share of the largest weight, at most 1.
      is_above: (norm, bound) -> 1 if the value is clipped, else 0.
      is_cut: Weight -> 1 if it is above the largest weight, else 0.
    """

    def __init__(self, value_type: Any, weight_type: Any, norm: Any, largest: float):
        def of(value: Any) -> tf.Tensor:
            return tf.cast(norm(tf.nest.flatten(value)), tf.float32)

        @tff.tensorflow.computation(value_type, np.float32, np.float32)
        def relative_value(value: Any, bound: Any, relative_weight: Any):
            # A norm above the bound is the divisor, so the result's norm is at most 1.
            divisor = tf.maximum(of(value), bound)
            return _scaled(value, tf.math.divide_no_nan(relative_weight, divisor))

        @tff.tensorflow.computation(weight_type)
        def relative_weight(weight: Any):
            return tf.minimum(tf.cast(weight, tf.float32) / largest, 1.0)

        @tff.tensorflow.computation(np.float32, np.float32)
        def is_above(norm: Any, bound: Any):
            return tf.cast(norm > bound, tf.int32)

        @tff.tensorflow.computation(weight_type)
        def is_cut(weight: Any):
            return tf.cast(tf.cast(weight, tf.float32) > largest, tf.int32)

        self.norm = tff.tensorflow.computation(of, value_type)
        self.relative_value, self.relative_weight = relative_value, relative_weight
        self.is_above, self.is_cut = is_above, is_cut


def _scaled(structure: Any, factor: tf.Tensor) -> Any:
    """Multiplies a structure of tensors by a scalar."""

    def one(value: tf.Tensor) -> tf.Tensor:
        return value * tf.cast(factor, value.dtype)

    return tf.nest.map_structure(one, structure)


def _largest(tensors: list[tf.Tensor]) -> tf.Tensor:
    """Returns the largest absolute value in all tensors."""
    return tf.reduce_max([tf.reduce_max(tf.abs(t)) for t in tensors])
