"""Calls of Python functions in processes of their own, with what they hold."""

from __future__ import annotations

import pickle
import sys
import tempfile
from collections.abc import Callable
from typing import Any, Optional

import cloudpickle

from tff_reg import plugins
from tff_reg.experiment.series import batch
from tff_reg.methods import catalogue
from tff_reg.settings import SettingError

# Runs as `python -c`. The user's modules must be found before the rest can be read, and
# the user's script is still what defines its functions.
_CALL = """
import pickle, sys
with open(sys.argv[1], "rb") as file:
    sys.path[:], script = pickle.load(file)
    sys.modules["__main__"].__dict__.update(script)
    pickle.load(file)()
"""


def in_a_process(executor: Any, work: Callable[[], Optional[str]]) -> Optional[str]:
    """Calls a function in a process of an executor, as `Batch.run_one`.

    Args:
      executor: As `jobs.ChildProcesses`.
      work: The function; it may hold anything that cloudpickle copies, such as classes
        of a notebook. It returns None, or why it failed.

    Returns:
      None, or why it failed.

    Raises:
      SettingError: If something that it holds cannot be copied.
    """
    file = getattr(sys.modules["__main__"], "__file__", None)
    script = {} if file is None else {"__file__": file}
    # Those of plugin files are found by their setting.
    own = {
        name: cls
        for name in catalogue.REGISTRY.loaded()
        if not (cls := catalogue.find(name)).__module__.startswith(plugins.MODULE)
    }
    with tempfile.NamedTemporaryFile() as copies:
        pickle.dump((sys.path, script), copies)
        try:
            cloudpickle.dump(_Call(work, own), copies)
        except Exception as error:  # Whatever the user's objects raise.
            why = f"something given cannot be copied to another process ({error})"
            raise SettingError("jobs", None, f"{why}; leave jobs out.") from error
        copies.flush()
        command = [sys.executable, "-c", _CALL, copies.name]
        return batch.reason_of(*executor.execute(command))


class _Call:
    """A function to call, and the methods to register before it is called."""

    def __init__(self, work: Callable[[], Optional[str]], methods: dict[str, Any]):
        self._work = work
        # Of a class within a function, cloudpickle forgets where it was made.
        self._methods = {n: (cls, cls.__qualname__) for n, cls in methods.items()}

    def __call__(self) -> None:
        """Ends the process with exit code 1 and the reason of a failure."""
        for name, (cls, where) in self._methods.items():
            cls.__qualname__ = where
            catalogue.REGISTRY.add(name, cls)
        if (why := self._work()) is not None:
            raise SystemExit(why)
