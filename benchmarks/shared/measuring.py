"""Seconds and memory."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any


def seconds(function: Callable[[], Any]) -> float:
    """Calls a function; returns its wall-clock seconds."""
    began = time.perf_counter()
    function()
    return time.perf_counter() - began


def in_turns(
    ways: Mapping[str, Callable[[], Any]], turns: int, *, unmeasured: int = 0
) -> dict[str, list[float]]:
    """Calls functions in turns, so that other work on the machine slows down all.

    Args:
      ways: The functions by name.
      turns: Measured calls of each function.
      unmeasured: Calls of each function before them.

    Returns:
      The seconds of each call by the function's name.
    """
    found = {name: [] for name in ways}
    for turn in range(unmeasured + turns):
        for name, way in ways.items():
            taken = seconds(way)
            if turn >= unmeasured:
                found[name].append(taken)
    return found


def forget_peak(process: str = "self") -> bool:
    """Lets the peak of a process's resident memory begin anew.

    Args:
      process: Its id.

    Returns:
      Whether the system can reset and report the peak; only Linux can.
    """
    try:
        with open(f"/proc/{process}/clear_refs", "w", encoding="ascii") as references:
            references.write("5")
    except OSError:
        return False
    return True


def resident_bytes(process: str = "self", *, peak: bool = False) -> int:
    """A process's resident memory, now or at its peak; `process` is an id."""
    field = "VmHWM" if peak else "VmRSS"
    with open(f"/proc/{process}/status", encoding="ascii") as status:
        line = next(line for line in status if line.startswith(field))
    return int(line.split()[1]) * 1024
