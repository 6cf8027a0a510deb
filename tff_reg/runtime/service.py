"""One of TFF's workers for runs on other machines, and whether such workers answer.

What `bin/worker` does. Imports neither TensorFlow nor TFF.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import subprocess
import threading
import time
from collections.abc import Sequence
from typing import Optional

from tff_reg.lazy import grpc
from tff_reg.runtime import devices, worker_process

CONNECT_SECONDS = 5.0
_START_TIMEOUT_SECONDS = 60.0
_THREADS_VARIABLE = "TF_NUM_INTRAOP_THREADS"


def check_workers(addresses: Sequence[str]) -> None:
    """Checks that workers can be connected to, within `CONNECT_SECONDS`.

    Args:
        addresses: As host:port.

    Raises:
        WorkerError: If one cannot.
    """
    deadline = time.monotonic() + CONNECT_SECONDS
    options = (("grpc.enable_http_proxy", 0), ("grpc.max_reconnect_backoff_ms", 500))
    missing = []
    with contextlib.ExitStack() as stack:
        channels = [
            stack.enter_context(grpc.insecure_channel(address, options))
            for address in addresses
        ]
        connected = [grpc.channel_ready_future(channel) for channel in channels]
        for address, future in zip(addresses, connected):
            try:
                future.result(max(0.0, deadline - time.monotonic()))
            except grpc.FutureTimeoutError:
                missing.append(address)
    if missing:
        raise worker_process.WorkerError(no_answer(missing))


def no_answer(addresses: Sequence[str]) -> str:
    """What is said when there are no workers at `addresses`."""
    return (
        f"No TFF worker answers at {', '.join(addresses)}: start it there with "
        "bin/worker --port=PORT, or leave it out of the list."
    )


def check_port(port: int) -> None:
    """Checks that nobody listens on a port.

    The worker would not notice: it shares its port with whoever else does.

    Raises:
        ValueError: If somebody does, or this user may not.
    """
    for family, address in ((socket.AF_INET6, "::"), (socket.AF_INET, "0.0.0.0")):
        try:
            with socket.socket(family, socket.SOCK_STREAM) as probe:
                # As the worker listens: what ended a moment ago does not count.
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind((address, port))
        except PermissionError:
            raise ValueError("this user may not listen there.") from None
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise ValueError("somebody else listens there already.") from None
            # No IPv6 here: the worker takes what there is.


class Service:
    """A worker process that listens on a port.

    Args:
        port: The port, on all addresses of this machine.
    """

    def __init__(self, port: int):
        self._port = port
        self._lock = threading.Lock()
        self._process: Optional[subprocess.Popen] = None
        self._stopped = False

    def start(self) -> str:
        """Starts the worker and waits until it can be connected to.

        TensorFlow gets as many threads for an operation as the in-process runtime
        gives it, unless the environment says otherwise.

        Returns:
            One line that says where it listens.

        Raises:
            WorkerError: If it ends or does not answer.
        """
        threads = str(devices.threads_for_an_operation())
        with self._lock:
            if self._stopped:
                raise worker_process.WorkerError("The worker was stopped.")
            self._process = worker_process.start(
                [f"--port={self._port}"], {_THREADS_VARIABLE: threads, **os.environ}
            )
        with grpc.insecure_channel(
            f"localhost:{self._port}", (("grpc.max_reconnect_backoff_ms", 200),)
        ) as channel:
            ready = grpc.channel_ready_future(channel)
            deadline = time.monotonic() + _START_TIMEOUT_SECONDS
            while True:
                try:
                    ready.result(0.2)
                    break
                except grpc.FutureTimeoutError:
                    self._check()
                    if time.monotonic() > deadline:
                        self.stop()
                        raise worker_process.WorkerError(
                            "The worker does not answer."
                        ) from None
        return (
            f"{socket.gethostname()}:{self._port} is ready for clients, "
            f"{devices.cores()} cores; Ctrl-C ends it."
        )

    def wait(self) -> None:
        """Waits until the worker ends.

        Raises:
            WorkerError: When it does, unless it was stopped.
        """
        self._started().wait()
        self._check()

    def stop(self) -> None:
        """Ends the worker, if it runs."""
        with self._lock:
            self._stopped = True
            if self._process is not None:
                self._process.kill()
                self._process.wait()

    def _started(self) -> subprocess.Popen:
        if self._process is None:
            raise worker_process.WorkerError("The worker was not started.")
        return self._process

    def _check(self) -> None:
        status = self._started().poll()
        if status is not None and not self._stopped:
            raise worker_process.WorkerError(
                f"The worker ended with status {status}; set "
                f"{worker_process.LOG_VARIABLE} to a file name to see why."
            )
