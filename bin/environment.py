"""Makes and checks the repository's own Python environment, `.venv`.

Started by bin/launch, never by hand, and before there is an environment: standard
library only, Python 3.9 to 3.11. Two actions:

    environment.py check FD             exit code 0 if `.venv` is complete and current
    environment.py launch ARGUMENTS...  makes it if it is not, then becomes
                                        `.venv/bin/python ARGUMENTS...`

How it stays right:

*   `.venv/ready.json` says what `.venv` was made from: the hash of the lock, the Python
    version, the folder. It is removed before anything is touched, and written at once
    and only after everything has succeeded. So an interrupted installation, a changed
    lock and a moved or copied folder all read as "not ready", and `.venv` is made again
    from empty.
*   `.venv/lock` is locked (flock): shared by every running command for its life,
    exclusively by whoever installs. First calls at the same time therefore wait for one
    of them, and nobody rebuilds an environment that a command is using. The installer
    that we start (pip or uv) holds the lock too and is killed with us.
*   What goes wrong is one line on stderr and exit code 2.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import sys
import time

if sys.argv[1:2] != ["check"]:  # The check is for every call: 10 ms less.
    import ctypes
    import platform
    import random
    import re
    import shutil
    import subprocess

ROOT = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))

# What an installation takes in .venv, measured, with room to spare.
NEEDED_GIGABYTES = 4.0
NEEDED_GIGABYTES_GPU = 4.0  # On top of the other.

# These build the few packages of the lock that PyPI has in source form only. They are
# installed first, so that such a build uses nothing that the lock does not name.
BUILD_PACKAGES = ("setuptools", "wheel")

_NETWORK = (
    r"name resolution|name or service not known|failed to lookup address"
    r"|dns error|failed to establish a new connection|network is unreachable"
    r"|no route to host|connection (refused|reset|aborted)|timed out"
    r"|readtimeout|connecttimeout"
    r"|proxyerror|cannot connect to proxy|error sending request|failed to fetch"
    r"|from versions: none|sslerror|certificate verify failed"
)
_DISK = r"no space left on device|disk quota exceeded"
_HASHES = r"do not match the hashes|hash mismatch"


class SetupError(Exception):
    """Why there can be no environment, as one sentence for the user."""


def say(line: str) -> None:
    """Prints one line about the set-up to stderr."""
    print(f"tff_reg: {line}", file=sys.stderr, flush=True)


def gpu_wanted(environ=os.environ) -> bool:
    """Whether the CUDA libraries belong into the environment.

    `TFF_REG_GPU=1` says yes and `0` says no; otherwise an NVIDIA driver decides.

    Raises:
        SetupError: If `TFF_REG_GPU` is something else.
    """
    answer = environ.get("TFF_REG_GPU", "")
    if answer not in ("", "0", "1"):
        raise SetupError(f"TFF_REG_GPU is {answer!r}; it can be 0 or 1.")
    if answer:
        return answer == "1"
    return any(
        os.path.exists(path)
        for path in (
            "/proc/driver/nvidia/version",
            "/dev/nvidiactl",
            "/usr/lib/wsl/lib/libcuda.so.1",
        )
    )


class Environment:
    """The environment of the repository in folder `root`."""

    def __init__(self, root: str = ROOT):
        self.root = os.path.realpath(root)
        self.folder = os.path.join(self.root, ".venv")
        self.python = os.path.join(self.folder, "bin", "python")
        self.log = os.path.join(self.folder, "install.log")
        self._lock = os.path.join(self.folder, "lock")
        self._ready = os.path.join(self.folder, "ready.json")

    # What it was made from.

    def _requirements(self, gpu: bool) -> str:
        return os.path.join(
            self.root, "requirements-gpu.txt" if gpu else "requirements.txt"
        )

    def _digest(self, gpu: bool) -> str:
        try:
            with open(self._requirements(gpu), "rb") as file:
                return hashlib.sha256(file.read()).hexdigest()
        except OSError as error:
            raise SetupError(
                f"cannot read {self._requirements(gpu)} ({error.strerror}); restore it"
                " with git."
            ) from error

    def _read_ready(self) -> dict:
        try:
            with open(self._ready, encoding="utf-8") as file:
                return json.load(file)
        except (OSError, ValueError):
            return {}

    def _is_ready_for(self, python: str, gpu: bool) -> bool:
        """Whether all is installed for version `python` ("3.11")."""
        ready = self._read_ready()
        return (
            ready.get("folder") == os.path.realpath(self.folder)
            and ready.get("python") == python
            and ready.get("requirements") == self._digest(gpu=False)
            # More than is wanted does no harm: the same folder may serve machines with
            # and without a GPU.
            and (not gpu or ready.get("requirements_gpu") == self._digest(gpu=True))
        )

    def check(self) -> bool:
        """Whether this interpreter, `.venv`'s own, has a complete environment."""
        wanted = os.environ.get("TFF_REG_PYTHON")
        if wanted and os.path.realpath(wanted) != os.path.realpath(sys.executable):
            return False  # `launch` finds out whether the version is the same.
        return self._is_ready_for(_version(), gpu_wanted())

    def _works(self) -> bool:
        """Whether `.venv`'s Python starts, as what `ready.json` says it is."""
        program = "import sys; print('%d.%d' % sys.version_info[:2], sys.prefix)"
        try:
            output = subprocess.run(
                [self.python, "-I", "-c", program],
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                check=True,
            ).stdout.decode()
        except (OSError, subprocess.CalledProcessError):
            return False
        return output.strip() == f"{self._read_ready().get('python')} {self.folder}"

    def _usable(self, gpu: bool) -> bool:
        """Whether `.venv` is complete and may be used as it is."""
        python = self._read_ready().get("python")
        if os.environ.get("TFF_REG_PYTHON") and python != _version():
            return False
        return bool(python) and self._is_ready_for(python, gpu) and self._works()

    # Making it.

    def prepare(self) -> int:
        """Makes the environment unless it is there.

        Returns:
            A file descriptor that holds the shared lock; keep it open while using the
            environment.

        Raises:
            SetupError: If it cannot be made.
        """
        check_platform()
        gpu = gpu_wanted()
        self._keep_what_is_not_ours()
        lock = self._open_lock()
        waiting = False
        while True:
            if _try_lock(lock, fcntl.LOCK_SH):
                if self._usable(gpu):
                    return lock
                fcntl.flock(lock, fcntl.LOCK_UN)
            if _try_lock(lock, fcntl.LOCK_EX):
                if not self._is_current(lock):  # Somebody has removed .venv meanwhile.
                    os.close(lock)
                    lock = self._open_lock()
                    continue
                if not self._usable(gpu):
                    self._make(lock, gpu)
                fcntl.flock(lock, fcntl.LOCK_SH)
                return lock
            if not waiting:
                waiting = True
                say(
                    "waiting for another command, which is making .venv or still uses"
                    " the one of before (Ctrl-C to give up)"
                )
            time.sleep(0.1 + 0.1 * random.random())

    def _open_lock(self) -> int:
        try:
            os.makedirs(self.folder, exist_ok=True)
            return os.open(self._lock, os.O_RDWR | os.O_CREAT, 0o666)
        except OSError as error:
            raise SetupError(
                f"cannot write to {self.folder} ({error.strerror}); use a copy of the"
                " repository that is yours."
            ) from error

    def _is_current(self, lock: int) -> bool:
        try:
            return os.path.samestat(os.fstat(lock), os.stat(self._lock))
        except FileNotFoundError:
            return False

    def _keep_what_is_not_ours(self) -> None:
        """Moves aside a `.venv` that somebody made by hand."""
        if os.path.exists(self._lock) or not os.path.exists(
            os.path.join(self.folder, "pyvenv.cfg")
        ):
            return
        number = 1
        while os.path.lexists(f"{self.folder}.previous-{number}"):
            number += 1
        kept = f"{self.folder}.previous-{number}"
        try:
            os.rename(self.folder, kept)
        except OSError as error:
            raise SetupError(
                f"{self.folder} was not made by this command and cannot be moved aside"
                f" ({error.strerror}); move it."
            ) from error
        say(f".venv was not made by this command; it is kept as {kept}")

    def _clear(self) -> None:
        """Empties `.venv`, first of all of what calls it complete."""
        try:
            if os.path.lexists(self._ready):
                os.remove(self._ready)
            for name in os.listdir(self.folder):
                path = os.path.join(self.folder, name)
                if path in (self._lock, self.log):
                    continue
                if os.path.isdir(path) and not os.path.islink(path):
                    shutil.rmtree(path)
                else:
                    os.remove(path)
        except OSError as error:
            raise SetupError(
                f"cannot empty {self.folder} ({error}); remove it by hand."
            ) from error

    def _make(self, lock: int, gpu: bool) -> None:
        """Installs what is missing. The caller holds the exclusive lock."""
        only_gpu = gpu and self._usable(gpu=False)
        what = "the CUDA libraries in .venv"
        needed, size = NEEDED_GIGABYTES_GPU, "2 GB to download, 3.2 GB on the disk"
        if not only_gpu:
            self._clear()
            what = ".venv for Python %d.%d.%d" % sys.version_info[:3]
            needed, size = NEEDED_GIGABYTES, "0.9 GB to download, 2.8 GB on the disk"
            if gpu:
                needed += NEEDED_GIGABYTES_GPU
                size = "2.8 GB to download, 6 GB on the disk"
        free = shutil.disk_usage(self.folder).free / 1e9
        if free < needed:
            raise SetupError(
                f"{self.folder} needs {needed:.0f} GB of disk and {free:.1f} GB are"
                " free; make room, or make .venv a link to a folder on a larger disk."
            )
        started = time.monotonic()
        with open(self.log, "wb") as log:
            installer = _Installer(self, log, lock)
            say(f"installing {what} with {installer.name}, once ({size}) ...")
            try:
                if not only_gpu:
                    installer.make_folder()
                    installer.install(self._requirements(gpu=False))
                self._write_ready(gpu=False)
                if gpu:
                    installer.install(self._requirements(gpu=True))
                    self._write_ready(gpu=True)
            except (SetupError, OSError):
                if not only_gpu:
                    self._clear()  # A full disk gets its space back.
                raise
            finally:
                installer.clear_progress()
        say(f".venv is ready ({time.monotonic() - started:.0f} s)")

    def _write_ready(self, gpu: bool) -> None:
        """Calls the environment complete, atomically."""
        ready = {
            "folder": os.path.realpath(self.folder),
            "python": _version(),
            "requirements": self._digest(gpu=False),
            "requirements_gpu": self._digest(gpu=True) if gpu else None,
        }
        temporary = self._ready + ".new"
        with open(temporary, "w", encoding="utf-8") as file:
            json.dump(ready, file, indent=1)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, self._ready)


class _Installer:
    """Runs pip or uv for an `Environment`, into its log."""

    def __init__(self, environment: Environment, log, lock: int):
        self._environment = environment
        self._log = log
        self._lock = lock
        self._started = time.monotonic()
        self._next_progress = 0.0
        self._uv = shutil.which("uv")
        if self._uv and self._run([self._uv, "--version"]) != 0:
            self._uv = None  # A switched-off shim.
        self.name = "uv" if self._uv else "pip"

    def make_folder(self) -> None:
        """Makes the virtual environment, empty."""
        folder = self._environment.folder
        self._must([sys.executable, "-I", "-m", "venv", "--without-pip", folder])

    def _command(self) -> list[str]:
        """The beginning of the installation command."""
        python = self._environment.python
        if self._uv:
            command = [self._uv, "pip", "install", "--python", python]
            return command + ["--compile-bytecode"]
        options = ["install", "--no-input", "--disable-pip-version-check"]
        options += ["--progress-bar=off", "--retries=3"]
        if self._run([python, "-I", "-m", "ensurepip", "--default-pip"]) == 0:
            return [python, "-I", "-m", "pip"] + options
        # Debian's Python without python3-venv: its own pip, if any, from outside.
        pip = [sys.executable, "-m", "pip", "--python", python]
        if self._run(pip + ["--version"]) != 0:
            raise SetupError(
                f"{sys.executable} comes without pip's installer and there is no uv;"
                " install python3-venv (Debian, Ubuntu) or uv."
            )
        return pip + options

    def install(self, requirements: str) -> None:
        """Installs a lock: with hashes, and exactly what it says."""
        command = self._command()
        command += ["--no-deps", "--require-hashes", "--no-build-isolation", "-r"]
        build = self._build_requirements(requirements)
        if build:
            self._must(command + [build])
        self._must(command + [requirements])

    def _build_requirements(self, requirements: str) -> str | None:
        """Writes the part of a lock that builds the rest; None if it has none."""
        with open(requirements, encoding="utf-8") as file:
            entries = re.split(r"^(?=[A-Za-z0-9])", file.read(), flags=re.MULTILINE)
        chosen = [
            entry for entry in entries
            if re.split(r"[=<>\s\[;@]", entry, maxsplit=1)[0] in BUILD_PACKAGES
        ]  # fmt: skip
        if not chosen:
            return None
        path = os.path.join(self._environment.folder, "build-requirements.txt")
        with open(path, "w", encoding="utf-8") as file:
            file.writelines(chosen)
        return path

    def _must(self, command: list[str]) -> None:
        """Runs a command; raises `SetupError` with what its output says if it fails."""
        if self._run(command) == 0:
            return
        with open(self._environment.log, encoding="utf-8", errors="replace") as file:
            text = file.read().rpartition("\n$ ")[2]
        log = f"The whole output is in {self._environment.log}."
        if re.search(_DISK, text, re.IGNORECASE):
            raise SetupError(
                f"the disk is full; {self._environment.folder} needs about"
                f" {NEEDED_GIGABYTES:.0f} GB, and pip's cache and the temporary folder"
                f" 2 GB more. {log}"
            )
        if re.search(_HASHES, text, re.IGNORECASE):
            raise SetupError(
                "a downloaded package is not the one that the lock names (its hash"
                f" differs); try again, or ask whoever runs your package index. {log}"
            )
        if re.search(_NETWORK, text, re.IGNORECASE):
            raise SetupError(
                "the packages cannot be downloaded; the first call needs the network"
                f" (PyPI, or the mirror that {self.name} is set to). {log}"
            )
        raise SetupError(f"{self.name} failed: {_last_error(text)} {log}")

    def _run(self, command: list[str]) -> int:
        """Runs a command with its output in the log and progress on the terminal."""
        environ = dict(os.environ)
        # A user's settings may name a mirror, but not another place to install to.
        for name in ("PIP_TARGET", "PIP_PREFIX", "PIP_ROOT", "PIP_CONSTRAINT",
                     "PYTHONPATH", "UV_CONSTRAINT", "UV_OVERRIDE",
                     "VIRTUAL_ENV", "CONDA_PREFIX"):  # fmt: skip
            environ.pop(name, None)
        environ.update(PIP_USER="0", PYTHONDONTWRITEBYTECODE="")
        self._log.write(f"\n$ {' '.join(command)}\n".encode())
        self._log.flush()
        try:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=subprocess.STDOUT,
                env=environ,
                cwd=self._environment.root,
                pass_fds=[self._lock],
                preexec_fn=_die_with_parent,
            )
        except OSError as error:
            self._log.write(f"{error}\n".encode())
            self._log.flush()
            return 127
        try:
            while True:
                try:
                    return process.wait(timeout=0.2)
                except subprocess.TimeoutExpired:
                    self._show_progress()
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()

    def _show_progress(self) -> None:
        """Rewrites one line on a terminal, once a second."""
        now = time.monotonic()
        if not sys.stderr.isatty() or now < self._next_progress:
            return
        self._next_progress = now + 1.0
        with open(self._environment.log, encoding="utf-8", errors="replace") as file:
            text = file.read()
        doing = "downloading"
        collected = len(re.findall(r"^Collecting ", text, flags=re.MULTILINE))
        if collected:
            doing += f", package {collected}"
        if len(re.findall(r"^Installing collected|^Prepared ", text, re.MULTILINE)) > 1:
            doing = "unpacking"
        print(
            f"\r\033[Ktff_reg: {doing}, {now - self._started:.0f} s",
            end="", file=sys.stderr, flush=True,
        )  # fmt: skip

    def clear_progress(self) -> None:
        """Removes the line of `_show_progress`."""
        if sys.stderr.isatty():
            print("\r\033[K", end="", file=sys.stderr, flush=True)


def _version() -> str:
    return "%d.%d" % sys.version_info[:2]


def _last_error(text: str) -> str:
    """The line of an installer's output that says most."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    for mark in ("error:", "error", "×"):
        for line in reversed(lines):
            if line.lower().startswith(mark):
                return line if line.endswith(".") else line + "."
    return lines[-1] if lines else "it said nothing."


def _try_lock(lock: int, kind: int) -> bool:
    try:
        fcntl.flock(lock, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        raise SetupError(
            f"the file system of {ROOT} has no file locks ({error.strerror}); put the"
            " repository, or .venv as a link, on another disk."
        ) from error
    return True


def _die_with_parent() -> None:
    """In the child: asks Linux to kill it when we are gone, however we went."""
    pr_set_pdeathsig, sigkill = 1, 9
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, sigkill, 0, 0, 0)


def check_platform() -> None:
    """Raises `SetupError` where TensorFlow Federated has no packages."""
    system, machine = platform.system(), platform.machine()
    if (system, machine) != ("Linux", "x86_64") or sys.maxsize < 2**32:
        raise SetupError(
            f"this is {system} on {machine}; TensorFlow Federated has packages for"
            " 64-bit Linux on x86-64 only (Windows: use WSL 2)."
        )
    library, version = platform.libc_ver()
    if library != "glibc" or tuple(map(int, version.split(".")[:2])) < (2, 31):
        raise SetupError(
            f"TensorFlow Federated needs glibc 2.31 or newer (Debian 11, Ubuntu 20.04);"
            f" here is {library or 'another C library'} {version}".rstrip() + "."
        )


def main(arguments: list[str]) -> int:
    """See the module's docstring."""
    action, *rest = arguments
    environment = Environment()
    try:
        if action == "check":
            locked = _try_lock(int(rest[0]), fcntl.LOCK_SH)
            return 0 if locked and environment.check() else 1
        lock = environment.prepare()
        os.set_inheritable(lock, True)
        os.execv(environment.python, [environment.python, *rest])
    except SetupError as error:
        say(str(error))
        return 2
    except OSError as error:
        say(f"the environment cannot be made: {error}.")
        return 2
    except KeyboardInterrupt:
        say("interrupted; the next call makes .venv again.")
        return 130


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
