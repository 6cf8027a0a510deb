"""Turns the Jupyter kernel that calls `replace` into one of this repository's `.venv`.

TFF has no packages for Colab's Python, and a hosted notebook stays connected to the
kernel that was started for it. So that kernel's process becomes another program: the
environment's Python, by way of `bin/launch`, which makes `.venv` where it is missing,
with IPython's kernel on the same connection file and thus on the same ports. What is
connected there finds the variables gone and the rest as before. Restarting the kernel
brings the old Python back.

Runs in the old Python, so: any Python from 3.8, the standard library and IPython's
kernel.
"""

import os
import pathlib
import shutil
import subprocess
import threading

from ipykernel.connect import get_connection_file

_ROOT = pathlib.Path(__file__).resolve().parents[2]
# IPython's kernel is among what --dev adds.
_LAUNCH = [str(_ROOT / "bin" / "launch"), "--dev"]
# So that the answer to the cell that calls `replace` is on its way before.
_DELAY_SECONDS = 1.0


class _Message(Exception):
    """Ends a cell, and those after it, with one line instead of a traceback."""

    def _render_traceback_(self):
        return [str(self)]


class KernelReplacedError(_Message):
    """Raised when the kernel is about to be another one."""


class NoEnvironmentError(_Message):
    """Raised when there is no environment to replace the kernel by."""


def replace() -> None:
    """Makes the environment, then the kernel that this runs in one of it.

    Raises:
      KernelReplacedError: Always, in the end: no later cell may run in the old kernel.
      NoEnvironmentError: If the environment could not be made; the kernel stays.
    """
    environ = {
        **os.environ,
        # The old one may name a module that the environment does not have.
        "MPLBACKEND": "module://matplotlib_inline.backend_inline",
    }
    if not _prepare(environ) and not (_add_python(environ) and _prepare(environ)):
        raise NoEnvironmentError("There is no environment; the lines above say why.")
    arguments = [*_LAUNCH, "-m", "ipykernel_launcher", "-f", get_connection_file()]
    threading.Timer(_DELAY_SECONDS, _become, [arguments, environ]).start()
    raise KernelReplacedError(
        "The kernel is one with tff_reg now. Run the cells again, this one too."
    )


def _prepare(environ) -> bool:
    """Makes `.venv`, if it is not there; whether it is."""
    with subprocess.Popen(
        [*_LAUNCH, "-c", ""],
        env=environ,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        assert process.stdout is not None  # It is a pipe.
        for line in process.stdout:
            print(line, end="", flush=True)
    return process.returncode == 0


def _add_python(environ) -> bool:
    """Lets uv, which Colab has, install a Python for `.venv`; whether it did."""
    uv = shutil.which("uv", path=environ.get("PATH"))
    if uv is None or "TFF_REG_PYTHON" in environ:
        return False
    print("Installing Python 3.11 with uv.", flush=True)
    subprocess.run([uv, "python", "install", "3.11"], env=environ, check=False)
    found = subprocess.run(
        [uv, "python", "find", "--no-project", "--system", "3.11"],
        env=environ,
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    environ["TFF_REG_PYTHON"] = found.stdout.strip()
    return found.returncode == 0


def _become(arguments, environ) -> None:
    # The kernel has put pipes to itself in the place of the standard streams.
    null = os.open(os.devnull, os.O_RDWR)
    for stream in range(3):
        os.dup2(null, stream)
    os.execve(arguments[0], arguments, environ)
