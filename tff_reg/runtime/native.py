"""The native runtime: computations run in TFF's own C++ worker.

TFF starts the same worker by itself; this module starts it so that

* it ends with this process, however that ends: the kernel kills it when the thread
    that started it ends (`PR_SET_PDEATHSIG`), even after `kill -9`, and `shutdown` or
    the end of the interpreter ends it otherwise;
* it does not hold this process's standard output and error, so `command | less` ends
    when the command ends;
* it is reached from this machine only, if the kernel allows that
    (`worker_process.restrict_to_loopback`);
* Ctrl-C goes to Python only; an interrupted computation is ended by ending the worker,
    and the next call starts a new one.

Secure sums run in TFF's simulated bodies (sums without the cryptography), which
TFF's own default context refuses.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import threading
import time
from typing import Optional

from tff_reg.lazy import logging
from tff_reg.runtime import worker_process
from tff_reg.seam import internals

_START_TIMEOUT_SECONDS = 120.0
_POLL_SECONDS = 0.05
_STOP_TIMEOUT_SECONDS = 5.0


class Worker:
    """One process of TFF's C++ worker, started at first use.

    Args:
        max_concurrent_calls: Number of TensorFlow computations that the worker runs at
            the same time; None for no limit.
    """

    def __init__(self, max_concurrent_calls: Optional[int] = None):
        self._max_concurrent_calls = max_concurrent_calls or -1
        self._lock = threading.Lock()
        self._process = None
        self._channel = None
        self._stub = None
        self._owner_pid = os.getpid()

    @property
    def pid(self) -> Optional[int]:
        """The worker's process id, or None if it is not running."""
        process = self._process
        if process is None or process.poll() is not None:
            return None
        return process.pid

    def stub(self):
        """Returns a stub connected to a running worker; starts one if needed."""
        with self._lock:
            if self._stub is not None and self._stub.is_ready and self.pid:
                return self._stub
            self._stop_locked()
            self._start_locked()
            return self._stub

    def stop(self) -> None:
        """Ends the worker, if there is one; the next `stub` starts another."""
        with self._lock:
            self._stop_locked()

    def _start_locked(self) -> None:
        port = internals.pick_unused_port()
        self._process = worker_process.start(
            [
                f"--port={port}",
                f"--max_concurrent_computation_calls={self._max_concurrent_calls}",
            ]
        )
        self._channel = internals.open_channel(f"localhost:{port}")
        self._stub = internals.connect(self._channel)
        deadline = time.monotonic() + _START_TIMEOUT_SECONDS
        problem = None
        while problem is None and not self._stub.is_ready:
            if self._process.poll() is not None:
                problem = f"ended at once with status {self._process.returncode}"
            elif time.monotonic() > deadline:
                problem = f"did not answer within {_START_TIMEOUT_SECONDS:.0f} seconds"
            time.sleep(_POLL_SECONDS)
        if problem is not None:
            self._stop_locked()
            raise worker_process.WorkerError(
                f"TFF's C++ worker {problem}; set {worker_process.LOG_VARIABLE} to a "
                "file name to see why."
            )
        try:
            worker_process.restrict_to_loopback(self._process.pid)
        except OSError as error:
            logging.warning(
                "TFF's C++ worker listens on all interfaces at port %d, and cannot be"
                " restricted (%s): block the port with a firewall.",
                port,
                error,
            )

    def _stop_locked(self) -> None:
        process, channel = self._process, self._channel
        self._process = self._channel = self._stub = None
        if os.getpid() != self._owner_pid:  # In a fork: the parent's worker.
            return
        if channel is not None:
            channel.close()
        if process is None:
            return
        process.kill()  # it has no state to save
        # If it cannot end at once, the kernel ends it later.
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_STOP_TIMEOUT_SECONDS)


def create_context(worker: Worker, clients: int = 0) -> internals.NativeContext:
    """Returns the context of a worker, with a default number of clients."""
    return internals.NativeContext(worker.stub, clients, worker.stop)
