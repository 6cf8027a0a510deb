"""Programs that answer questions: lines of JSON in, `answer` and JSON out."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import signal
import subprocess
from collections.abc import Mapping, Sequence
from typing import Any

_ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
_SECONDS_TO_END = 30


class Program:
    """Runs a program that answers, for the body of a `with` statement.

    It prints `answer null` when it is ready.

    Args:
      command: The program and its arguments; it runs in the repository's root.
      environment: Its environment variables; None for this process's.
      errors: A file for what it prints to standard error; None for this process's.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        environment: Mapping[str, str] | None = None,
        errors: Any = None,
    ):
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            cwd=_ROOT,
            env=environment,
            start_new_session=True,
        )
        assert self._process.stdin and self._process.stdout  # They are pipes.
        self._questions, self._answers = self._process.stdin, self._process.stdout

    @property
    def pid(self) -> int:
        """The id of its process."""
        return self._process.pid

    def __enter__(self) -> Program:
        self._answer()  # when all is imported, which would slow down others
        return self

    def ask(self, *question: Any) -> Any:
        """Asks, and waits for the answer.

        Raises:
          RuntimeError: If the program ended.
        """
        self._questions.write(json.dumps(question) + "\n")
        self._questions.flush()
        return self._answer()

    def _answer(self) -> Any:
        for line in self._answers:
            if line.startswith("answer "):
                return json.loads(line.removeprefix("answer "))
        raise RuntimeError(
            "A process of the benchmark ended before its time, with status "
            f"{self._process.wait()}."
        )

    def __exit__(self, *error: object) -> None:
        with contextlib.suppress(BrokenPipeError):
            self._questions.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(0 if any(error) else _SECONDS_TO_END)
        # Whatever it started and left, too.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
