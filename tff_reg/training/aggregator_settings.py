"""The settings of the aggregation of the clients' updates.

This module needs no TensorFlow.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, Optional

from tff_reg.settings import setting, settings_of
from tff_reg.training import process_settings

# The kinds of aggregators that `aggregators.build_model_aggregator` builds.
KINDS = ("mean", "robust", "dp", "compressed")
# The least noise of `aggregator=dp` above 0; float32 would round smaller noise away.
LEAST_NOISE = 1e-6

_of_server = functools.partial(setting, group=process_settings.SERVER)
_GUARDED = {"aggregator": ("robust", "compressed")}
_PRIVATE = {"aggregator": ("dp",)}
_COMPRESSED = {"aggregator": ("compressed",)}


@dataclasses.dataclass(frozen=True, kw_only=True)
class AggregatorSettings:
    """The settings of an aggregator."""

    aggregator: str = _of_server(
        "mean",
        help="how the clients' updates are aggregated",
        choices=KINDS,
    )
    aggregator_zeroing: Optional[bool] = _of_server(
        True,
        help="robust, compressed: replace updates with far too large values by 0",
        only_with=_GUARDED,
    )
    aggregator_clipping: Optional[bool] = _of_server(
        True,
        help="robust, compressed: clip updates at the 0.8 quantile of norms",
        only_with=_GUARDED,
    )
    dp_noise_multiplier: Optional[float] = _of_server(
        1.0,
        help="dp: noise standard deviation divided by the clipping norm",
        minimum=0,
        only_with=_PRIVATE,
    )
    dp_clipping: Optional[str] = _of_server(
        "adaptive",
        help="dp: clip at the estimated median norm of the updates (adaptive), or at"
        " dp_clip_norm (fixed)",
        choices=("adaptive", "fixed"),
        only_with=_PRIVATE,
    )
    dp_clip_norm: Optional[float] = _of_server(
        0.1,
        help="dp: clipping norm of an update; with adaptive clipping that of the first"
        " round",
        above=0,
        only_with=_PRIVATE,
    )
    dp_delta: Optional[float] = _of_server(
        1e-5,
        help="dp: delta of the guarantee that summary.json states",
        above=0,
        below=1,
        only_with=_PRIVATE,
    )
    compressed_bits: Optional[int] = _of_server(
        8,
        help="compressed: bits per number",
        minimum=1,
        maximum=16,
        only_with=_COMPRESSED,
    )
    compressed_threshold: Optional[int] = _of_server(
        20000,
        help="compressed: tensors with at most this many numbers stay as they are",
        minimum=0,
        only_with=_COMPRESSED,
    )

    def aggregation(self) -> dict[str, Any]:
        """Returns the arguments of `build_model_aggregator` for the chosen kind."""
        applying = {
            each.name.removeprefix("aggregator_"): getattr(self, each.name)
            for each in settings_of(AggregatorSettings)
            if self.aggregator in each.only_with.get("aggregator", ())
        }
        # Only the privacy accountant uses delta.
        applying.pop("dp_delta", None)
        return {"kind": self.aggregator, **applying}
