"""Connections to Ray: to a running cluster, or to one that is started on this machine.

Imports neither TensorFlow nor TFF, and Ray only when a connection is made.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from typing import Any, Optional

from absl import logging

from tff_reg import quiet, scratch
from tff_reg.lazy import ray
from tff_reg.runtime import devices, ray_watcher
from tff_reg.seam import WorkerError, ray_internals

# Sockets' paths may have 107 bytes, of which Ray's names take 64.
_LONGEST_FOLDER = 43
_STOP_SECONDS = 20.0
_CONNECT_SECONDS = 5.0
# No usage statistics, no messages about missing metrics. Actors have the priority of
# this process, which waits for them, not a lower one (niceness).
_ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_enable_metrics_collection": "0",
    "RAY_BACKEND_LOG_LEVEL": "fatal",
    "RAY_worker_niceness": "0",
    # Ray gives its own servers 30 s to start, too little on a busy machine.
    "RAY_gcs_server_port_wait_time_s": "60",
    # Results below 4 MB are sent in messages; Ray's default is below 0.1 MB. Through
    # the object store, a result of 0.5 MB takes 3 ms more, one of 4 MB equally long.
    "RAY_max_direct_call_object_size": str(2**22),
}


def check_address(address: str) -> None:
    """Checks the form of an address."""
    host, _, port = address.rpartition(":")
    if address != "auto" and not (
        host and port.isascii() and port.isdigit() and 1 <= int(port) <= 65535
    ):
        raise ValueError(
            "Ray's address must be auto or its head node's host:port, found"
            f" {address!r}."
        )


def check_installed() -> None:
    """Checks that Ray is installed."""
    if importlib.util.find_spec("ray") is None:
        raise WorkerError(
            "Ray is not installed: bin/run --runtime=ray installs it, and so does "
            "pip install ray."
        )


class Cluster:
    """A connection to Ray.

    Attributes:
        is_local: Whether Ray was started on this machine.
        folder: The folder of a started Ray, removed when this process ends; or None.
    """

    def __init__(self, address: Optional[str], cpus: float):
        for name, value in _ENVIRONMENT.items():
            os.environ.setdefault(name, value)
        self._watcher: Optional[subprocess.Popen] = None
        self._printing: Any = None
        with quiet.unheard():
            self._is_ours = not ray.is_initialized()
        self.is_local = self._is_ours and address is None
        self.folder: Optional[str] = None
        if not self._is_ours:
            return
        where = "on this machine" if address is None else f"at {address}"
        for is_last in [False, True] if self.is_local else [True]:
            try:
                self._connect(address, cpus)
                break
            except (ConnectionError, OSError, RuntimeError, ValueError) as error:
                self.stop()
                why = first_line(error)
                if is_last:
                    raise WorkerError(f"There is no Ray {where}: {why}") from error
                # Ray waits half a minute for its servers; a busy machine needs longer.
                logging.warning("Ray did not start (%s). Once more.", why)

    def _connect(self, address: Optional[str], cpus: float) -> None:
        """Connects to a cluster, or starts Ray in a folder of its own."""
        options: dict[str, Any] = {"address": address}
        if self.is_local:
            self.folder = self._watched_folder()
            options = {
                "address": "local",
                "num_cpus": max(devices.cores(), cpus),
                "include_dashboard": False,
                "_temp_dir": self.folder,
                "_node_ip_address": "127.0.0.1",
            }
        elif address not in (None, "auto"):
            # Ray would wait for minutes.
            host, _, port = address.rpartition(":")
            there = (host.strip("[]"), int(port))
            socket.create_connection(there, _CONNECT_SECONDS).close()
        self._printing = ray_internals.set_attribute(
            "worker", "print_to_stdstream", _say
        )
        # Ray sets its own SIGTERM handler; ours says how to resume.
        with _handlers_kept(), quiet.unheard(), _loopback(self.is_local):
            ray.init(
                **options,
                namespace="tff_reg",
                log_to_driver=False,
                configure_logging=False,
                logging_level=40,  # ERROR
            )

    def stop(self) -> None:
        """Disconnects from the cluster, and ends it if it was started here."""
        if self._is_ours:
            ray.shutdown()
            if self._printing is not None:
                ray_internals.set_attribute(
                    "worker", "print_to_stdstream", self._printing
                )
        if self._watcher is not None:
            assert self._watcher.stdin
            self._watcher.stdin.close()
            with contextlib.suppress(subprocess.TimeoutExpired):  # It continues alone.
                self._watcher.wait(_STOP_SECONDS)
            self._watcher = None

    def _watched_folder(self) -> str:
        """Makes a folder for Ray, which is removed when this process ends."""
        folder = tempfile.mkdtemp(prefix="ray-")
        if len(folder) > _LONGEST_FOLDER:
            os.rmdir(folder)
            folder = tempfile.mkdtemp(prefix="tff_reg-ray-", dir="/tmp")
        self._watcher = subprocess.Popen(
            [sys.executable, "-I", "-S", ray_watcher.__file__]
            + [folder, scratch.folder() or ""],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        return folder


@contextlib.contextmanager
def _handlers_kept() -> Iterator[None]:
    """Restores the handler of SIGTERM after the body of a `with` statement."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)


@contextlib.contextmanager
def _loopback(is_asked_for: bool) -> Iterator[None]:
    """Makes Ray listen on 127.0.0.1 only, if asked for, in the body of a `with`.

    Anybody who reaches Ray's ports can run programs. Ray would replace this address by
    the machine's own and listen on all interfaces, except with a switch for macOS.
    """
    if not is_asked_for:
        yield
        return
    before = ray_internals.set_attribute("ray_constants", "ENABLE_RAY_CLUSTER", False)
    try:
        yield
    finally:
        ray_internals.set_attribute("ray_constants", "ENABLE_RAY_CLUSTER", before)


def _say(data: dict[str, Any], ignore_prefix: bool) -> None:
    """Logs the first sentence of each of Ray's messages (coloured paragraphs)."""
    del ignore_prefix
    for text in data["lines"]:
        logging.warning("Ray: %s", text.strip().splitlines()[0].split(". ")[0])


def own_node_is_lost() -> bool:
    """Returns whether this process's node of Ray is dead."""
    own = ray.get_runtime_context().get_node_id()
    return not any(node["Alive"] and node["NodeID"] == own for node in ray.nodes())


def first_line(error: BaseException) -> str:
    """Returns the first line of an error's message, else its type."""
    lines = [line.strip() for line in str(error).splitlines()]
    return next((line for line in lines if line), type(error).__name__)
