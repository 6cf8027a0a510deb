"""When convolutions of narrow maps gain by having a batch's maps side by side.

`tff_reg.models.narrow_maps` takes its bounds from this. With `ONEDNN_MAX_CPU_ISA=AVX2`
a CPU with AVX512 computes as one without.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any, Callable

from benchmarks.shared import measuring, subject
from tff_reg import models
from tff_reg.lazy import flags, tf

_SIDES, _CHANNELS, _BATCHES = (1, 2, 3, 4, 6, 8), (128, 256, 512), (8, 32, 64)
_TURNS = (30, 5)


def measure(
    *,
    sides: Sequence[int] = _SIDES,
    channels: Sequence[int] = _CHANNELS,
    batches: Sequence[int] = _BATCHES,
    quick: bool = False,
    report: Callable[[str], None] = lambda line: None,
) -> list[dict[str, Any]]:
    """Times a convolution and its gradient, both ways in turns.

    Args:
      sides: Heights and widths of the maps.
      channels: Input and output channels.
      batches: Maps of a batch.
      quick: Fewer turns.
      report: Called with a line now and then.

    Returns:
      JSON values by name: `side`, `channels`, `batch`, `milliseconds` of TensorFlow's
      convolution with its whole gradient, and the ratios to TensorFlow's time of maps
      side by side, with all gradients (`trained`) and without the weights' (`frozen`).
    """
    rows = []
    for side in sides:
        for width in channels:
            for batch in batches:
                rows.append(_row(side, width, batch, _TURNS[quick]))
            report(f"{side} x {side} x {width}: done")
    return rows


def _row(side: int, channels: int, batch: int, turns: int) -> dict[str, Any]:
    x = tf.random.stateless_normal([batch, side, side, channels], [0, 0])
    kernel = tf.random.stateless_normal([3, 3, channels, channels], [0, 1])
    ways = {}
    for learned in ("trained", "frozen"):
        for way, convolve in (
            ("plain", lambda x, kernel: tf.nn.conv2d(x, kernel, 1, "SAME")),
            ("beside", models.narrow_maps.convolve),
        ):
            step = _step(convolve, learned == "frozen", x.shape[1:], kernel.shape)
            ways[f"{learned}, {way}"] = lambda step=step: step(x, kernel)[0].numpy()
    found = {
        way: statistics.median(seconds)
        for way, seconds in measuring.in_turns(ways, turns, unmeasured=2).items()
    }
    return {
        "side": side,
        "channels": channels,
        "batch": batch,
        "milliseconds": 1000 * found["trained, plain"],
        "trained": found["trained, beside"] / found["trained, plain"],
        "frozen": found["frozen, beside"] / found["frozen, plain"],
    }


def _step(convolve, frozen: bool, map_shape, kernel_shape):
    """A function of a batch and a kernel to a gradient, all of which is computed."""

    def step(x, kernel):
        y = convolve(x, kernel)
        # As the features that a norm keeps for its gradient.
        return tf.gradients(y, [x] if frozen else [x, kernel], y)

    return tf.function(
        step,
        input_signature=[
            tf.TensorSpec([None, *map_shape]),
            tf.TensorSpec(kernel_shape),
        ],
    )


def table(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """The lines of a table of what `measure` returns."""
    return subject.to_markdown(
        [
            {
                "maps": f"{row['side']} x {row['side']} x {row['channels']}",
                "batch": str(row["batch"]),
                "ms": f"{row['milliseconds']:.2f}",
                "side by side": f"{row['trained']:.2f}",
                "frozen": f"{row['frozen']:.2f}",
            }
            for row in rows
        ]
    )


def _run(given: flags.FlagValues) -> None:
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    rows = measure(quick=given.quick, report=subject.say)
    subject.finish(given, rows, table(rows))


SUBJECT = subject.Subject(
    run=_run,
    help="""\
bin/bench narrow_maps [--quick] [--json=FILE]
  3 x 3 convolutions of maps of 1 to 8 columns with a batch's maps side by side, against
  TensorFlow's on one thread: forward and backward, and without the weights' gradient.
  Three minutes, or one with --quick.""",
)
