"""Where the TensorFlow computations of the calling thread run.

In this process unless said otherwise. While a client is worked on elsewhere, its
thread has a place: a `remote.Visit`, whose values stay on a worker until they are
fetched.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Iterator
from typing import Any, Callable

_thread = threading.local()


class WorkerLost(Exception):
    """The place has gone in the middle of a client's work, which can be repeated."""


def current() -> Any:
    """The calling thread's place; None for this process."""
    return getattr(_thread, "place", None)


@contextlib.contextmanager
def at(place: Any) -> Iterator[None]:
    """Sets the calling thread's place for the body of a `with` statement."""
    previous = current()
    _thread.place = place
    try:
        yield
    finally:
        _thread.place = previous


def in_this_process(function: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """For an intrinsic: its argument is fetched, and it runs here, all of it."""

    @functools.wraps(function)
    def run(argument, type_spec):
        place = current()
        if place is None:
            return function(argument, type_spec)
        with at(None):
            return function(place.fetch(argument), type_spec)

    return run
