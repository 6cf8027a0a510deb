"""The environments of the other simulators, and of our other lane."""

from __future__ import annotations

import os
import pathlib
import shutil
import subprocess
import sys

from benchmarks.shared import subject

_HERE = pathlib.Path(__file__).resolve().parent
_REPOSITORY = _HERE.parent.parent
_ROOT = _REPOSITORY / "build" / "peers"
# The versions that TFF pins, which bin/launch installs.
TFF_PINS = "tff_pins"
# Written last, with what was installed.
_STAMP = "installed.txt"


# The oldest Python of simulators that need a newer one than this package.
_OLDEST = {"blazefl": (3, 12)}


def python(name: str) -> str:
    """The Python of an environment, which is made if it is missing or outdated.

    TFF_REG_PEERS_TORCH and its like name the Python of a machine that can install
    nothing.

    Args:
      name: A file of requirements/, without its ending, or `TFF_PINS`.

    Returns:
      The path of the interpreter.

    Raises:
      RefusedError: If it cannot be installed.
    """
    if given := os.environ.get(f"TFF_REG_PEERS_{name.upper()}"):
        return given
    if name == TFF_PINS:
        environ = {**os.environ, "TFF_REG_LANE": TFF_PINS}
        environ.pop("TFF_REG_PYTHON", None)  # It may be too new.
        command = [str(_REPOSITORY / "bin" / "launch"), "-c"]
        command += ["import sys; print(sys.executable)"]
        done = subprocess.run(command, env=environ, stdout=subprocess.PIPE, check=False)
        if done.returncode:
            raise subject.RefusedError("the lane tff_pins cannot be installed.")
        return done.stdout.decode().strip()
    requirements = _HERE / "requirements" / f"{name}.txt"
    wanted = f"{sys.version}\n{requirements.read_text(encoding='utf-8')}"
    folder = _ROOT / name
    stamp, interpreter = folder / _STAMP, folder / "bin" / "python"
    if stamp.is_file() and stamp.read_text(encoding="utf-8") == wanted:
        return str(interpreter)
    subject.say(f"Installing {folder} ...")
    shutil.rmtree(folder, ignore_errors=True)
    base = _python_of_version(_OLDEST.get(name, (3, 0)))
    # pip, because where PyTorch's CPU build is at hand, pip is told of it.
    for command in (
        [base, "-m", "venv", str(folder)],
        [str(interpreter), "-m", "pip", "install", "-q", "-r", str(requirements)],
    ):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            said = [line for line in done.stderr.splitlines() if "ERROR" in line]
            why = said[-1] if said else f"{command[2]} ended with {done.returncode}"
            raise subject.RefusedError(f"{folder} cannot be installed: {why}")
    stamp.write_text(wanted, encoding="utf-8")
    return str(interpreter)


def _python_of_version(oldest: tuple[int, int]) -> str:
    """This Python where it is new enough, or else one on PATH."""
    if sys.version_info >= oldest:
        return getattr(sys, "_base_executable", None) or sys.executable
    for minor in range(oldest[1], 14):
        found = shutil.which(f"python3.{minor}")
        # A shim of pyenv may be there without its Python.
        if found and not subprocess.run([found, "-V"], capture_output=True).returncode:
            return found
    raise subject.RefusedError(f"it needs Python 3.{oldest[1]} or newer on PATH.")
