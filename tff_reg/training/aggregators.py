"""Aggregators by name.

A client sends its update (including BatchNorm's statistics), its methods' uploads, the
number 1 if it trained, and metrics. All but the metrics go through the chosen
aggregator. The kinds and their defaults are those of `tff.learning`, except that the
bounds of `robust` and `compressed` are those of the clients that trained:

*   `mean`: the weighted mean.
*   `robust`: the mean after zeroing extremely large values and clipping long updates
    (Andrew et al., "Differentially Private Learning with Adaptive Clipping", NeurIPS
    2021, https://arxiv.org/abs/1905.03871, without noise).
*   `dp`: the plain mean, clipped, with Gaussian noise (McMahan et al., "Learning
    Differentially Private Recurrent Language Models", ICLR 2018,
    https://arxiv.org/abs/1710.06963). See `tff_reg.experiment.privacy` for its epsilon.
*   `compressed`: `robust`, large tensors quantised (Suresh et al., ICML 2017,
    http://proceedings.mlr.press/v70/suresh17a/suresh17a.pdf).
*   `secure`: TFF's secure aggregator: `robust` by secure sums of integers.
*   `median`, `trimmed_mean` and `krum` are this package's, see `robust_means`.

A process takes any other TFF aggregator as its `model_aggregator`, too. `declare` says
what cannot be seen from outside.
"""

from __future__ import annotations

import math
from typing import Any, Optional, Union

import numpy as np
import tensorflow as tf

from tff_reg import settings
from tff_reg.data import digests
from tff_reg.lazy import tff, tfp
from tff_reg.training import aggregator_settings, robust_means

_DEFAULTS = aggregator_settings.AggregatorSettings
AggregationFactory = Union[
    tff.aggregators.WeightedAggregationFactory,
    tff.aggregators.UnweightedAggregationFactory,
]


def declare(
    factory: AggregationFactory, *, adds_noise: bool, keeps_sums: bool
) -> AggregationFactory:
    """Says of an aggregator what cannot be seen from outside."""
    known: Any = factory
    known.adds_noise, known.keeps_sums = adds_noise, keeps_sums
    return factory


def adds_noise(
    factory: AggregationFactory, process: tff.templates.AggregationProcess
) -> Optional[bool]:
    """Returns whether a factory and its process add noise; None if that is unknown."""
    # TFF's private factories count events in their state, at any depth.
    is_private = "dp_event=" in str(process.initialize.type_signature)
    return getattr(factory, "adds_noise", is_private or None)


def keeps_sums(factory: Optional[AggregationFactory]) -> bool:
    """Returns whether an aggregator is known to give exact sums."""
    return factory is None or getattr(factory, "keeps_sums", False)


def takes_alike(factory: Any) -> bool:
    """Returns whether an aggregator takes all clients alike, whatever they weigh."""
    unweighted = tff.aggregators.UnweightedAggregationFactory
    return isinstance(factory, unweighted) or getattr(factory, "takes_alike", False)


def identified(factory: Any) -> str:
    """Returns a text of a factory: its class, and what it makes of three vectors.

    Of one with noise it is the class and the arguments, as far as they are kept.
    """
    kind = tff.TensorType(np.float32, [2])
    weighted: Any = factory
    if isinstance(factory, tff.aggregators.UnweightedAggregationFactory):
        weighted = tff.aggregators.as_weighted_aggregator(factory)
    vectors = np.array([[0.3, -0.4], [2.0, 1.5], [1e5, 0.0]], np.float32)

    def made() -> str:
        process = weighted.create(kind, tff.TensorType(np.float32))
        state, found = process.initialize(), list[str]()
        for _ in range(2):
            output = process.next(state, [*vectors], [1.0, 2.0, 3.0])
            state = output.state
            numbers = tf.nest.flatten((state, output.result))
            found += [np.array2string(np.asarray(x), precision=4) for x in numbers]
        return ", ".join(found)

    text = digests.described(factory)
    first, again = made(), made()
    return f"{text} ({digests.of_value(first)})" if first == again else text


class PrivateMeanFactory(tff.aggregators.UnweightedAggregationFactory):
    """A differentially private mean: a noisy sum over a fixed number of clients."""

    def __init__(
        self,
        noise_multiplier: float,
        clients_per_round: int,
        *,
        clip_norm: Optional[float] = _DEFAULTS.dp_clip_norm,
        adaptive: bool = True,
    ):
        """Makes the factory.

        Unlike `tff.learning.dp_aggregator` by default, this does not zero extremely
        large values: the bound for zeroing is estimated without noise, so that no
        epsilon would hold.
        """
        if 0 < noise_multiplier < aggregator_settings.LEAST_NOISE:
            raise ValueError(
                f"noise_multiplier is {noise_multiplier}; it must be 0, or at least"
                f" {aggregator_settings.LEAST_NOISE:g}."
            )
        # By which processes are compared, as TFF's factories do not show theirs.
        self.arguments = (noise_multiplier, clip_norm, adaptive)
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
        self.adds_noise, self.keeps_sums = noise_multiplier > 0, False

    def create(self, value_type: Any):
        return self._factory.create(value_type)


def build_model_aggregator(
    kind: str, *, clients_per_round: int, **options: Any
) -> Optional[AggregationFactory]:
    """Builds an aggregator by its name.

    Args:
      kind: One of `aggregator_settings.KINDS`.
      clients_per_round: Clients in a round, for `dp`.
      **options: The other attributes of `AggregatorSettings`; those of other kinds have
        no effect.

    Returns:
      The aggregator; None for `mean`.

    Raises:
      SettingError: If there is no such aggregator, or a value is out of range.
    """
    chosen: Any = aggregator_settings.AggregatorSettings(aggregator=kind, **options)
    settings.check(chosen)
    bounds = chosen.aggregator_zeroing, chosen.aggregator_clipping
    if kind == "mean":
        return None
    if kind == "dp":
        noise, norm = chosen.dp_noise_multiplier, chosen.dp_clip_norm
        is_adaptive = chosen.dp_clipping == "adaptive"
        return PrivateMeanFactory(
            noise, clients_per_round, clip_norm=norm, adaptive=is_adaptive
        )
    if kind in robust_means.KINDS:
        allowed = chosen.malicious_share, chosen.krum_selected
        return robust_means.RobustMeanFactory(kind, *allowed)
    mean, arguments = tff.aggregators.MeanFactory(), (kind, *bounds)
    if kind == "compressed":
        sizes = chosen.compressed_bits, chosen.compressed_threshold
        quantised = tff.aggregators.EncodedSumFactory.quantize_above_threshold(
            quantization_bits=sizes[0], threshold=sizes[1]
        )
        mean, arguments = tff.aggregators.MeanFactory(quantised), (*arguments, *sizes)
    bounded: Any = _bounded(mean, *bounds)
    if kind == "secure":
        zeroing, clipping = bounds
        bounded = tff.learning.secure_aggregator(zeroing=zeroing, clipping=clipping)
    bounded.arguments = arguments
    keeps_sums = kind != "secure" and not any(bounds)
    return declare(bounded, adds_noise=False, keeps_sums=keeps_sums)


def _bounded(mean: Any, zeroing: bool, clipping: bool) -> AggregationFactory:
    """Builds TFF's `robust_aggregator` with bounds from the clients that trained."""
    if clipping:
        norm = _quantile(1.0, 0.8, learning_rate=0.2)
        mean = tff.aggregators.clipping_factory(norm, mean)
    if zeroing:
        norm = _quantile(10.0, 0.98, learning_rate=math.log(10.0))
        mean = tff.aggregators.zeroing_factory(norm.map(_far_above()), mean)
    return mean


def _far_above() -> tff.Computation:
    """Returns norm -> 2 norm + 1, at the server."""

    @tff.tensorflow.computation(np.float32)
    def twice_and_one(norm: Any):
        return 2.0 * norm + 1.0

    @tff.federated_computation(tff.FederatedType(np.float32, tff.SERVER))
    def at_server(norm: Any):
        return tff.federated_map(twice_and_one, norm)

    return at_server


def _quantile(initial: float, target: float, learning_rate: float) -> Any:
    query = _OfTrained(initial, target, learning_rate, geometric_update=True)
    return tff.aggregators.PrivateQuantileEstimationProcess(query)


class _OfTrained(tfp.NoPrivacyQuantileEstimatorQuery):
    """Quantile of the norms above 0, as a client that did not train sends 0."""

    def preprocess_record(self, params: Any, record: Any) -> Any:
        below, weight = super().preprocess_record(params, record)
        has_trained = tf.cast(record > 0, tf.float32)
        return has_trained * below, has_trained * weight

    def get_noised_result(self, sample_state: Any, global_state: Any) -> Any:
        _, count = sample_state
        estimate, new, event = super().get_noised_result(sample_state, global_state)
        estimate = tf.where(count > 0, estimate, global_state.current_estimate)
        return estimate, new._replace(current_estimate=estimate), event
