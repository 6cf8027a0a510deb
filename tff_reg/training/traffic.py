"""The bytes that a client receives and sends in a round, from a process's types."""

from __future__ import annotations

import math
from typing import Any, Optional

from tff_reg import lazy
from tff_reg.lazy import tf, tff
from tff_reg.methods import all_clients, catalogue

internals = lazy.module("tff_reg.seam.internals")

# Beginnings of the names of aggregations, without `federated_`.
_UP = ("sum", "mean", "weighted_mean", "aggregate", "secure", "min", "max", "collect")
# Name of what clients send for the measurement of drift alone.
DRIFT_PARTS = "for_drift"
# Beginnings of the names of parts that are not counted.
_NOT_SENT = (f"{all_clients.NAME}/", DRIFT_PARTS)


def bytes_per_client(process: Any, name: str = "") -> Optional[tuple[int, int]]:
    """Counts the bytes of all broadcasts and aggregations of a process's round.

    `name` is the process name of a run; the references, `local` and `central`, send
    nothing.

    They are those of the weights, of what methods send beside them, such as SCAFFOLD's
    control variates, and a few of settings and metrics. A client's own state stays
    there; the mean of all clients' models and measurements of drift only serve a
    simulation.

    Returns:
      The bytes that a client receives and those that it sends per round; None if the
      process is no TFF computation or sends something whose size depends on its values.
    """
    if name in catalogue.REFERENCES:
        return 0, 0
    if not hasattr(process.next, "to_building_block"):
        return None
    down = up = 0.0
    blocks = [internals.building_block_of(process.next)]
    while blocks:
        block = blocks.pop()
        blocks.extend(block.children())
        if isinstance(block, tff.framework.Intrinsic):
            sent: Any = block.type_signature.parameter
            kind = block.uri.removeprefix("federated_")
            if kind == "broadcast":
                down += _bytes_of(sent.member)
            elif kind.startswith(_UP):
                first = sent[0] if isinstance(sent, tff.StructType) else sent
                up += _bytes_of(first.member)
    return None if math.isnan(down + up) else (int(down), int(up))


def _bytes_of(type_: Any) -> float:
    """Returns the bytes of a type's values; NaN if they vary."""
    if isinstance(type_, tff.StructType):
        return sum(
            _bytes_of(each)
            for name, each in tff.structure.iter_elements(type_)
            if not str(name).startswith(_NOT_SENT)
        )
    count = tf.TensorShape(getattr(type_, "shape", None)).num_elements()
    if count is None or type_.dtype.kind in "OSU":
        return math.nan
    return count * type_.dtype.itemsize
