"""Aggregators by name.

A client sends its update (including BatchNorm's statistics), its methods' uploads, the
number 1 if it trained, and metrics. All but the metrics go through the chosen
aggregator; metrics are summed plainly, with `secure` securely. The kinds and their
defaults are those of `tff.learning`:

*   `mean`: the weighted mean.
*   `robust`: the mean after zeroing extremely large values and clipping long updates
    (Andrew et al., "Differentially Private Learning with Adaptive Clipping", NeurIPS
    2021, https://arxiv.org/abs/1905.03871, without noise).
*   `dp`: the plain mean, clipped, with Gaussian noise (McMahan et al., "Learning
    Differentially Private Recurrent Language Models", ICLR 2018,
    https://arxiv.org/abs/1710.06963). See `tff_reg.experiment.privacy` for its epsilon.
*   `secure`: `robust` by secure summation (Bonawitz et al., CCS 2017,
    https://dl.acm.org/doi/abs/10.1145/3133956.3133982). It uses TFF's secure
    intrinsics; the platform that runs the process does the cryptography. See
    `SecureMeanFactory`.
*   `compressed`: `robust`, large tensors quantised (Suresh et al., ICML 2017,
    http://proceedings.mlr.press/v70/suresh17a/suresh17a.pdf).
"""

from __future__ import annotations

import collections
from collections.abc import Callable
from typing import Any, Optional, Union

import numpy as np

from tff_reg.lazy import tff
from tff_reg.training import aggregator_settings
from tff_reg.training.secure_mean import SecureMeanFactory

AggregationFactory = Union[
    tff.aggregators.WeightedAggregationFactory,
    tff.aggregators.UnweightedAggregationFactory,
]

# Bound of a client's metric in secure summation, as in TFF.
_LARGEST_METRIC = 2**20 - 1


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

        Unlike `tff.learning.dp_aggregator` by default, this does not zero extremely
        large values: the bound for zeroing is estimated without noise, so that no
        epsilon would hold.

        Args:
          noise_multiplier: z, the noise standard deviation divided by the clipping
            norm. With adaptive clipping z covers the sum and the count of clipped
            clients together; the noise on the sum is somewhat larger.
          clients_per_round: Divisor of the sum, also if fewer clients train.
          clip_norm: The clipping norm, of all tensors together; with adaptive clipping
            the initial one.
          adaptive: Whether the norm follows the clients' median.

        Raises:
          ValueError: If a number is out of range, or the cohort is too small for
            adaptive clipping with this noise: z must be below clients_per_round / 10.
        """
        if 0 < noise_multiplier < aggregator_settings.LEAST_NOISE:
            raise ValueError(
                f"noise_multiplier is {noise_multiplier}; it must be 0, or at least"
                f" {aggregator_settings.LEAST_NOISE:g}."
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
    """Builds an aggregator by its name; the arguments of other kinds have no effect.

    Args:
      kind: One of `aggregator_settings.KINDS`.
      clients_per_round: The number of clients in a round, for `dp`.
      zeroing: Whether updates with extremely large values count as 0; not for `dp`.
      clipping: Whether updates are clipped at the 0.8 quantile of their norms; not for
        `dp`, which always clips.
      dp_noise_multiplier: See `PrivateMeanFactory`.
      dp_clipping: `adaptive` or `fixed`.
      dp_clip_norm: See `PrivateMeanFactory`.
      compressed_bits: Bits per number, 1 to 16.
      compressed_threshold: Tensors with more elements are quantised.
      largest_weight: For `secure`, see `SecureMeanFactory`: 1 with uniform weights;
        with weights by examples, the examples of all clients times the epochs.

    Returns:
      The argument `model_aggregator` of `build_regularized`: None for `mean`, its
      default.

    Raises:
      ValueError: If there is no such kind, or an argument is out of range.
    """
    if kind == "mean":
        return None
    if kind == "robust":
        return tff.learning.robust_aggregator(zeroing=zeroing, clipping=clipping)
    if kind == "secure":
        if largest_weight is None:
            raise ValueError("secure needs largest_weight, a client's largest weight.")
        return SecureMeanFactory(
            zeroing=zeroing, clipping=clipping, largest_weight=largest_weight
        )
    if kind == "dp":
        is_adaptive = dp_clipping == "adaptive"
        return PrivateMeanFactory(
            dp_noise_multiplier,
            clients_per_round,
            clip_norm=dp_clip_norm,
            adaptive=is_adaptive,
        )
    if kind == "compressed":
        return _compressed(compressed_bits, compressed_threshold, zeroing, clipping)
    known = ", ".join(aggregator_settings.KINDS)
    raise ValueError(f"Unknown aggregator {kind!r}; choose one of {known}.")


def _compressed(
    bits: int, threshold: int, zeroing: bool, clipping: bool
) -> AggregationFactory:
    """Builds TFF's `compression_aggregator`, but with any bits and threshold."""
    quantised = tff.aggregators.EncodedSumFactory.quantize_above_threshold(
        quantization_bits=bits, threshold=threshold
    )

    def quantised_mean(_: Any) -> tff.aggregators.MeanFactory:
        return tff.aggregators.MeanFactory(quantised)

    # `debug_measurements_fn` replaces the mean inside the clipping.
    return tff.learning.robust_aggregator(
        zeroing=zeroing, clipping=clipping, debug_measurements_fn=quantised_mean
    )


def build_metrics_aggregator(kind: str) -> Optional[Callable[..., Any]]:
    """Builds the aggregation of metrics by an aggregator's name.

    Args:
      kind: As for `build_model_aggregator`.

    Returns:
      The argument `metrics_aggregator` of `build_regularized`: secure sums for
      `secure`, None for all others. Secure sums cut a client's numbers off at
      2**20 - 1 and round them to multiples of 0.0005.
    """
    return _secure_sum_then_finalize if kind == "secure" else None


def _secure_sum_then_finalize(finalizers: Any):
    """Builds TFF's `secure_sum_then_finalize` with bounds for negative metrics, too."""

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
