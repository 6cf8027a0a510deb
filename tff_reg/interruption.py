"""Ctrl-C and SIGTERM: stop at once, say so, leave nothing behind.

A round may be deep in TensorFlow for a minute, where Python's own handlers do not
run. So the signal is written to a pipe by the interpreter's C code, and a thread that
waits there ends the process. That is safe at any moment, because whatever a run
writes is written so that it survives `kill -9`.
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
    """The message and the actions when a command is stopped.

    It is heeded once `take_over` was called. Where a command is called as a function,
    nobody does: the signals are the caller's.
    """

    def __init__(self):
        self._message: Callable[[], str] = lambda: "nothing was started"
        self._cleanups: list[Callable[[], None]] = []

    def take_over(self) -> None:
        """Ends the process on SIGINT (exit code 130) and SIGTERM (143) from now on.

        To be called in the main thread.
        """
        read, write = os.pipe()
        os.set_blocking(write, False)
        signal.set_wakeup_fd(write, warn_on_full_buffer=False)
        for number in _NAMES:
            # Something must be installed for the pipe to be written to; and whatever
            # the parent ignored, `kill -INT` is meant.
            signal.signal(number, lambda signum, frame: None)
        threading.Thread(
            target=self._wait, args=[read], name="interruption", daemon=True
        ).start()

    def say(self, message: Callable[[], str]) -> None:
        """Sets the message after "Interrupted: "."""
        self._message = message

    def before_exit(self, cleanup: Callable[[], None]) -> None:
        """Adds something to call before the process ends, last added first."""
        self._cleanups.append(cleanup)

    def _wait(self, read: int) -> None:
        number = 0
        while number not in _NAMES:
            number = os.read(read, 1)[0]
        # Should something here wait for what the main thread holds, end all the same.
        deadline = threading.Timer(_PATIENCE_SECONDS, _end, [128 + number])
        deadline.daemon = True
        deadline.start()
        try:
            for cleanup in reversed(self._cleanups):
                cleanup()
            line = f"{_NAMES[signal.Signals(number)]}: {self._message()}."
            print(f"\n{line}" if sys.stderr.isatty() else line, file=sys.stderr)
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            _end(128 + number)


def _end(status: int) -> NoReturn:
    """Ends the process at once; its temporary folder is deleted."""
    # The main thread may miss its files yet: nobody wants to hear of that.
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(nowhere, stream)
    try:
        scratch.remove()
    finally:
        os._exit(status)
