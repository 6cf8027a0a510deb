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
from typing import Callable

_NAMES = {signal.SIGINT: "Interrupted", signal.SIGTERM: "Terminated"}

_PATIENCE_SECONDS = 3.0


class Interruption:
    """Ends the process on SIGINT (exit code 130) and SIGTERM (143)."""

    def __init__(self):
        """Takes over the two signals; call it in the main thread."""
        self._message: Callable[[], str] = lambda: "nothing was started"
        self._cleanups: list[Callable[[], None]] = []
        self._read, write = os.pipe()
        os.set_blocking(write, False)
        signal.set_wakeup_fd(write, warn_on_full_buffer=False)
        for number in _NAMES:
            # Something must be installed for the pipe to be written to; and whatever
            # the parent ignored, `kill -INT` is meant.
            signal.signal(number, lambda signum, frame: None)
        threading.Thread(target=self._wait, name="interruption", daemon=True).start()

    def say(self, message: Callable[[], str]) -> None:
        """Sets what is said after "Interrupted: "."""
        self._message = message

    def before_exit(self, cleanup: Callable[[], None]) -> None:
        """Adds something to call before the process ends, last added first."""
        self._cleanups.append(cleanup)

    def _wait(self) -> None:
        number = 0
        while number not in _NAMES:
            number = os.read(self._read, 1)[0]
        # Should something here wait for what the main thread holds, end all the same.
        deadline = threading.Timer(_PATIENCE_SECONDS, os._exit, [128 + number])
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
            os._exit(128 + number)
