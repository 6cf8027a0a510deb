"""Makes and checks the repository's own Python environment, `.venv`.

Started by bin/launch, never by hand, and before there is an environment: standard
library only, Python 3.9 to 3.11. Two actions:

    environment.py check FD [--dev] [--ray]
                                          exit code 0 if `.venv` is complete and current
    environment.py launch [--dev] [--ray] ARGUMENTS...
                                          makes it if it is not, then becomes
                                          `.venv/bin/python ARGUMENTS...`

What is installed is said by locks: requirements.txt always, requirements-dev.txt with
`--dev`, requirements-ray.txt with `--ray` and `--dev`, requirements-gpu.txt for a GPU.
How it stays right:

*   `.venv/ready.json` says what `.venv` was made from: the hashes of the locks, the
    Python version, the folder. It is removed before anything is touched, and written at
    once and only after everything has succeeded. So an interrupted installation, a
    changed lock and a moved or copied folder all read as "not ready", and `.venv` is
    made again from empty. A lock that is wanted for the first time is added to it.
*   `.venv/lock` is locked (flock): shared by every running command for its life,
    exclusively by whoever makes it anew. First calls at the same time therefore wait
    for one of them, and nobody rebuilds an environment that a command is using. Adding
    to it disturbs nobody: who does so holds that lock as the others do, and
    `.venv/lock.adding` exclusively. The installer that we start (uv) holds the locks
    too and is killed with us.
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

    sys.path.insert(0, os.path.dirname(os.path.realpath(__file__)))
    import fetch_uv

ROOT = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))
BASE, DEV, GPU = "requirements.txt", "requirements-dev.txt", "requirements-gpu.txt"
RAY = "requirements-ray.txt"

# What each lock's packages take in .venv, measured, with room to spare; what it is for;
# gigabytes to download, and on the disk.
NEEDED_GIGABYTES = {BASE: 4.0, DEV: 0.8, GPU: 4.0, RAY: 0.4}
CONTENTS = {
    BASE: "what a run needs",
    DEV: "what tests, linters, notebooks and docs need",
    GPU: "the CUDA libraries",
    RAY: "Ray and submitit",
}
DOWNLOAD_GIGABYTES = {BASE: 0.9, DEV: 0.2, GPU: 2.0, RAY: 0.1}
DISK_GIGABYTES = {BASE: 2.7, DEV: 0.4, GPU: 3.2, RAY: 0.2}

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


def gpu_wanted() -> bool:
    """Whether the CUDA libraries belong into the environment.

    `TFF_REG_GPU=1` says yes and `0` says no; otherwise an NVIDIA driver decides.

    Raises:
        SetupError: If `TFF_REG_GPU` is something else.
    """
    answer = os.environ.get("TFF_REG_GPU", "")
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

    def path(self, lock: str) -> str:
        """Where a lock is."""
        return os.path.join(self.root, lock)

    def _digest(self, lock: str) -> str:
        try:
            with open(self.path(lock), "rb") as file:
                return hashlib.sha256(file.read()).hexdigest()
        except OSError as error:
            raise SetupError(
                f"cannot read {self.path(lock)} ({error.strerror}); restore it with"
                " git."
            ) from error

    def _read_ready(self) -> dict:
        try:
            with open(self._ready, encoding="utf-8") as file:
                return json.load(file)
        except (OSError, ValueError):
            return {}

    def _installed(self, python: str) -> list[str]:
        """The locks that are installed, as they are now, for version `python` ("3.11").

        None of them if `requirements.txt` is not among them.
        """
        ready = self._read_ready()
        if (ready.get("folder"), ready.get("python")) != (
            os.path.realpath(self.folder), python
        ):  # fmt: skip
            return []
        locks = ready.get("locks", {})
        if locks.get(BASE) != self._digest(BASE):
            return []
        return [lock for lock, digest in locks.items() if digest == self._digest(lock)]

    def check(self, wanted: list[str]) -> bool:
        """Whether this interpreter, `.venv`'s own, has all that is wanted.

        More does no harm: the same folder may serve machines with and without a GPU.
        """
        python = os.environ.get("TFF_REG_PYTHON")
        if python and os.path.realpath(python) != os.path.realpath(sys.executable):
            return False  # `launch` finds out whether the version is the same.
        return set(wanted) <= set(self._installed(_version()))

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

    def _usable(self) -> list[str]:
        """The locks that are installed, if `.venv` may be used as it is."""
        python = self._read_ready().get("python")
        if not python or (os.environ.get("TFF_REG_PYTHON") and python != _version()):
            return []
        installed = self._installed(python)
        return installed if installed and self._works() else []

    # Making it.

    def prepare(self, wanted: list[str]) -> int:
        """Makes the environment unless it is there.

        Args:
            wanted: The locks that it is to have.

        Returns:
            A file descriptor that holds the shared lock; keep it open while using the
            environment.

        Raises:
            SetupError: If it cannot be made.
        """
        check_platform()
        self._keep_what_is_not_ours()
        lock = self._open_lock(self._lock)
        waiting = False
        while True:
            if _try_lock(lock, fcntl.LOCK_SH):
                installed, missing = self._plan(wanted)
                if not missing or (installed and self._add(lock, wanted)):
                    return lock
                fcntl.flock(lock, fcntl.LOCK_UN)
            if _try_lock(lock, fcntl.LOCK_EX):
                if not self._is_current(lock):  # Somebody has removed .venv meanwhile.
                    os.close(lock)
                    lock = self._open_lock(self._lock)
                    continue
                installed, missing = self._plan(wanted)
                if missing:
                    self._install(installed, missing, [lock])
                fcntl.flock(lock, fcntl.LOCK_SH)
                return lock
            if not waiting:
                waiting = True
                say(
                    "waiting for another command, which is making .venv or still uses"
                    " the one of before (Ctrl-C to give up)"
                )
            time.sleep(0.1 + 0.1 * random.random())

    def _plan(self, wanted: list[str]) -> tuple[list[str], list[str]]:
        """Which locks are installed and stay, and which are to be installed."""
        installed = self._usable()
        missing = [each for each in wanted if each not in installed]
        if set(missing) & set(self._read_ready().get("locks", {})):
            return [], wanted  # Another version of it is there, of which nothing stays.
        return installed, missing

    def _add(self, lock: int, wanted: list[str]) -> bool:
        """Adds what is missing, unless somebody else is at it; whether that is done."""
        adding = self._open_lock(self._lock + ".adding")
        try:
            if not _try_lock(adding, fcntl.LOCK_EX):
                return False
            installed, missing = self._plan(wanted)
            if missing:
                self._install(installed, missing, [lock, adding])
            return True
        finally:
            os.close(adding)

    def _open_lock(self, path: str) -> int:
        try:
            os.makedirs(self.folder, exist_ok=True)
            return os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
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

    def _install(
        self, installed: list[str], missing: list[str], descriptors: list[int]
    ) -> None:
        """Installs what is missing, into an empty `.venv` if nothing is installed.

        Args:
            installed: The locks that are installed.
            missing: Those to install.
            descriptors: Of the files that the caller has locked.
        """
        what = " and ".join(CONTENTS[each] for each in missing)
        if not installed:
            self._clear()
            what = ".venv for Python {}.{}.{}".format(*sys.version_info)
        needed = sum(NEEDED_GIGABYTES[each] for each in missing)
        free = shutil.disk_usage(self.folder).free / 1e9
        if free < needed:
            raise SetupError(
                f"{self.folder} needs {needed:g} GB of disk and {free:.1f} GB are"
                " free; make room, or make .venv a link to a folder on a larger disk."
            )
        download = sum(DOWNLOAD_GIGABYTES[each] for each in missing)
        disk = sum(DISK_GIGABYTES[each] for each in missing)
        say(
            f"installing {what}, once ({download:.1f} GB to download, {disk:.1f} GB on"
            " the disk) ..."
        )
        started = time.monotonic()
        with open(self.log, "wb") as log:
            installer = _Installer(self, log, descriptors)
            try:
                if not installed:
                    installer.make_folder()
                installer.get_uv()
                for each in missing:
                    installer.install(self.path(each))
                    installed = [*installed, each]
                    self._write_ready(installed)
            except (SetupError, OSError):
                if not installed:
                    self._clear()  # A full disk gets its space back.
                raise
            finally:
                installer.close()
        say(f".venv is ready ({time.monotonic() - started:.0f} s)")

    def _write_ready(self, installed: list[str]) -> None:
        """Calls the environment complete, atomically."""
        ready = {
            "folder": os.path.realpath(self.folder),
            "python": _version(),
            "locks": {lock: self._digest(lock) for lock in installed},
        }
        temporary = self._ready + ".new"
        with open(temporary, "w", encoding="utf-8") as file:
            json.dump(ready, file, indent=1)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, self._ready)


class _Installer:
    """Runs uv for an `Environment`, into its log."""

    def __init__(self, environment: Environment, log, descriptors: list[int]):
        self._environment = environment
        self._log = log
        self._descriptors = descriptors
        self._started = time.monotonic()
        self._next_progress = 0.0
        self._uv = None
        self._options = []
        self._variables = {}
        self._own_cache = os.path.join(environment.folder, "cache")
        self._temporary = os.path.join(environment.folder, "tmp")

    def make_folder(self) -> None:
        """Makes the virtual environment, empty."""
        folder = self._environment.folder
        self._must([sys.executable, "-I", "-m", "venv", "--without-pip", folder])

    def get_uv(self) -> None:
        """Finds uv on PATH, which its own settings rule, or fetches it."""
        self._uv = shutil.which("uv")
        # A shim that is switched off is there, and fails.
        if not self._uv or self._run([self._uv, "--version"]) != 0:
            self._uv = os.path.join(self._environment.folder, "bin", "uv")
            try:
                settings = fetch_uv.Settings()
                self._variables, self._options = settings.for_uv(os.environ)
                if not os.path.exists(self._uv):
                    lock = self._environment.path("requirements-uv.txt")
                    self._log.write(b"\n$ fetch uv\n")
                    fetch_uv.fetch(lock, self._uv)
            except (fetch_uv.FetchError, OSError) as error:
                self._log.write(f"{error}\n".encode())
                self._log.flush()
                raise self._explanation() from error
        # Where uv cannot keep a cache, a home folder of nobody's perhaps.
        if self._run([self._uv, "cache", "dir"]) == 0:
            cache = self._last_output().strip().splitlines()[-1:]
            if cache and not _can_write(cache[0]):
                self._variables["UV_CACHE_DIR"] = self._own_cache

    def install(self, requirements: str) -> None:
        """Installs a lock: with hashes, and exactly what it says.

        Modules are compiled when they are first imported: compiling them all takes
        longer than the rest of the installation, and a run imports a quarter of them.
        """
        command = [self._uv, "pip", "install", "--python", self._environment.python]
        command += [*self._options, "--no-deps", "--require-hashes"]
        command += ["--no-build-isolation", "-r"]
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
        if self._run(command) != 0:
            raise self._explanation()

    def _last_output(self) -> str:
        """What the command that was run last has said."""
        with open(self._environment.log, encoding="utf-8", errors="replace") as file:
            return file.read().rpartition("\n$ ")[2].partition("\n")[2]

    def _explanation(self) -> SetupError:
        """Why the last command failed."""
        text = self._last_output()
        log = f"The whole output is in {self._environment.log}."
        if re.search(_DISK, text, re.IGNORECASE):
            return SetupError(
                f"the disk is full; {self._environment.folder} needs about"
                f" {NEEDED_GIGABYTES[BASE]:.0f} GB, and uv's cache as much where it is"
                f" on another disk. {log}"
            )
        if re.search(_HASHES, text, re.IGNORECASE):
            return SetupError(
                "a downloaded package is not the one that the lock names (its hash"
                f" differs); try again, or ask whoever runs your package index. {log}"
            )
        if re.search(_NETWORK, text, re.IGNORECASE):
            return SetupError(
                "the packages cannot be downloaded; the first call needs the network"
                f" (PyPI, or the mirror that pip or uv is set to). {log}"
            )
        return SetupError(f"uv failed: {_last_error(text)} {log}")

    def _run(self, command: list[str]) -> int:
        """Runs a command with its output in the log and progress on the terminal."""
        environ = dict(os.environ)
        # A user's settings may name a mirror, but not what to install or where.
        for name in ("PYTHONPATH", "VIRTUAL_ENV", "CONDA_PREFIX", "UV_CONSTRAINT",
                     "UV_OVERRIDE", "UV_EXCLUDE", "UV_EXCLUDE_NEWER", "UV_NO_BINARY",
                     "UV_NO_BUILD", "UV_NO_VERIFY_HASHES", "UV_SYSTEM_PYTHON",
                     "UV_COMPILE_BYTECODE", "UV_TORCH_BACKEND"):  # fmt: skip
            environ.pop(name, None)
        # uv leaves locks of what it builds there.
        os.makedirs(self._temporary, exist_ok=True)
        environ.update(self._variables, TMPDIR=self._temporary)
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
                pass_fds=self._descriptors,
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
        if downloaded := len(re.findall(r"^ Downloaded ", text, flags=re.MULTILINE)):
            doing += f", {downloaded} large packages are there"
        if len(re.findall(r"^Prepared ", text, re.MULTILINE)) > 1:
            doing = "unpacking"
        print(
            f"\r\033[Ktff_reg: {doing}, {now - self._started:.0f} s",
            end="", file=sys.stderr, flush=True,
        )  # fmt: skip

    def close(self) -> None:
        """Removes the line of `_show_progress`, and what was needed meanwhile."""
        for folder in (self._own_cache, self._temporary):
            shutil.rmtree(folder, ignore_errors=True)
        if sys.stderr.isatty():
            print("\r\033[K", end="", file=sys.stderr, flush=True)


def _can_write(folder: str) -> bool:
    """Whether a folder can be written to; makes it if it is missing."""
    try:
        os.makedirs(folder, exist_ok=True)
    except OSError:
        return False
    return os.access(folder, os.W_OK | os.X_OK)


def _version() -> str:
    return "{}.{}".format(*sys.version_info)


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
            f" here is {library or 'another C library'} {version}".rstrip()
            + "."
        )


def main(arguments: list[str]) -> int:
    """See the module's docstring."""
    action, *rest = arguments
    environment = Environment()
    try:
        descriptor = int(rest.pop(0)) if action == "check" else -1
        wanted = [BASE]
        for option, locks in (("--dev", [DEV, RAY]), ("--ray", [RAY])):
            if rest[:1] == [option]:
                rest.pop(0)
                wanted += [lock for lock in locks if lock not in wanted]
        if gpu_wanted():
            wanted.append(GPU)
        if action == "check":
            locked = _try_lock(descriptor, fcntl.LOCK_SH)
            return 0 if locked and environment.check(wanted) else 1
        lock = environment.prepare(wanted)
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
