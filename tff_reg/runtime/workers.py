"""Runs a task for every client: on the devices in turn, results in order."""

from __future__ import annotations

import collections
import concurrent.futures
import threading
from collections.abc import Iterator, Sequence
from typing import Any, Callable, Protocol

from tff_reg.lazy import tf

# What results that are done and wait for their turn may hold altogether. They let
# workers go on behind a slow client; of a large model's updates none may wait.
_WAITING_BYTES = 16 * 2**20


def in_order(
    count: int,
    submit: Callable[[int], concurrent.futures.Future],
    at_a_time: int,
    size: Callable[[Any], int],
) -> Iterator[Any]:
    """Yields the results of `submit(0)`, ..., `submit(count - 1)`, in this order.

    If the caller stops early, or a task raises, no further tasks are submitted and
    those that have not begun are cancelled.

    Args:
        count: How many tasks there are.
        submit: Submits a task, given its number.
        at_a_time: How many run at the same time.
        size: The bytes of a result; the first one's decides how many may wait.

    Yields:
        The results.
    """
    window = at_a_time
    futures = collections.deque()
    submitted = 0
    try:
        while submitted < count or futures:
            while submitted < count and len(futures) < window:
                futures.append(submit(submitted))
                submitted += 1
            result = futures.popleft().result()
            if submitted == window == at_a_time:
                window += min(at_a_time, _WAITING_BYTES // max(1, size(result)))
            yield result
            del result
    finally:
        for future in futures:
            future.cancel()


class Workers(Protocol):
    """What runs the clients of a round: here, or on other machines."""

    @property
    def devices(self) -> Sequence[str]:
        """Names of devices; the server's part runs on the first."""
        ...

    def in_order(
        self, count: int, task: Callable[[int], Any], size: Callable[[Any], int]
    ) -> Iterator[Any]:
        """As `ClientWorkers.in_order`."""
        ...


class ClientWorkers:
    """Threads for each device.

    Args:
        devices: The names of the devices; client `i` runs on device `i % len`.
        clients_in_parallel: How many run at the same time on each device.
    """

    def __init__(self, devices: Sequence[str], clients_in_parallel: int):
        self.devices = tuple(devices)
        self._clients_in_parallel = clients_in_parallel
        self._pools = {}
        self._lock = threading.Lock()

    def in_order(
        self, count: int, task: Callable[[int], Any], size: Callable[[Any], int]
    ) -> Iterator[Any]:
        """Yields `task(0)`, ..., `task(count - 1)`, computed under their devices.

        If the caller stops early, or a task raises, no further tasks are started.

        Args:
            count: How many tasks there are.
            task: What to run, given its number.
            size: The bytes of a result; the first one's decides how many may wait.

        Yields:
            The results in the order of their numbers.
        """
        workers = len(self.devices) * self._clients_in_parallel
        if workers == 1:
            for index in range(count):
                yield self._run(task, index)
            return

        def submit(index):
            return self._pool(self._device(index)).submit(self._run, task, index)

        yield from in_order(count, submit, workers, size)

    def stop(self) -> None:
        """Ends the threads, once they have done what they are doing."""
        with self._lock:
            for pool in self._pools.values():
                pool.shutdown(wait=False)
            self._pools.clear()

    def _device(self, index: int) -> str:
        return self.devices[index % len(self.devices)]

    def _run(self, task: Callable[[int], Any], index: int) -> Any:
        with tf.device(self._device(index)):
            return task(index)

    def _pool(self, device: str) -> concurrent.futures.ThreadPoolExecutor:
        with self._lock:
            if device not in self._pools:
                self._pools[device] = concurrent.futures.ThreadPoolExecutor(
                    self._clients_in_parallel,
                    thread_name_prefix=f"tff_reg clients on {device}",
                )
            return self._pools[device]
