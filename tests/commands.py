"""Commands as tests call them: in this process, in another one, as processes.

All give what `subprocess.run` gives, a `CompletedProcess`.
"""

import contextlib
import functools
import importlib
import io
import json
import os
import pathlib
import pty
import subprocess
import sys
import uuid
import venv

import pytest

from tff_reg import commands, tasks
from tff_reg.methods import catalogue

ROOT = pathlib.Path(__file__).parents[1]
# For whatever starts TensorFlow, on a machine that does other things as well.
PATIENCE_SECONDS = 240


def call(main, *arguments, **more):
    """Calls a command's `main` in this process."""
    arguments = [str(argument) for argument in arguments]
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = main(arguments, **more)
    return subprocess.CompletedProcess(
        arguments, status, out.getvalue(), err.getvalue()
    )


def python(program, *arguments, **variables):
    """Runs a program by a Python of its own; it must not fail.

    Args:
      program: Its text.
      *arguments: Its arguments.
      **variables: Of its environment beside ours; None for those that it has not.
    """
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **variables}
    done = subprocess.run(
        [sys.executable, "-c", program, *map(str, arguments)],
        cwd=ROOT,
        env={name: value for name, value in variables.items() if value is not None},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done


def refusal(done, name=None):
    """The one line that a command says when it refuses and does nothing."""
    assert (done.returncode, done.stdout) == (2, ""), done.stdout + done.stderr
    (line,) = done.stderr.splitlines()
    assert name is None or line.startswith(f"bin/{name}: ")
    return line


@contextlib.contextmanager
def calling(main, folder=ROOT):
    """Gives `call` of a `main` with a folder's packages; methods added go after it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        forget_packages(patch)
        yield functools.partial(call, main)


def forget_packages(patch):
    """Methods and tasks of packages and files are looked for anew."""
    for registry in (catalogue.REGISTRY, tasks._REGISTRY):
        patch.setattr(registry, "_points", None)
        patch.setattr(registry, "_found", {})


class InThisProcess:
    """Runs a series' commands here, as `jobs.ChildProcesses` does elsewhere."""

    def execute(self, command):
        start = command_of("run")[:-1]
        assert command[: len(start)] == start
        name, *arguments = command[len(start) :]
        done = call(
            importlib.import_module(f"tff_reg.commands.{name}").main, *arguments
        )
        return done.returncode, done.stderr.strip()

    def stop(self):
        pass


class OtherProcess:
    """A process in which commands are called.

    One for many calls: what Python and TensorFlow need to start is needed once.
    """

    def __init__(self, *forbidden, **options):
        """Starts it; libraries that are `forbidden` cannot be imported there.

        Args:
          *forbidden: Their names.
          **options: Those of `subprocess.Popen`.
        """
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.commands", *forbidden],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            **options,
        )

    def call(self, name, *arguments):
        """Calls the `main` of the module `name`."""
        arguments = [str(argument) for argument in arguments]
        print(json.dumps([name, arguments]), file=self._process.stdin, flush=True)
        answer = self._process.stdout.readline()
        assert answer, f"{name} {arguments} ended the process"
        return subprocess.CompletedProcess(arguments, *json.loads(answer))

    def __enter__(self):
        return self

    def __exit__(self, *error):
        # At the end of its input it ends.
        self._process.communicate()
        assert error[0] or self._process.returncode == 0


class _Forbidden:
    """Finds libraries before Python does, and refuses them."""

    def __init__(self, names):
        self._names = names

    def find_spec(self, name, path=None, target=None):
        # Not an ImportError, which somebody might be prepared for.
        assert name not in self._names, f"{name} is imported"


def _answer():
    """What the `OtherProcess` does."""
    sys.meta_path.insert(0, _Forbidden(sys.argv[1:]))
    for line in sys.stdin:
        name, arguments = json.loads(line)
        done = call(importlib.import_module(name).main, *arguments)
        answer = [done.returncode, done.stdout, done.stderr]
        print(json.dumps(answer), flush=True)


def command_of(name):
    """What `bin/NAME` comes to where another environment runs the tests."""
    if (ROOT / "bin" / f"{name}.py").exists():
        return [sys.executable, str(ROOT / "bin" / f"{name}.py")]
    return [*commands.START, name]


def start(name, *arguments, **options):
    """Starts `bin/NAME` as a process."""
    command = [*command_of(name), *map(str, arguments)]
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, **options)


def stop_when(is_time, process, number):
    """Sends a process a signal as soon as `is_time()`; returns its exit status."""
    try:
        while not is_time():
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(0.002)
                raise AssertionError("it has ended by itself")
        process.send_signal(number)
        return process.wait(PATIENCE_SECONDS)
    finally:
        process.kill()
        process.wait()


def on_a_terminal(name, *arguments, until=None, number=None, **options):
    """Runs `bin/NAME` on a terminal, to its end.

    Args:
      name: The command.
      *arguments: Its arguments.
      until: What it is sent a signal at, if it is shown.
      number: That signal.
      **options: Those of `subprocess.Popen`.

    Returns:
      `stdout` is what is to be seen in the end.
    """
    ours, terminal = pty.openpty()
    process = start(name, *arguments, stdout=terminal, stderr=terminal, **options)
    os.close(terminal)
    shown = b""
    try:
        while block := os.read(ours, 4096):
            shown += block
            if until is not None and until.encode() in shown:
                process.send_signal(number)
                until = None
    except OSError:  # How Linux says that the other end is closed.
        pass
    finally:
        os.close(ours)
        process.wait(PATIENCE_SECONDS)
    text = shown.decode("utf-8", "replace")
    return subprocess.CompletedProcess(arguments, process.returncode, text, "")


def mark():
    """An environment by which processes are found with what they have started."""
    return {**os.environ, "TFF_REG_TEST_MARK": f"mark-{uuid.uuid4()}"}


def processes_with(environment):
    """The processes that have inherited the mark of an environment."""
    found = []
    for folder in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            inherited = (folder / "environ").read_bytes()
        except OSError:  # It has ended meanwhile, or is somebody else's.
            continue
        if environment["TFF_REG_TEST_MARK"].encode() in inherited:
            found.append(int(folder.name))
    return found


def python_without_tff(folder):
    """Makes an environment that has all packages of the tests' own but TFF.

    Returns:
      The path of its Python.
    """
    venv.create(folder, symlinks=True)
    (site,) = folder.glob("lib/python*/site-packages")
    for entry in pathlib.Path(pytest.__file__).parents[1].iterdir():
        if not entry.name.startswith("tensorflow_federated") and entry.suffix != ".pth":
            (site / entry.name).symlink_to(entry)
    return folder / "bin" / "python"


if __name__ == "__main__":
    _answer()
