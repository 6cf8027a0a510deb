"""Ctrl-C and SIGTERM: the process prints a message, cleans up and ends at once.

A round may spend a minute inside TensorFlow, where Python's signal handlers do not
run. So the interpreter's C code writes the signal to a pipe, and a thread that reads
the pipe ends the process. This is safe at any moment, because the files of a run
survive even `kill -9`.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from typing import NoReturn

from tff_reg import scratch

_NAMES = {signal.SIGINT: "Interrupted", signal.SIGTERM: "Terminated"}

_PATIENCE_SECONDS = 3.0


class Interruption:
    """The message and the clean-up for a signal that stops a command.

    It takes effect once `take_over` is called. A command that runs as a function does
    not call it, and leaves signals to its caller.
    """

    def __init__(self):
        self._message: Callable[[], str] = lambda: "nothing was started"
        self._cleanups: list[Callable[[], None]] = []
        self._stderr = sys.stderr

    def take_over(self) -> None:
        """Ends the process on SIGINT (exit code 130) and SIGTERM (143) from now on.

        Call it in the main thread.
        """
        # Also while standard error is redirected.
        self._stderr = os.fdopen(os.dup(2), "w", errors="backslashreplace")
        read, write = os.pipe()
        os.set_blocking(write, False)
        signal.set_wakeup_fd(write, warn_on_full_buffer=False)
        for number in _NAMES:
            # Python writes to the pipe only if a signal has a handler; and a signal
            # that the parent process ignored must stop this one.
            signal.signal(number, lambda signum, frame: None)
        threading.Thread(
            target=self._wait, args=[read], name="interruption", daemon=True
        ).start()

    def say(self, message: Callable[[], str]) -> None:
        """Sets the function that returns the message after "Interrupted: "."""
        self._message = message

    def before_exit(self, cleanup: Callable[[], None]) -> None:
        """Adds a function to call before the process ends; the last one runs first."""
        self._cleanups.append(cleanup)

    def _wait(self, read: int) -> None:
        number = 0
        while number not in _NAMES:
            number = os.read(read, 1)[0]
        # Ends even if a clean-up waits for a lock that the main thread holds.
        deadline = threading.Timer(_PATIENCE_SECONDS, _end, [128 + number])
        deadline.daemon = True
        deadline.start()
        try:
            for cleanup in reversed(self._cleanups):
                cleanup()
            line = f"{_NAMES[signal.Signals(number)]}: {self._message()}."
            print(f"\n{line}" if self._stderr.isatty() else line, file=self._stderr)
            sys.stdout.flush()
            self._stderr.flush()
        finally:
            _end(128 + number)


def _end(status: int) -> NoReturn:
    """Deletes the temporary folder and ends the process at once."""
    # Hides errors of the main thread, whose temporary files are deleted now.
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(nowhere, stream)
    try:
        scratch.remove()
    finally:
        os._exit(status)
