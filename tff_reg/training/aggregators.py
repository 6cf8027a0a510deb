"""How what clients send becomes one: TFF's aggregators by name.

A client sends its update (with BatchNorm's statistics, where there are any), the
uploads of a correction, the number 1 if it trained, and metrics. What is chosen here
holds for all four, but that metrics are summed plainly unless `secure` is chosen. The
kinds and their defaults are those of `tff.learning`:

*   `mean`: the weighted mean.
*   `robust`: with values that are far too large left out, and long updates shortened
    (Andrew et al., "Differentially Private Learning with Adaptive Clipping", NeurIPS
    2021, https://arxiv.org/abs/1905.03871, without noise).
*   `dp`: the plain mean, clipped, with Gaussian noise (McMahan et al., "Learning
    Differentially Private Recurrent Language Models", ICLR 2018,
    https://arxiv.org/abs/1710.06963); `tff_reg.experiment.rounds.privacy` has its
    epsilon.
*   `secure`: `robust` by secure summation (Bonawitz et al., CCS 2017,
    https://dl.acm.org/doi/abs/10.1145/3133956.3133982): TFF's secure intrinsics, whose
    cryptography is the platform's that runs the process. See `SecureMeanFactory`.
*   `compressed`: `robust`, large tensors quantised (Suresh et al., ICML 2017,
    http://proceedings.mlr.press/v70/suresh17a/suresh17a.pdf).
"""

from __future__ import annotations

import collections
import math
from collections.abc import Callable, Sequence
from typing import Any, Optional, Union

import numpy as np
import tensorflow as tf

from tff_reg.lazy import tff
from tff_reg.methods import all_clients
from tff_reg.training import process_settings

AggregationFactory = Union[
    tff.aggregators.WeightedAggregationFactory,
    tff.aggregators.UnweightedAggregationFactory,
]

_UNWEIGHTED = tff.aggregators.UnweightedAggregationFactory

# What a client's sum of a metric may be in secure summation, up or down: TFF's bound.
_LARGEST_METRIC = 2**20 - 1

# In the names of TensorFlow's operations that draw noise. What is uniform rotates and
# rounds, too.
_NOISE = (
    b"StandardNormal",
    b"RandomNormal",
    b"TruncatedNormal",
    b"RandomPoisson",
    b"RandomBinomial",
    b"RandomGamma",
)


class PrivateMeanFactory(tff.aggregators.UnweightedAggregationFactory):
    """A differentially private mean: a noisy sum over a fixed number of clients."""

    def __init__(
        self,
        noise_multiplier: float,
        clients_per_round: int,
        *,
        clip_norm: float = 0.1,
        adaptive: bool = True,
    ):
        """Makes the factory.

        Values that are far too large are not left out as `tff.learning.dp_aggregator`
        does by default: the bound for that is estimated without noise, so no epsilon
        would hold.

        Args:
          noise_multiplier: z, deviation of the noise on the sum over the clipping norm.
            With adaptive clipping z is that of both, the sum and the count of clipped
            clients; the noise on the sum is somewhat larger.
          clients_per_round: Divides the sum, however many clients train.
          clip_norm: The clipping norm, of all tensors together; with adaptive clipping
            where it begins.
          adaptive: Whether the norm follows the clients' median.

        Raises:
          ValueError: If a number is out of range, or the cohort is too small for
            adaptive clipping with so much noise (z < clients_per_round / 10).
        """
        if 0 < noise_multiplier < process_settings.LEAST_NOISE:
            raise ValueError(
                f"noise_multiplier is {noise_multiplier}; it must be 0, or at least"
                f" {process_settings.LEAST_NOISE:g}."
            )
        library = tff.aggregators.DifferentiallyPrivateFactory
        if adaptive:
            self._factory = library.gaussian_adaptive(
                noise_multiplier, clients_per_round, initial_l2_norm_clip=clip_norm
            )
        else:
            self._factory = library.gaussian_fixed(
                noise_multiplier, clients_per_round, clip_norm
            )
        self.clients_per_round = clients_per_round
        self.adds_noise = noise_multiplier > 0

    def create(self, value_type: Any):
        return self._factory.create(value_type)


class SecureMeanFactory(tff.aggregators.WeightedAggregationFactory):
    """`tff.learning.robust_aggregator`'s mean by secure summation.

    Secure sums are of whole numbers in a range, so that what clients send needs a
    bound. `tff.learning.secure_aggregator` guesses one for weight times update, which
    grows with the rounds and cuts off what is beyond it, and cuts weights but not the
    updates that they are times at 2**20 - 1. Here a client sends its update in units of
    the clipping norm and its weight in units of `largest_weight`: both are at most 1,
    and 32 bits stand for that.
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
          largest_weight: What a client weighs at most; one that weighs more counts as
            this. The mean is exact to some 2**-31 of the norm times `largest_weight`
            over the clients' mean weight.
          zeroing: As for `tff.learning.secure_aggregator`.
          clipping: Whether updates are clipped at the 0.8 quantile of their norms. If
            not, they are clipped at twice the 0.95 quantile of their largest value, 100
            at first: some bound there must be.

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
        """The same for clients that weigh 1 or nothing."""
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
      bound: A `tff.templates.EstimationProcess` of the bound, from the norms.
      norm: Computes a value's, from a list of tensors.
      largest_weight: What a client weighs at most.
    """

    def __init__(
        self,
        bound: Any,
        norm: Callable[[list[tf.Tensor]], tf.Tensor],
        largest_weight: float,
    ):
        self._bound, self._norm, self._largest_weight = bound, norm, largest_weight

    def create(self, value_type: Any, weight_type: Any):
        library, bound = tff.aggregators, self._bound
        sum_values = library.SecureSumFactory(1.0, -1.0).create(value_type)
        sum_weights = library.SecureSumFactory(1.0, 0.0).create(weight_type)
        sum_counts = library.SecureSumFactory(1, 0).create(tff.TensorType(np.int32))
        largest = self._largest_weight

        @tff.tensorflow.computation(value_type)
        def norm_of(value: Any):
            return tf.cast(self._norm(tf.nest.flatten(value)), tf.float32)

        @tff.tensorflow.computation(value_type, np.float32, np.float32)
        def relative_value(value: Any, bound: Any, relative_weight: Any):
            norm = tf.cast(self._norm(tf.nest.flatten(value)), tf.float32)
            # Over the norm if that is above the bound, to have the norm 1 then.
            factor = tf.math.divide_no_nan(relative_weight, tf.maximum(norm, bound))
            return _scaled(value, factor)

        @tff.tensorflow.computation(weight_type)
        def relative_weight(weight: Any):
            return tf.minimum(tf.cast(weight, tf.float32) / largest, 1.0)

        @tff.tensorflow.computation(np.float32, np.float32)
        def is_above(norm: Any, bound: Any):
            return tf.cast(norm > bound, tf.int32)

        @tff.tensorflow.computation(weight_type)
        def is_cut(weight: Any):
            return tf.cast(tf.cast(weight, tf.float32) > largest, tf.int32)

        @tff.tensorflow.computation(value_type, weight_type, np.float32)
        def mean(total: Any, weight: Any, bound: Any):
            return _scaled(total, bound / tf.cast(weight, tf.float32))

        @tff.federated_computation
        def initialize():
            return tff.federated_zip(
                collections.OrderedDict(
                    bound=bound.initialize(),
                    values=sum_values.initialize(),
                    weights=sum_weights.initialize(),
                    counts=sum_counts.initialize(),
                )
            )

        @tff.federated_computation(
            initialize.type_signature.result,
            tff.FederatedType(value_type, tff.CLIENTS),
            tff.FederatedType(weight_type, tff.CLIENTS),
        )
        def next_fn(state: Any, values: Any, weights: Any):
            limit = bound.report(state["bound"])
            sent = tff.federated_broadcast(limit)
            norms = tff.federated_map(norm_of, values)
            shares = tff.federated_map(relative_weight, weights)
            summed = sum_values.next(
                state["values"],
                tff.federated_map(relative_value, (values, sent, shares)),
            )
            weighed = sum_weights.next(state["weights"], shares)
            clipped = sum_counts.next(
                state["counts"], tff.federated_map(is_above, (norms, sent))
            )
            cut = sum_counts.next(clipped.state, tff.federated_map(is_cut, weights))
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


def _scaled(structure: Any, factor: tf.Tensor) -> Any:
    """A structure of tensors times a scalar."""

    def one(value: tf.Tensor) -> tf.Tensor:
        return value * tf.cast(factor, value.dtype)

    return tf.nest.map_structure(one, structure)


def _largest(tensors: list[tf.Tensor]) -> tf.Tensor:
    """The largest absolute value."""
    return tf.reduce_max([tf.reduce_max(tf.abs(t)) for t in tensors])


def build_model_aggregator(
    kind: str,
    *,
    clients_per_round: int,
    zeroing: bool = True,
    clipping: bool = True,
    dp_noise_multiplier: float = 1.0,
    dp_clipping: str = "adaptive",
    dp_clip_norm: float = 0.1,
    compressed_bits: int = 8,
    compressed_threshold: int = 20000,
    largest_weight: Optional[float] = None,
) -> Optional[AggregationFactory]:
    """Builds an aggregator by its name; strengths of other kinds have no effect.

    Args:
      kind: One of `process_settings.AGGREGATORS`.
      clients_per_round: How many clients take part in a round, for `dp`.
      zeroing: Whether updates with far too large values count as 0; not for `dp`.
      clipping: Whether updates are clipped at the 0.8 quantile of their norms; not for
        `dp`, which always clips.
      dp_noise_multiplier: See `PrivateMeanFactory`.
      dp_clipping: `adaptive` or `fixed`.
      dp_clip_norm: See `PrivateMeanFactory`.
      compressed_bits: Bits of a number, 1 to 16.
      compressed_threshold: Tensors with more elements are quantised.
      largest_weight: See `SecureMeanFactory`, for `secure`: 1 where clients weigh the
        same, the examples of all clients times the epochs where they weigh by them.

    Returns:
      What `build_regularized` takes as `model_aggregator`: None for `mean`, which is
      then its default.

    Raises:
      ValueError: If there is no such kind, or a strength is out of range.
    """
    library = tff.learning
    if kind == "mean":
        return None
    if kind == "robust":
        return library.robust_aggregator(zeroing=zeroing, clipping=clipping)
    if kind == "secure":
        if largest_weight is None:
            raise ValueError(
                "secure needs largest_weight, what a client weighs at most."
            )
        return SecureMeanFactory(
            zeroing=zeroing, clipping=clipping, largest_weight=largest_weight
        )
    if kind == "dp":
        return PrivateMeanFactory(
            dp_noise_multiplier,
            clients_per_round,
            clip_norm=dp_clip_norm,
            adaptive=dp_clipping == "adaptive",
        )
    if kind == "compressed":
        quantised = tff.aggregators.EncodedSumFactory.quantize_above_threshold(
            quantization_bits=compressed_bits, threshold=compressed_threshold
        )

        # TFF's compression_aggregator fixes bits and threshold. This hook gives the
        # mean that is guarded.
        def quantised_mean(_: Any) -> tff.aggregators.MeanFactory:
            return tff.aggregators.MeanFactory(quantised)

        return library.robust_aggregator(
            zeroing=zeroing, clipping=clipping, debug_measurements_fn=quantised_mean
        )
    known = ", ".join(process_settings.AGGREGATORS)
    raise ValueError(
        f"There is no aggregator of that name; choose one of {known}: {kind!r}."
    )


def build_metrics_aggregator(kind: str) -> Optional[Callable[..., Any]]:
    """Builds what aggregates the metrics of clients.

    Args:
      kind: As for `build_model_aggregator`.

    Returns:
      What `build_regularized` takes as `metrics_aggregator`: secure sums for `secure`,
      None for all others. Numbers of more than 2**20 - 1 (a client's) are cut off
      there, and rounded to multiples of 0.0005.
    """
    return _secure_sum_then_finalize if kind == "secure" else None


def _secure_sum_then_finalize(finalizers: Any):
    """`tff.learning.metrics.secure_sum_then_finalize` for metrics below 0, too."""

    @tff.federated_computation
    def aggregate(metrics: Any):
        def ranges(type_: Any) -> Any:
            if isinstance(type_, tff.TensorType):
                if np.issubdtype(type_.dtype, np.floating):
                    return -float(_LARGEST_METRIC), float(_LARGEST_METRIC)
                return 0, _LARGEST_METRIC
            elements = tff.structure.iter_elements(type_)
            fields = [(name, ranges(each)) for name, each in elements]
            if fields and fields[0][0] is not None:
                return collections.OrderedDict(fields)
            return [value for _, value in fields]

        return tff.learning.metrics.secure_sum_then_finalize(
            finalizers, metric_value_ranges=ranges(metrics.type_signature.member)
        )(metrics)

    return aggregate


def build_upload_aggregator(
    model_aggregator: Optional[AggregationFactory], uploads_type: tff.types.Type
) -> tff.templates.AggregationProcess:
    """Builds what adds up the clients' uploads, in the way their updates are.

    Args:
      model_aggregator: What the updates go through; None for plain sums.
      uploads_type: The type of a client's uploads, perhaps without any tensor.

    Returns:
      A process whose `next` takes the uploads and 1 or 0, int32, for whether a client
      trained, and gives the uploads' sum and a number of clients, by which a mean is
      times to be a sum. With an aggregator the uploads' sum is the mean times that
      number: of the clients that trained, summed securely; where the aggregator knows
      no weights, of the cohort, which it divides by, or 0 if none trained. With a
      private one it is the noisy sum, and the number is the cohort's size, which is no
      secret.

    Raises:
      ValueError: If the aggregator does not take the uploads' type.
    """
    values = tff.FederatedType(uploads_type, tff.CLIENTS)
    flags = tff.FederatedType(np.int32, tff.CLIENTS)

    def number_of(has_trained: Any):
        if isinstance(model_aggregator, PrivateMeanFactory):
            return tff.federated_value(model_aggregator.clients_per_round, tff.SERVER)
        trained = tff.federated_secure_sum(has_trained, 1)
        if not isinstance(model_aggregator, _UNWEIGHTED):
            return trained
        ones = tff.federated_value(1, tff.CLIENTS)
        return tff.federated_map(
            cohort_of, (tff.federated_secure_sum(ones, 1), trained)
        )

    @tff.tensorflow.computation(np.int32, np.int32)
    def cohort_of(size: Any, trained: Any):
        return tf.where(trained > 0, size, 0)

    @tff.federated_computation
    def no_state():
        return tff.federated_value((), tff.SERVER)

    def sum_plainly(state: Any, uploads: Any, has_trained: Any):
        if model_aggregator is None:
            sums = tff.federated_sum(tff.federated_zip((uploads, has_trained)))
        else:
            nothing = tff.federated_sum(uploads)
            sums = tff.federated_zip((nothing, number_of(has_trained)))
        return tff.templates.MeasuredProcessOutput(
            state, sums, tff.federated_value((), tff.SERVER)
        )

    if model_aggregator is None or not tff.structure.flatten(uploads_type):
        sum_fn = tff.federated_computation(
            sum_plainly, no_state.type_signature.result, values, flags
        )
        return tff.templates.AggregationProcess(no_state, sum_fn)
    if isinstance(model_aggregator, SecureMeanFactory):
        model_aggregator = model_aggregator.of_ones()
    try:
        mean = _as_weighted(model_aggregator).create(
            uploads_type, tff.TensorType(np.float32)
        )
    except (TypeError, ValueError) as error:
        raise ValueError(
            "The model_aggregator is made for updates alone, and clients upload"
            f" {', '.join(tff.structure.name_list(uploads_type))} besides: take one for"
            " values of any type, or a method without uploads."
        ) from error

    @tff.tensorflow.computation(uploads_type, np.int32)
    def times(uploads: Any, count: Any):
        # The mean over no clients may be NaN.
        def total(mean: tf.Tensor) -> tf.Tensor:
            return tf.math.multiply_no_nan(mean, tf.cast(count, mean.dtype))

        return tf.nest.map_structure(total, uploads)

    @tff.tensorflow.computation(np.int32)
    def as_weight(has_trained: Any):
        return tf.cast(has_trained, tf.float32)

    @tff.federated_computation(mean.initialize.type_signature.result, values, flags)
    def next_fn(state: Any, uploads: Any, has_trained: Any):
        count = number_of(has_trained)
        weight = tff.federated_map(as_weight, has_trained)
        output = mean.next(state, uploads, weight)
        sums = tff.federated_map(times, (output.result, count))
        return tff.templates.MeasuredProcessOutput(
            output.state, tff.federated_zip((sums, count)), output.measurements
        )

    return tff.templates.AggregationProcess(mean.initialize, next_fn)


def create(
    model_aggregator: Optional[AggregationFactory],
    update_type: Any,
    *,
    has_statistics: bool = False,
    needing_exact: Sequence[str] = (),
) -> tff.templates.AggregationProcess:
    """Builds the aggregation of the clients' updates.

    Args:
      model_aggregator: Any TFF aggregator, one that is not weighted is taken as such;
        None for the weighted mean.
      update_type: The type of a client's update.
      has_statistics: Whether training changes some of the weights that it does not
        train. If not, an aggregator that adds noise has the others alone.
      needing_exact: Names of the methods that need exact sums of uploads.

    Returns:
      The process.

    Raises:
      TypeError: If the aggregator changes the type of the update.
      ValueError: If it adds noise, and there are statistics; or if it clips, zeroes or
        adds noise, and a method needs exact sums.
    """
    factory = _as_weighted(model_aggregator or tff.aggregators.MeanFactory())
    weight_type = tff.TensorType(np.float32)
    is_whole = getattr(update_type, "python_container", None) is (
        tff.learning.models.ModelWeights
    )
    aggregator = None
    if model_aggregator is not None:
        # Of what trains, as TFF's tree aggregation is made for one structure.
        trained_type = update_type.trainable if is_whole else update_type
        aggregator = factory.create(trained_type, weight_type)
        if needing_exact and _changes_sums(aggregator):
            without = (
                "averages_all_clients" if needing_exact[0] == all_clients.NAME else "it"
            )
            raise ValueError(
                f"{needing_exact[0]} needs exact sums of what clients upload, and the"
                " aggregator clips, zeroes or adds noise: take the mean, or robust or"
                " compressed without zeroing and clipping (--noaggregator_zeroing"
                f" --noaggregator_clipping), or do without {without}."
            )
        if is_whole and _adds_noise(model_aggregator, aggregator):
            if has_statistics:
                raise ValueError(
                    "The aggregator adds noise, and running variances with noise become"
                    " negative: take a network that keeps no statistics, such as one"
                    " with the norm 'group', or no noise."
                )
            return _of_trainable(aggregator, update_type)
    if aggregator is None or is_whole:
        aggregator = factory.create(update_type, weight_type)
    aggregated_type = aggregator.next.type_signature.result.result.member
    if not update_type.is_assignable_from(aggregated_type):
        raise TypeError(
            "The model_aggregator must keep the type of the clients' updates, "
            f"{update_type}, but makes {aggregated_type} of it."
        )
    return aggregator


def _adds_noise(
    factory: AggregationFactory, aggregator: tff.templates.AggregationProcess
) -> bool:
    if isinstance(factory, PrivateMeanFactory):
        return factory.adds_noise
    if _is_private(aggregator):
        return True
    dumped = tff.framework.serialize_computation(aggregator.next).SerializeToString()
    return any(each in dumped for each in _NOISE)


def _is_private(aggregator: tff.templates.AggregationProcess) -> bool:
    """Whether TFF's `DifferentiallyPrivateFactory` is in it, whatever its noise."""
    return "dp_event=" in str(aggregator.initialize.type_signature.result)


def _changes_sums(aggregator: tff.templates.AggregationProcess) -> bool:
    """Whether it clips, zeroes or adds noise: TFF's measure how many they clip."""
    measured = str(aggregator.next.type_signature.result.measurements)
    return _is_private(aggregator) or "clip" in measured or "zeroed" in measured


def _of_trainable(
    aggregator: tff.templates.AggregationProcess, update_type: Any
) -> tff.templates.AggregationProcess:
    """An aggregation of trainable weights for whole updates, the rest of which is 0."""

    @tff.tensorflow.computation(update_type)
    def trainable_part(update: Any):
        return update.trainable

    @tff.tensorflow.computation(update_type.trainable)
    def whole(trainable: Any):
        rest = tff.structure.flatten(update_type.non_trainable)
        zeros = [tf.zeros(t.shape, t.dtype) for t in rest]
        return tff.learning.models.ModelWeights(trainable, zeros)

    @tff.federated_computation(
        aggregator.initialize.type_signature.result,
        tff.FederatedType(update_type, tff.CLIENTS),
        tff.FederatedType(np.float32, tff.CLIENTS),
    )
    def next_fn(state: Any, updates: Any, weights: Any):
        own = tff.federated_map(trainable_part, updates)
        output = aggregator.next(state, own, weights)
        result = tff.federated_map(whole, output.result)
        return tff.templates.MeasuredProcessOutput(
            output.state, result, output.measurements
        )

    return tff.templates.AggregationProcess(aggregator.initialize, next_fn)


def _as_weighted(factory: Any) -> tff.aggregators.WeightedAggregationFactory:
    if isinstance(factory, _UNWEIGHTED):
        return tff.aggregators.as_weighted_aggregator(factory)
    return factory
