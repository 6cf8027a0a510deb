"""Commands in forks of a process that has imported what they need.

The server is multiprocessing's; its forks start in a tenth of the time of a process.
"""

from __future__ import annotations

import importlib
import multiprocessing
import os
import select
import signal
import subprocess
import threading
from collections.abc import Mapping, Sequence
from typing import NoReturn, Optional

from tff_reg import interruption, scratch
from tff_reg.commands import START, command_line

_CONTEXT = multiprocessing.get_context("forkserver")
# Every start reads the exit status of all ended forks, and whoever reads it second gets
# 255.
_ONE_AT_A_TIME = threading.Lock()


def fork(
    command: Sequence[str], environment: Mapping[str, str], errors: Optional[str]
) -> Optional[Fork]:
    """Starts a command in a fork; None if it is none of ours, or wants messages.

    `errors` is the file of its standard error; None for ours.
    """
    ours, arguments = command[: len(START)], command[len(START) :]
    if tuple(ours) != START or "--verbosity" in " ".join(arguments):
        return None
    return Fork(arguments, environment, errors)


class Fork:
    """A command in a fork, with the methods of a `subprocess.Popen`."""

    def __init__(
        self,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        errors: Optional[str],
    ):
        """Starts it."""
        _CONTEXT.set_forkserver_preload(["tff_reg.commands.preloaded"])
        self._process = _CONTEXT.Process(
            target=_carry_out, args=(arguments, dict(environment), errors), daemon=True
        )
        with _ONE_AT_A_TIME:
            self._process.start()

    def wait(self, timeout: Optional[float] = None) -> int:
        """Waits for the end; returns the exit status."""
        select.select([self._process.sentinel], [], [], timeout)  # Reads no status.
        with _ONE_AT_A_TIME:
            status = self._process.exitcode
        if status is None:
            raise subprocess.TimeoutExpired("a fork", timeout or 0.0)
        return status

    def send_signal(self, number: int) -> None:
        """Sends the process a signal, unless it has ended."""
        with _ONE_AT_A_TIME:
            if self._process.exitcode is None and self._process.pid:
                os.kill(self._process.pid, number)

    def kill(self) -> None:
        """Ends the process at once."""
        self._process.kill()


def _end_with_the_parent() -> None:
    """Ends this process after its series was killed; it would hold its directory."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os.kill(os.getpid(), signal.SIGKILL)


def _carry_out(
    arguments: Sequence[str], environment: Mapping[str, str], errors: Optional[str]
) -> NoReturn:
    threading.Thread(target=_end_with_the_parent, daemon=True).start()
    os.environ.clear()
    os.environ.update(environment)
    if errors is not None:
        for path, stream in ((os.devnull, 1), (errors, 2)):
            os.dup2(os.open(path, os.O_WRONLY), stream)
    stop = interruption.Interruption()
    stop.take_over()
    name, *rest = arguments
    module = importlib.import_module(f"tff_reg.commands.{name}")
    try:
        command_line.execute(module.main, stop, rest)
    finally:
        scratch.remove()
