"""Threads of this process that run the clients of a stage, on each device in turn."""

from __future__ import annotations

import collections
import concurrent.futures
import threading
import weakref
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Protocol

from tff_reg.lazy import tf
from tff_reg.runtime import values, visits

# Maximum bytes of finished results that wait for an earlier client's result, so that
# workers continue behind a slow client; updates of a large model never wait.
_WAITING_BYTES = 16 * 2**20


def may_wait(result: Any, at_a_time: int) -> int:
    """Returns the number of finished results that may wait for an earlier client's."""
    return min(at_a_time, _WAITING_BYTES // max(1, values.num_bytes(result)))


def _longest_first(
    left: Iterable[int], cohort: visits.Cohort
) -> collections.deque[int]:
    """Returns clients by their bytes, so that no long one is left for the end."""
    return collections.deque(sorted(left, key=cohort.num_bytes, reverse=True))


class Workers(Protocol):
    """Threads or processes that do the clients' work."""

    @property
    def devices(self) -> Sequence[str]:
        """Names of devices of this process; the server's part runs on the first."""
        ...

    def results(self, cohort: visits.Cohort) -> Iterator[list[list[Any]]]:
        """Yields the result of `visits.Program.run` for each client, in their order.

        If the caller stops early, or a client fails, no further clients are started.
        """
        ...


class ClientWorkers:
    """Threads for each device."""

    def __init__(self, devices: Sequence[str], clients_in_parallel: int):
        self.devices = tuple(devices)
        self._clients_in_parallel = clients_in_parallel
        self._pools = {}
        # By program: how many results may wait, after the first round.
        self._may_wait: Any = weakref.WeakKeyDictionary()
        self._lock = threading.Lock()

    def results(self, cohort: visits.Cohort) -> Iterator[list[list[Any]]]:
        """Yields results; see `Workers.results`."""
        count = len(cohort)
        at_a_time = window = len(self.devices) * self._clients_in_parallel
        if at_a_time == 1:
            for index in range(count):
                yield self._visit(cohort, index)
            return
        left = collections.deque(range(count))
        if self._may_wait.get(cohort.program, 0) >= count:
            left, window = _longest_first(left, cohort), count
        futures: dict[int, concurrent.futures.Future] = {}
        try:
            for index in range(count):
                while left and len(futures) < window:
                    following = left.popleft()
                    pool = self._pool(self._device(following))
                    futures[following] = pool.submit(self._visit, cohort, following)
                result = futures.pop(index).result()
                if index == 0 and window < count:
                    self._may_wait[cohort.program] = may_wait(result, count)
                    if self._may_wait[cohort.program] == count:
                        left, window = _longest_first(left, cohort), count
                    else:
                        window += may_wait(result, at_a_time)
                yield result
                del result
        finally:
            for future in futures.values():
                future.cancel()

    def stop(self) -> None:
        """Ends the threads after their current clients."""
        with self._lock:
            for pool in self._pools.values():
                pool.shutdown(wait=False)
            self._pools.clear()

    def _device(self, index: int) -> str:
        return self.devices[index % len(self.devices)]

    def _visit(self, cohort: visits.Cohort, index: int) -> list[list[Any]]:
        with tf.device(self._device(index)):
            return cohort.visit(index)

    def _pool(self, device: str) -> concurrent.futures.ThreadPoolExecutor:
        with self._lock:
            if device not in self._pools:
                self._pools[device] = concurrent.futures.ThreadPoolExecutor(
                    self._clients_in_parallel,
                    thread_name_prefix=f"tff_reg clients on {device}",
                )
            return self._pools[device]
