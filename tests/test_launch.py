"""Tests of bin/launch, bin/environment.sh and bin/fetch_uv.py, which commands start with.

Each test has its own small repository, in a folder whose name has a space: the launcher,
and a lock of nothing. `uv` is a shell script that writes down how it was called and does
what the test says; the last test has the real one. No network.
"""

import contextlib
import hashlib
import os
import shutil
import signal
import subprocess
import sys
import time
import zipfile

import pytest

from tests import commands

BIN = commands.ROOT / "bin"
BASE_PYTHON = os.path.realpath(sys.executable)
REAL_UV = shutil.which("uv", path=f"{sys.prefix}/bin")
# bin/test is pytest, whose help is its own; bin/lint is a shell script.
COMMANDS = sorted(
    path.name
    for path in BIN.iterdir()
    if not path.suffix and path.name not in ("launch", "lint", "test", "__pycache__")
)
# All programs that the launcher needs.
TOOLS = """awk cat cksum date df dirname flock getconf grep ln mkdir mv perl readlink rm sed
sh sleep tail touch tr uname""".split()

STAND_IN = f"""#!/bin/sh
for last; do :; done
case $1 in
  --version) echo "uv 0.13.9" ;;
  cache) echo "$STAND_IN/cache" ;;
  export) echo "$@" >>"$STAND_IN/calls" ;;
  venv) . "$STAND_IN/venv"
    rm -rf "$last" && mkdir -p "$last/bin" "$last/lib/python3.11/site-packages"
    ln -s "{BASE_PYTHON}" "$last/bin/python"
    echo "version_info = 3.11.9" >"$last/pyvenv.cfg" ;;
  pip) . "$STAND_IN/pip" ;;
esac
"""


class Repository:
    """A copy of the launcher with its own lock, PATH and installer."""

    def __init__(self, folder):
        self.folder = folder
        self.root = folder / "the repository"
        self.path = folder / "path"
        self.path.mkdir()
        (self.root / "bin").mkdir(parents=True)
        for name in ("launch", "environment.sh", "fetch_uv.py"):
            shutil.copy2(BIN / name, self.root / "bin" / name)
        shutil.copy2(commands.ROOT / "tff_reg.pth", self.root)
        self.lock("# first")
        for tool in TOOLS:
            (self.path / tool).symlink_to(shutil.which(tool))
        (self.path / "python3").symlink_to(BASE_PYTHON)
        self.program("uv", STAND_IN)
        self.uv_does("pip", "")
        self.uv_does("venv", "")

    def lock(self, text):
        (self.root / "uv.lock").write_text(text)

    def program(self, name, text):
        (self.path / name).unlink(missing_ok=True)
        (self.path / name).write_text(text)
        (self.path / name).chmod(0o755)

    def uv_does(self, command, shell):
        (self.folder / command).write_text(shell + "\n")

    @property
    def installations(self):
        """The groups that each installation was for."""
        with contextlib.suppress(FileNotFoundError):
            lines = (self.folder / "calls").read_text().splitlines()
            groups = [
                [word[8:] for word in line.split() if word.startswith("--group=")]
                for line in lines
            ]
            return [" ".join(each) for each in groups]
        return []

    def start(self, *arguments, launch=None, **environ):
        return subprocess.Popen(
            [launch or self.root / "bin" / "launch", *(arguments or ("-c", "print(1)"))],
            env={
                "PATH": str(self.path),
                "HOME": str(self.folder),
                "STAND_IN": str(self.folder),
                "TFF_REG_GPU": "0",
                "UV_INDEX": "none",
                **environ,
            },
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *arguments, **options):
        process = self.start(*arguments, **options)
        stdout, stderr = process.communicate(timeout=60)
        return subprocess.CompletedProcess([], process.returncode, stdout, stderr)

    def make_gate(self):
        """Stops the installation in the middle; returns what waits until it is there,
        and what lets it go on."""
        entered, go_on = self.folder / "entered", self.folder / "go_on"
        os.mkfifo(entered)
        os.mkfifo(go_on)
        self.uv_does("pip", f'echo >"{entered}"; read _ <"{go_on}"')
        return entered.read_text, lambda: go_on.write_text("\n")


@pytest.fixture
def repository(tmp_path):
    return Repository(tmp_path)


@contextlib.contextmanager
def somebody_runs(repository):
    process = repository.start("-c", "import time; print(1, flush=True); time.sleep(99)")
    assert process.stdout.readline() == "1\n"
    yield
    process.kill()
    process.communicate()


def assert_fails_in_one_line(done, *words):
    *progress, line = done.stderr.splitlines()
    assert all(" ..." in earlier for earlier in progress), done.stderr
    assert (done.returncode, done.stdout) == (2, "")
    assert line.startswith("tff_reg: ")
    assert not [word for word in words if word not in line], line


def test_the_first_call_installs_and_the_second_starts_at_once(repository):
    first = repository.run("-c", "import sys; print(sys.argv[1:])", "a b", "--dev")
    second = repository.run("-c", "import sys; print(sys.executable); sys.exit(7)")

    assert first.stdout == "['a b', '--dev']\n"
    assert "installing .venv" in first.stderr and ".venv is ready" in first.stderr
    assert second.stdout == f"{repository.root}/.venv/bin/python\n"
    assert (second.returncode, second.stderr) == (7, "")
    assert repository.installations == ["tff today"]


@pytest.mark.parametrize("locks", ["flock", "perl"])
def test_first_calls_at_the_same_time_install_once(repository, locks):
    if locks == "perl":
        (repository.path / "flock").unlink()
    wait_for_installer, let_installer_go_on = repository.make_gate()
    processes = [repository.start()]
    wait_for_installer()
    processes += [repository.start() for _ in range(3)]
    for process in processes[1:]:
        assert "waiting for another command" in process.stderr.readline()
    let_installer_go_on()

    for process in processes:
        assert process.communicate(timeout=60)[0] == "1\n"
    assert len(repository.installations) == 1


@pytest.mark.parametrize("kill", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("adding", [False, True])
def test_an_interrupted_installation_is_repeated(repository, kill, adding):
    if adding:
        repository.run()
        (repository.root / ".venv" / "half_installed").write_text("")
    wait_for_installer, let_installer_go_on = repository.make_gate()
    process = repository.start("--dev", "-c", "")
    wait_for_installer()
    process.send_signal(kill)
    _, stderr = "", process.stderr.read() if kill != signal.SIGKILL else ""
    process.wait(60)
    repository.uv_does("pip", "")
    if kill == signal.SIGKILL:  # Then its uv goes on, and the next call waits for it.
        again = repository.start("--dev", "-c", "print(2)")
        assert "waiting for another command" in again.stderr.readline()
        let_installer_go_on()
    else:
        assert process.returncode == 130 and "interrupted" in stderr
        assert not (repository.root / ".venv.new").exists()
        again = repository.start("--dev", "-c", "print(2)")

    assert again.communicate(timeout=60)[0] == "2\n"
    assert repository.installations[-2:] == ["tff today dev"] * 2
    assert not (repository.root / ".venv" / "half_installed").exists()


def test_a_changed_lock_makes_the_environment_anew_when_nobody_uses_it(repository):
    repository.run("--dev", "-c", "")
    (repository.root / ".venv" / "left").write_text("")
    with somebody_runs(repository):
        repository.lock("# second")
        changed = repository.start()
        assert "installing .venv" in changed.stderr.readline()
        assert "waiting for commands" in changed.stderr.readline()
        assert (repository.root / ".venv" / "left").exists()

    assert changed.communicate(timeout=60)[0] == "1\n"
    assert not (repository.root / ".venv" / "left").exists()
    assert not (repository.root / ".venv.old").exists()
    assert repository.installations == ["tff today dev", "tff today"]


def test_groups_are_added_beside_running_commands_and_stay(repository):
    repository.run()
    (repository.root / ".venv" / "kept").write_text("")
    with somebody_runs(repository):
        added = repository.run("--dev", "-c", "print(1)")
        repository.run("-x", "-", "--runtime=ray", TFF_REG_GPU="1")
    later = repository.run("-c", "print(1)", "--jobs_on", "slurm", TFF_REG_GPU="1")

    assert added.stdout == later.stdout == "1\n" and later.stderr == ""
    assert (repository.root / ".venv" / "kept").exists()
    expected = ["tff today", "tff today dev", "tff today ray gpu"]
    assert repository.installations == expected


def test_the_second_lane_has_an_environment_of_its_own(repository):
    repository.run()
    done = repository.run(
        *("-c", "import sys; print(sys.executable)"),
        **{"TFF_REG_LANE": "tff_pins", "TFF_REG_GPU": "1"},
    )

    assert done.stdout == f"{repository.root}/.venv-tff_pins/bin/python\n"
    assert repository.installations == ["tff today", "tff tff_pins"]


def test_a_moved_or_copied_repository_needs_no_installation(repository):
    repository.run()
    copy = shutil.copytree(repository.root, repository.folder / "copy", symlinks=True)
    shutil.rmtree(repository.root)

    done = repository.run(launch=copy / "bin" / "launch")

    assert (done.stdout, done.stderr) == ("1\n", "")


def test_an_environment_without_its_python_is_made_anew(repository):
    repository.run()
    python = repository.root / ".venv" / "bin" / "python"
    python.unlink()
    python.symlink_to("/nowhere/python")

    assert repository.run().stdout == "1\n"
    assert len(repository.installations) == 2


def test_an_environment_made_by_hand_is_kept_aside(repository):
    (repository.root / ".venv").mkdir()
    (repository.root / ".venv" / "pyvenv.cfg").write_text("home = /elsewhere\n")

    done = repository.run()

    (kept,) = repository.root.glob(".venv.previous-*")
    assert done.stdout == "1\n" and str(kept) in done.stderr
    assert (kept / "pyvenv.cfg").read_text() == "home = /elsewhere\n"


@pytest.mark.parametrize(
    ("command", "output", "words"),
    [
        ("pip", "error: No space left on device", ["disk is full", "3 GB"]),
        ("pip", "error: Request failed after 3 retries", ["network", "mirror"]),
        ("pip", "  cause: Hash mismatch for `six`", ["hash differs"]),
        ("pip", "error: something new", ["uv failed: error: something new"]),
        ("venv", "error: No interpreter found", ["TFF_REG_PYTHON=3.14", "3.10 to 3.13"]),
    ],
)
def test_a_failing_uv_is_one_line_and_repeated(repository, command, output, words):
    repository.uv_does(command, f"echo '{output}' >&2; exit 1")
    failed = repository.run()
    log = (repository.root / ".venv.log").read_text()
    left = [path.name for path in repository.root.glob(".venv*") if path.is_dir()]
    repository.uv_does(command, "")

    assert_fails_in_one_line(failed, *words, f"{repository.root}/.venv.log")
    assert output in log and not left
    assert repository.run().stdout == "1\n"


def test_another_python_is_checked_before_the_old_environment_goes(repository):
    repository.program(
        "uv", repository.path.joinpath("uv").read_text().replace("3.11.9", "$VERSION")
    )
    repository.run(VERSION="3.13.1")
    old = repository.run(TFF_REG_PYTHON="python3.9", VERSION="3.9.18")
    repository.uv_does("venv", "exit 2")
    none = repository.run(TFF_REG_PYTHON="nonsense")

    assert_fails_in_one_line(old, "TFF_REG_PYTHON=python3.9", "3.9.18", "3.10 to 3.13")
    assert_fails_in_one_line(none, "nonsense", "whole path or version")
    assert repository.run().stdout == "1\n"


@pytest.mark.parametrize(
    ("tool", "shell", "words"),
    [
        ("uname", '[ "$1" = -s ] && echo Darwin || echo x86_64', ["Darwin", "arm64"]),
        ("uname", '[ "$1" = -s ] && echo Linux || echo i686', ["i686", "64-bit"]),
        ("getconf", '[ "$1" = LONG_BIT ] && echo 32', ["32 bits", "64-bit"]),
        ("getconf", '[ "$1" = LONG_BIT ] && echo 64', ["glibc 2.31", "musl"]),
        (
            "getconf",
            'case $1 in LONG_BIT) echo 64 ;; *) echo "glibc 2.28" ;; esac',
            ["glibc 2.31", "here is glibc 2.28"],
        ),
    ],
)
def test_a_machine_without_tensorflow_is_one_line(repository, tool, shell, words):
    repository.program(tool, f"#!/bin/sh\n{shell}\n")

    assert_fails_in_one_line(repository.run(), *words)


def test_what_cannot_be_is_one_line(repository):
    assert_fails_in_one_line(repository.run(TFF_REG_GPU="yes"), "TFF_REG_GPU", "yes")
    assert_fails_in_one_line(repository.run(TFF_REG_LANE="x"), "TFF_REG_LANE", "tff_pins")
    (repository.root / ".venv.lock").symlink_to("/nowhere/lock")
    assert_fails_in_one_line(repository.run(), "cannot write", str(repository.root))


def offer_uv(repository, digest=None):
    """A lock that names a wheel of uv in a folder."""
    wheel = repository.folder / (
        "uv-9.8.7-py3-none-manylinux_2_17_x86_64.manylinux2014_x86_64.whl"
    )
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("uv-9.8.7.data/scripts/uv", STAND_IN)
    digest = digest or hashlib.sha256(wheel.read_bytes()).hexdigest()
    repository.lock(f'url = "{wheel.as_uri()}", hash = "sha256:{digest}"\n')


@pytest.mark.parametrize(
    "found", ["echo rubbish; exit 1", "echo rubbish", "echo uv 0.4.30", "exit 127"]
)
def test_uv_is_fetched_where_the_one_on_path_does_not_do(repository, found):
    repository.program("uv", f"#!/bin/sh\n{found}\n")
    offer_uv(repository, digest="5" * 64)
    wrong = repository.run(PIP_NO_INDEX="1")
    offer_uv(repository)

    assert_fails_in_one_line(wrong, "hash")
    assert repository.run(PIP_NO_INDEX="1").stdout == "1\n"
    (repository.folder / "uv-9.8.7-py3-none-manylinux_2_17_x86_64.whl").unlink(True)
    assert repository.run("--dev", "-c", "print(2)").stdout == "2\n"


def test_without_uv_and_python_it_is_one_line(repository):
    (repository.path / "uv").unlink()
    repository.program("python3", "#!/bin/sh\nexit 127\n")  # A switched-off shim.

    assert_fails_in_one_line(repository.run(), "uv", "Python", "docs.astral.sh")


def test_uv_gets_the_mirror_that_pip_is_set_to(repository):
    repository.uv_does("pip", 'echo "$UV_DEFAULT_INDEX" >>"$STAND_IN/used"')
    repository.run(PIP_INDEX_URL="a", UV_INDEX="")
    repository.run("--dev", "-c", "", PIP_INDEX_URL="a", UV_DEFAULT_INDEX="b")
    settings = '[ "$*" = "-m pip config get global.index-url" ] && echo c'
    repository.program("python3", f"#!/bin/sh\n{settings}\n")
    repository.run("-c", "", "--runtime=ray", UV_INDEX="")

    assert (repository.folder / "used").read_text() == "a\nb\nc\n"


def test_a_cache_that_cannot_be_written_is_in_the_repository(repository):
    repository.uv_does("pip", 'echo "$UV_CACHE_DIR" >"$STAND_IN/used"')
    (repository.folder / "cache").write_text("a file in the way")

    assert repository.run().stdout == "1\n"
    used = (repository.folder / "used").read_text()
    assert used == f"{repository.root}/.venv-uv/cache\n"


def test_it_works_through_a_link_and_without_the_users_python_settings(repository):
    link = repository.folder / "link"
    link.symlink_to(repository.root / "bin" / "launch")
    program = "import site, sys; print(sys.path, site.ENABLE_USER_SITE)"
    done = repository.run(
        "-c", program, launch=link, PYTHONPATH="/leak", PYTHONHOME="/leak"
    )

    assert str(repository.root) in done.stdout
    assert "leak" not in done.stdout and "False" in done.stdout


@pytest.mark.parametrize("flag", ["--help", "-h"])
def test_help_needs_no_environment(repository, flag):
    program = repository.root / "bin" / "docs.py"
    program.write_text("import sys; print(sys.argv[1:], sys.flags.no_site)")

    done = repository.run(str(program), "--process=fedalign", flag)

    assert done.stdout == f"['--process=fedalign', '{flag}'] 1\n"
    assert done.stderr == "" and repository.installations == []


@pytest.mark.parametrize("name", COMMANDS)
def test_help_of_every_command_needs_the_standard_library_only(name):
    _, *arguments = commands.command_of(name)
    done = subprocess.run(
        [BASE_PYTHON, "-S", "-E", *arguments, "--help"],
        capture_output=True,
        text=True,
    )

    assert f"bin/{name}" in done.stdout
    assert (done.returncode, done.stderr) == (0, "")
