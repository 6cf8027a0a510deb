"""The settings of the aggregation of the clients' updates.

This module needs no TensorFlow.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Optional

from tff_reg.methods import catalogue
from tff_reg.settings import conflicts, only_with, setting, wrong_when
from tff_reg.training import process_settings

# The kinds of aggregators that `aggregators.build_model_aggregator` builds.
KINDS = (
    "mean",
    "robust",
    "dp",
    "compressed",
    "secure",
    "median",
    "trimmed_mean",
    "krum",
)
# The least noise of `aggregator=dp` above 0; float32 would round smaller noise away.
LEAST_NOISE = 1e-6

_of_server = functools.partial(setting, group=process_settings.SERVER)
_GUARDED = (only_with("aggregator", "robust", "compressed", "secure"),)
_PRIVATE = (only_with("aggregator", "dp"),)
_COMPRESSED = (only_with("aggregator", "compressed"),)


def _is_noisy(
    dp_noise_multiplier: float, dp_clipping: str, clients_per_round: int
) -> bool:
    return dp_clipping == "adaptive" and dp_noise_multiplier >= clients_per_round / 10


@dataclasses.dataclass(frozen=True, kw_only=True)
class AggregatorSettings:
    """The settings of an aggregator."""

    aggregator: str = _of_server(
        "mean",
        help="how the clients' updates are aggregated",
        choices=KINDS,
        rules=(conflicts("process", *catalogue.REFERENCES, why="averages no models"),),
    )
    aggregator_zeroing: Optional[bool] = _of_server(
        True,
        help="robust, compressed, secure: replace updates with far too large values by"
        " 0",
        rules=_GUARDED,
    )
    aggregator_clipping: Optional[bool] = _of_server(
        True,
        help="robust, compressed, secure: clip updates at the 0.8 quantile of norms",
        rules=_GUARDED,
    )
    malicious_share: Optional[float] = _of_server(
        0.2,
        help="trimmed_mean, krum: share of a round's clients that may be malicious:"
        " trimmed_mean leaves out as many largest and as many smallest values of each"
        " weight",
        minimum=0,
        below=0.5,
        rules=(only_with("aggregator", "trimmed_mean", "krum"),),
    )
    krum_selected: Optional[int] = _of_server(
        1,
        help="krum: number of updates with the least scores that are averaged; more"
        " than 1 is Multi-Krum",
        minimum=1,
        rules=(only_with("aggregator", "krum"),),
    )
    dp_noise_multiplier: Optional[float] = _of_server(
        1.0,
        help="dp: noise standard deviation divided by the clipping norm",
        minimum=0,
        rules=(
            *_PRIVATE,
            wrong_when(
                _is_noisy,
                "adaptive clipping can have less than a tenth of the"
                " {clients_per_round} clients of a round; give more clients, or"
                " dp_clipping=fixed with a dp_clip_norm.",
            ),
        ),
    )
    dp_clipping: Optional[str] = _of_server(
        "adaptive",
        help="dp: clip at the estimated median norm of the updates (adaptive), or at"
        " dp_clip_norm (fixed)",
        choices=("adaptive", "fixed"),
        rules=_PRIVATE,
    )
    dp_clip_norm: Optional[float] = _of_server(
        0.1,
        help="dp: clipping norm of an update; with adaptive clipping that of the first"
        " round",
        above=0,
        rules=_PRIVATE,
    )
    dp_delta: Optional[float] = _of_server(
        1e-5,
        help="dp: delta of the guarantee that summary.json states",
        above=0,
        below=1,
        rules=_PRIVATE,
    )
    compressed_bits: Optional[int] = _of_server(
        8,
        help="compressed: bits per number",
        minimum=1,
        maximum=16,
        rules=_COMPRESSED,
    )
    compressed_threshold: Optional[int] = _of_server(
        20000,
        help="compressed: tensors with at most this many numbers stay as they are",
        minimum=0,
        rules=_COMPRESSED,
    )
