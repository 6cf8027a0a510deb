"""Tests of bin/launch and bin/environment.py, which bin/run and bin/test start with.

Each test has its own small repository: the real launcher, and locks of nothing. The
installer is a shell script called `uv` that writes down how it was called and does what
the test says; one test uses the real uv on a wheel made on the spot. No network.
"""

import functools
import hashlib
import http.server
import importlib.util
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import threading
import time
import types
import zipfile

import pytest

from tests import commands

BIN = commands.ROOT / "bin"
BASE_PYTHON = os.path.realpath(sys.executable)

# bin/test is pytest, whose help is its own; bin/lint is a shell script.
COMMANDS = sorted(
    path.name
    for path in BIN.iterdir()
    if path.is_file()
    and not path.suffix
    and path.name not in ("launch", "lint", "lock", "test")
)

# The uv that has made the environment of the tests.
UV = shutil.which("uv", path=f"{sys.prefix}/bin{os.pathsep}{os.environ['PATH']}")

DEV_LOCKS = ("requirements-dev.txt", "requirements-ray.txt")

# The tools that bin/launch may use.
TOOLS = ("sh", "dirname", "readlink")

FAKE_UV = """#!/bin/sh
[ "$1" = cache ] && echo "{cache}"
[ "$1" = pip ] || exit 0
echo "$@" >> "{calls}"
. "{behaviour}"
"""


class Repository:
    """A copy of the launcher with its own locks, PATH and installer."""

    def __init__(self, folder):
        self.folder = folder
        self.root = folder / "repository"
        self.path = folder / "path"
        self.calls_file = folder / "calls"
        self.behaviour_file = folder / "behaviour"
        (self.root / "bin").mkdir(parents=True)
        self.path.mkdir()
        for name in ("launch", "environment.py", "fetch_uv.py"):
            shutil.copy2(BIN / name, self.root / "bin" / name)
        self.cache = folder / "cache"
        self.write_lock("# first\n")
        self.write_lock("# dev\n", "requirements-dev.txt")
        self.write_lock("# gpu\n", "requirements-gpu.txt")
        self.write_lock("# ray\n", "requirements-ray.txt")
        self.offer_uv()
        for tool in TOOLS:
            (self.path / tool).symlink_to(shutil.which(tool))
        version = ".".join(map(str, sys.version_info[:2]))
        self.write_script(f"python{version}", f'exec "{BASE_PYTHON}" "$@"\n')
        self.write_script("uv", self.fake_uv())
        self.installer_does("exit 0")

    def write_lock(self, text, name="requirements.txt"):
        (self.root / name).write_text(text)

    def fake_uv(self):
        return FAKE_UV.format(
            cache=self.cache, calls=self.calls_file, behaviour=self.behaviour_file
        )

    def offer_uv(self, digest=None):
        """An index with a wheel of uv, for those without it; returns its folder."""
        name = "uv-9.8.7-py3-none-manylinux_2_17_x86_64.manylinux2014_x86_64.whl"
        wheel = self.folder / "index" / "uv" / name
        wheel.parent.mkdir(parents=True, exist_ok=True)
        with zipfile.ZipFile(wheel, "w") as archive:
            archive.writestr("uv-9.8.7.data/scripts/uv", self.fake_uv())
        digest = digest or hashlib.sha256(wheel.read_bytes()).hexdigest()
        other = hashlib.sha256(b"for another platform").hexdigest()
        self.write_lock(
            f"uv==9.8.7 \\\n    --hash=sha256:{other} \\\n    --hash=sha256:{digest}\n",
            "requirements-uv.txt",
        )
        return wheel.parent.parent

    def write_script(self, name, text):
        script = self.path / name
        script.write_text(text if text.startswith("#!") else f"#!/bin/sh\n{text}")
        script.chmod(0o755)

    def installer_does(self, shell):
        self.behaviour_file.write_text(shell + "\n")

    @property
    def installations(self):
        """The lock that each installer call was for."""
        if not self.calls_file.exists():
            return []
        return [
            os.path.basename(line.split()[-1])
            for line in self.calls_file.read_text().splitlines()
        ]

    @property
    def ready(self):
        return (self.root / ".venv" / "ready.json").exists()

    def start(self, *arguments, **environ):
        return subprocess.Popen(
            [self.root / "bin" / "launch", *(arguments or ("-c", "print('ran')"))],
            env={
                "PATH": str(self.path),
                "HOME": str(self.folder),
                "PIP_NO_INDEX": "1",
                "TFF_REG_GPU": "0",
                **environ,
            },
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *arguments, **environ):
        process = self.start(*arguments, **environ)
        stdout, stderr = process.communicate(timeout=60)
        return subprocess.CompletedProcess([], process.returncode, stdout, stderr)

    def make_gate(self):
        """Stops the installer in the middle; returns (wait for it, let it go on)."""
        entered, go_on = self.folder / "entered", self.folder / "go_on"
        for fifo in (entered, go_on):
            os.mkfifo(fifo)
        # The shell's process is the installer's: killing it leaves nobody behind.
        self.installer_does(f'echo $$ > "{entered}"; read _ < "{go_on}"')
        return (
            lambda: int(entered.read_text()),
            lambda: go_on.write_text("\n"),
        )


@pytest.fixture
def repository(tmp_path):
    return Repository(tmp_path)


def assert_fails_in_one_line(done, *words):
    assert done.returncode == 2
    assert done.stdout == ""
    *progress, line = done.stderr.splitlines()
    assert all(", once (" in earlier for earlier in progress), done.stderr
    assert line.startswith("tff_reg: ")
    for word in words:
        assert word in line


def wait_until_gone(pid):
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        try:
            state = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2]
        except FileNotFoundError:
            return
        if state.split()[0] == "Z":
            return
        os.sched_yield()
    pytest.fail(f"process {pid} is still there")


def test_first_call_installs_and_second_starts_at_once(repository):
    first = repository.run("-c", "import sys; print(sys.prefix, sys.argv[1:])", "a b")
    second = repository.run("-c", "import sys; sys.exit(7)")

    assert first.returncode == 0
    assert first.stdout == f"{repository.root / '.venv'} ['a b']\n"
    assert "installing .venv" in first.stderr
    assert ".venv is ready" in first.stderr
    assert second.returncode == 7
    assert second.stderr == ""
    assert repository.installations == ["requirements.txt"]


def test_real_uv_installs_a_lock_with_hashes(repository):
    assert UV, "the tests need uv on PATH or in the environment, where bin/test has it"
    (repository.path / "uv").unlink()
    (repository.path / "uv").symlink_to(UV)
    wheel = repository.folder / "tiny-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("tiny.py", "VALUE = 5\n")
        info = "tiny-1.0.dist-info"
        archive.writestr(
            f"{info}/METADATA", "Metadata-Version: 2.1\nName: tiny\nVersion: 1.0\n"
        )
        archive.writestr(
            f"{info}/WHEEL",
            "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        )
        archive.writestr(f"{info}/RECORD", "")
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    lock = f"tiny @ {wheel.as_uri()} \\\n    --hash=sha256:%s\n"
    settings = {"UV_CACHE_DIR": str(repository.cache), "UV_OFFLINE": "1"}
    # What would have it installed unchecked, elsewhere, or not at all.
    settings |= {"UV_NO_VERIFY_HASHES": "1", "UV_SYSTEM_PYTHON": "1"}
    settings |= {"UV_EXCLUDE": str(repository.folder / "nothing")}

    repository.write_lock(lock % digest)
    good = repository.run("-c", "import tiny; print(tiny.VALUE)", **settings)
    repository.write_lock(lock % hashlib.sha256(b"other").hexdigest())
    bad = repository.run(**settings)

    assert good.returncode == 0, good.stderr
    assert good.stdout == "5\n"
    assert_fails_in_one_line(bad, "hash")
    assert not repository.ready


@pytest.fixture
def index(repository):
    """The address of an index on the loopback that offers uv."""
    handler = functools.partial(
        http.server.SimpleHTTPRequestHandler, directory=repository.offer_uv()
    )
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def without_uv(repository):
    (repository.path / "uv").unlink()
    repository.installer_does(f'echo "$UV_DEFAULT_INDEX" > {repository.folder}/used')
    return {"PIP_NO_INDEX": "0"}


def assert_uv_was_fetched(repository, done, index=""):
    assert done.returncode == 0, done.stderr
    assert done.stdout == "ran\n"
    assert repository.installations == ["requirements.txt"]
    assert (repository.root / ".venv" / "bin" / "uv").exists()
    # What pip is set to is passed on.
    assert (repository.folder / "used").read_text() == f"{index}\n"


@pytest.mark.parametrize("name", ["PIP_INDEX_URL", "UV_DEFAULT_INDEX"])
def test_uv_is_fetched_from_the_index_that_a_variable_names(repository, index, name):
    environ = {**without_uv(repository), name: index}

    assert_uv_was_fetched(repository, repository.run(**environ), index)


def test_uv_is_fetched_from_the_index_that_pips_file_names(repository, index):
    environ = without_uv(repository)
    settings = repository.folder / ".config" / "pip" / "pip.conf"
    settings.parent.mkdir(parents=True)
    settings.write_text(f"[global]\nindex-url = {index}/\n")

    assert_uv_was_fetched(repository, repository.run(**environ), f"{index}/")


def test_uv_is_fetched_from_another_index_if_the_first_lacks_it(repository, index):
    environ = {**without_uv(repository), "PIP_INDEX_URL": f"{index}/nothing"}

    done = repository.run(**environ, PIP_EXTRA_INDEX_URL=index)

    assert_uv_was_fetched(repository, done, f"{index}/nothing")


def test_uv_is_fetched_from_a_folder(repository):
    folder = repository.offer_uv() / "uv"
    environ = {**without_uv(repository), "PIP_NO_INDEX": "1"}

    done = repository.run(**environ, PIP_FIND_LINKS=str(folder))

    assert_uv_was_fetched(repository, done)
    assert "--no-index" in repository.calls_file.read_text()


def test_fetched_uv_serves_what_is_added_later(repository, index):
    environ = {**without_uv(repository), "PIP_INDEX_URL": index}
    repository.run(**environ)
    environ["PIP_INDEX_URL"] = f"{index}/nothing"

    assert repository.run("--dev", "-c", "print('ran')", **environ).stdout == "ran\n"
    assert repository.installations == ["requirements.txt", *DEV_LOCKS]


def test_fetched_uv_of_another_hash_is_one_line(repository, index):
    environ = {**without_uv(repository), "PIP_INDEX_URL": index}
    repository.offer_uv(digest=hashlib.sha256(b"other").hexdigest())

    assert_fails_in_one_line(repository.run(**environ), "hash")
    assert not (repository.root / ".venv" / "bin").exists()
    repository.offer_uv()
    assert repository.run(**environ).stdout == "ran\n"


def test_index_without_uv_is_one_line(repository, index):
    environ = {**without_uv(repository), "PIP_INDEX_URL": f"{index}/nothing"}

    done = repository.run(**environ)

    assert_fails_in_one_line(done, "network", "mirror", "install.log")
    log = (repository.root / ".venv" / "install.log").read_text()
    assert f"{index}/nothing/uv/" in log


def test_cache_that_cannot_be_written_is_one_in_the_environment(repository):
    repository.cache = repository.behaviour_file / "cache"
    repository.write_script("uv", repository.fake_uv())
    used = repository.folder / "used"
    repository.installer_does(
        f'echo "$UV_CACHE_DIR" > {used}; {shutil.which("mkdir")} "$UV_CACHE_DIR"'
    )

    assert repository.run().returncode == 0
    cache = repository.root / ".venv" / "cache"
    assert used.read_text() == f"{cache}\n"
    assert not cache.exists()


def test_what_development_needs_is_added_when_wanted_and_kept(repository):
    repository.run()
    marker = repository.root / ".venv" / "kept"
    marker.write_text("")

    with_it = repository.run("--dev", "-c", "import sys; print(sys.argv)", "--dev")
    without = repository.run()
    again = repository.run("--dev", "-c", "print('ran')")

    assert with_it.stdout == "['-c', '--dev']\n"
    assert "tests, linters, notebooks and docs" in with_it.stderr
    assert without.stderr == again.stderr == ""
    assert again.stdout == "ran\n"
    assert marker.exists()
    assert repository.installations == ["requirements.txt", *DEV_LOCKS]


def test_first_call_installs_what_development_needs_too(repository):
    done = repository.run("--dev", "-c", "print('ran')", TFF_REG_GPU="1")

    assert done.stdout == "ran\n"
    assert repository.installations == [
        "requirements.txt",
        *DEV_LOCKS,
        "requirements-gpu.txt",
    ]


def test_adding_does_not_wait_for_commands_that_use_the_environment(repository):
    repository.run()
    program = "import time; print('using', flush=True); time.sleep(600)"
    long = repository.start("-c", program)
    try:
        assert long.stdout.readline() == "using\n"
        added = repository.run("-c", "print('ran')", "--runtime=ray")
    finally:
        long.kill()
        long.communicate()

    assert added.stdout == "ran\n"
    assert len(repository.installations) == 2


def test_additions_at_the_same_time_are_done_once(repository):
    repository.run()
    wait_for_installer, let_installer_go_on = repository.make_gate()
    first = repository.start("-c", "print('ran')", "--runtime=ray")
    wait_for_installer()
    second = repository.start("-c", "print('ran')", "--runtime=ray")
    assert "waiting for another command" in second.stderr.readline()
    without = repository.run()  # Has what it needs.
    let_installer_go_on()

    assert without.stdout == "ran\n"
    for process in (first, second):
        stdout, _ = process.communicate(timeout=60)
        assert stdout == "ran\n"
    assert len(repository.installations) == 2


def test_changed_lock_of_an_addition_makes_the_environment_again(repository):
    repository.run("--dev", "-c", "")
    left = repository.root / ".venv" / "left_over"
    left.write_text("")
    repository.write_lock("# other\n", "requirements-dev.txt")

    without = repository.run()
    changed = repository.run("--dev", "-c", "print('ran')")

    assert without.stderr == ""
    assert changed.stdout == "ran\n"
    assert not left.exists()
    assert repository.installations == ["requirements.txt", *DEV_LOCKS] * 2


@pytest.mark.parametrize("name", COMMANDS)
def test_help_of_every_command_needs_the_standard_library_only(name):
    _, *arguments = commands.command_of(name)
    done = subprocess.run(
        [BASE_PYTHON, "-S", "-E", *arguments, "--help"],
        capture_output=True,
        text=True,
    )

    assert done.returncode == 0, done.stderr
    assert f"bin/{name}" in done.stdout
    assert done.stderr == ""


def test_modules_are_compiled_once_whatever_the_user_has_set(repository):
    (repository.root / "ours.py").write_text("")

    repository.run("-c", "import ours", PYTHONDONTWRITEBYTECODE="1")

    assert list(repository.root.glob("__pycache__/ours.*.pyc"))


def test_the_installers_temporary_files_go_with_it(repository):
    seen = repository.folder / "seen"
    repository.installer_does(f'echo "$TMPDIR" > "{seen}"; : > "$TMPDIR/left"')

    assert repository.run().returncode == 0

    folder = pathlib.Path(seen.read_text().strip())
    assert folder.parent == repository.root / ".venv"
    assert not folder.exists()


@pytest.mark.parametrize("flag", ["--help", "-h"])
def test_help_needs_no_environment(repository, flag):
    program = repository.root / "bin" / "docs.py"
    program.write_text("import sys; print(sys.argv[1:], sys.flags.no_site)")

    done = repository.run(str(program), "--process=fedalign", flag)

    assert done.returncode == 0
    assert done.stdout == f"['--process=fedalign', '{flag}'] 1\n"
    assert done.stderr == ""
    assert repository.installations == []
    assert not (repository.root / ".venv").exists()


def test_packages_that_build_others_are_installed_first(repository):
    repository.write_lock(
        "promise==2.3 \\\n    --hash=sha256:1\n"
        "setuptools==80.10.2 \\\n    --hash=sha256:2\n    # via -r requirements.in\n"
        "wheel-like==1.0 \\\n    --hash=sha256:3\n"
    )

    repository.run()

    assert repository.installations == ["build-requirements.txt", "requirements.txt"]
    build = (repository.root / ".venv" / "build-requirements.txt").read_text()
    assert build.startswith("setuptools==80.10.2 \\\n    --hash=sha256:2\n")
    assert "promise" not in build
    assert "wheel-like" not in build
    calls = repository.calls_file.read_text().splitlines()
    for flag in ("--no-deps", "--require-hashes", "--no-build-isolation"):
        assert all(flag in call for call in calls)


def test_changed_lock_makes_the_environment_again_from_empty(repository):
    repository.run()
    left = repository.root / ".venv" / "left_over"
    left.write_text("")
    repository.write_lock("# second\n")

    changed = repository.run()
    again = repository.run()

    assert changed.returncode == 0
    assert "installing .venv" in changed.stderr
    assert not left.exists()
    assert again.stderr == ""
    assert len(repository.installations) == 2


def test_changed_lock_waits_for_commands_that_use_the_environment(repository):
    repository.run()
    program = "import time; print('using', flush=True); time.sleep(600)"
    long = repository.start("-c", program)
    try:
        assert long.stdout.readline() == "using\n"
        repository.write_lock("# second\n")
        changed = repository.start()
        assert "waiting for another command" in changed.stderr.readline()
        assert len(repository.installations) == 1
    finally:
        long.kill()
        long.communicate()
    changed.communicate(timeout=60)

    assert changed.returncode == 0
    assert len(repository.installations) == 2


@pytest.mark.parametrize("kill", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_interrupted_installation_leaves_nobody_and_is_repeated(repository, kill):
    wait_for_installer, _ = repository.make_gate()
    process = repository.start()
    installer = wait_for_installer()
    process.send_signal(kill)
    process.communicate(timeout=60)
    wait_until_gone(installer)
    was_ready = repository.ready
    repository.installer_does("exit 0")

    again = repository.run()

    assert process.returncode == (130 if kill == signal.SIGINT else -kill)
    assert not was_ready
    assert again.returncode == 0
    assert again.stdout == "ran\n"
    assert len(repository.installations) == 2


def test_interrupted_change_of_lock_is_repeated(repository):
    repository.run()
    repository.write_lock("# second\n")
    wait_for_installer, _ = repository.make_gate()
    process = repository.start()
    wait_for_installer()
    process.kill()
    process.communicate(timeout=60)
    repository.write_lock("# first\n")  # What was complete before is not any more.
    repository.installer_does("exit 0")

    assert repository.run().returncode == 0
    assert len(repository.installations) == 3


def test_first_calls_at_the_same_time_install_once(repository):
    wait_for_installer, let_installer_go_on = repository.make_gate()
    first = repository.start()
    wait_for_installer()
    others = [repository.start() for _ in range(3)]
    for other in others:
        assert "waiting for another command" in other.stderr.readline()
    let_installer_go_on()

    for process in [first, *others]:
        stdout, _ = process.communicate(timeout=60)
        assert process.returncode == 0
        assert stdout == "ran\n"
    assert len(repository.installations) == 1


def test_moved_repository_is_noticed(repository):
    repository.run()
    moved = repository.folder / "moved"
    repository.root.rename(moved)
    repository.root = moved

    done = repository.run("-c", "import sys; print(sys.prefix)")

    assert done.stdout == f"{moved / '.venv'}\n"
    assert len(repository.installations) == 2


def test_environment_whose_python_is_gone_is_made_again(repository):
    repository.run()
    python = repository.root / ".venv" / "bin" / "python"
    python.unlink()
    python.symlink_to("/nowhere/python")

    assert repository.run().stdout == "ran\n"
    assert len(repository.installations) == 2


def test_environment_whose_python_is_broken_is_made_again(repository):
    repository.run()
    python = repository.root / ".venv" / "bin" / "python"
    python.unlink()
    python.write_text("#!/bin/sh\nexit 127\n")
    python.chmod(0o755)

    assert repository.run().stdout == "ran\n"
    assert len(repository.installations) == 2


def test_environment_made_by_hand_is_kept_aside(repository):
    by_hand = repository.root / ".venv"
    by_hand.mkdir()
    (by_hand / "pyvenv.cfg").write_text("home = /elsewhere\n")

    done = repository.run()

    kept = repository.root / ".venv.previous-1" / "pyvenv.cfg"
    assert done.returncode == 0
    assert str(kept.parent) in done.stderr
    assert kept.read_text() == "home = /elsewhere\n"


def test_no_python_in_range_is_one_line(repository):
    for script in repository.path.glob("python*"):
        script.unlink()
    repository.write_script("python3.11", "exit 127\n")  # a switched-off pyenv shim
    repository.write_script("python3", "exit 1\n")  # the probe says: another version

    assert_fails_in_one_line(repository.run(), "3.9", "3.10", "3.11", "TFF_REG_PYTHON")
    assert not (repository.root / ".venv").exists()


def test_python_that_fails_is_passed_over_for_one_that_works(repository):
    broken = repository.folder / "shims"
    broken.mkdir()
    for name in ("python3.11", "python3.10", "python3.9"):
        (broken / name).write_text("#!/bin/sh\nexit 127\n")
        (broken / name).chmod(0o755)

    done = repository.run(PATH=f"{broken}:{repository.path}")

    assert done.returncode == 0
    assert done.stdout == "ran\n"


def test_tff_reg_python_chooses_and_is_checked(repository):
    for script in repository.path.glob("python*"):
        script.unlink()

    chosen = repository.run(TFF_REG_PYTHON=BASE_PYTHON)
    same_again = repository.run(TFF_REG_PYTHON=BASE_PYTHON)
    without = repository.run()
    wrong = repository.run(TFF_REG_PYTHON="/nowhere/python3.11")

    assert chosen.stdout == same_again.stdout == without.stdout == "ran\n"
    assert len(repository.installations) == 1
    assert_fails_in_one_line(wrong, "TFF_REG_PYTHON=/nowhere/python3.11")


@pytest.mark.parametrize(
    ("output", "words"),
    [
        ("error: No space left on device (os error 28)", ["disk is full"]),
        ("  dns error: failed to lookup address information", ["network"]),
        ("ERROR: No matching distribution (from versions: none)", ["network"]),
        ("ERROR: THESE PACKAGES DO NOT MATCH THE HASHES", ["hash"]),
        ("error: something new", ["uv failed: error: something new."]),
    ],
)
def test_failing_installer_is_one_line_and_repeated(repository, output, words):
    repository.installer_does(f"echo '{output}' >&2; exit 1")
    failed = repository.run()
    was_ready = repository.ready
    log = (repository.root / ".venv" / "install.log").read_text()
    left = (repository.root / ".venv" / "bin").exists()
    repository.installer_does("exit 0")
    repaired = repository.run()

    assert_fails_in_one_line(failed, *words)
    assert not was_ready
    assert not left
    assert output in log
    assert repaired.stdout == "ran\n"


def test_folder_that_cannot_be_written_is_one_line(repository):
    (repository.root / ".venv").write_text("a file in the way")

    assert_fails_in_one_line(repository.run(), "cannot write", ".venv")


def test_missing_lock_is_one_line(repository):
    (repository.root / "requirements.txt").unlink()

    assert_fails_in_one_line(repository.run(), "requirements.txt")


def test_gpu_libraries_are_added_when_wanted_and_kept(repository):
    repository.run()
    marker = repository.root / ".venv" / "kept"
    marker.write_text("")

    with_gpu = repository.run(TFF_REG_GPU="1")
    without = repository.run(TFF_REG_GPU="0")

    assert with_gpu.returncode == without.returncode == 0
    assert "CUDA" in with_gpu.stderr
    assert without.stderr == ""
    assert marker.exists()
    assert repository.installations == ["requirements.txt", "requirements-gpu.txt"]


@pytest.mark.parametrize(
    "flag",
    [
        ["--runtime=ray"],
        ["--runtime", "ray"],
        ["--jobs_on=ray"],
        ["--jobs_on", "slurm"],
    ],
)
def test_ray_is_added_for_the_first_run_in_it(repository, flag):
    repository.run("-c", "", "--runtime=in_process", "--output_dir=--runtime=rays")
    first = repository.run("-c", "import sys; print(sys.argv[1:])", "-x", *flag)
    again = repository.run("-c", "print('ran')", *flag)

    assert first.stdout == f"{['-x', *flag]}\n"
    assert "Ray" in first.stderr and again.stderr == ""
    assert repository.installations == ["requirements.txt", "requirements-ray.txt"]


def test_failed_gpu_libraries_leave_the_rest_usable(repository):
    repository.run()
    repository.installer_does("echo 'error: failed to fetch'; exit 1")

    failed = repository.run(TFF_REG_GPU="1")

    assert_fails_in_one_line(failed, "network")
    assert repository.run(TFF_REG_GPU="0").stdout == "ran\n"


def test_gpu_setting_other_than_0_and_1_is_one_line(repository):
    assert_fails_in_one_line(repository.run(TFF_REG_GPU="yes"), "TFF_REG_GPU", "yes")


def test_the_users_other_python_settings_do_not_leak_in(repository):
    program = "import site, sys; print(sys.path); print(site.ENABLE_USER_SITE)"
    done = repository.run(
        "-c", program, PYTHONPATH="/leak", PYTHONHOME="/leak", HOME="/leak"
    )

    path, user_site = done.stdout.splitlines()
    assert "leak" not in path
    assert str(repository.root) in path
    assert user_site == "False"


def test_launcher_works_through_a_link_from_elsewhere(repository):
    link = repository.folder / "link"
    link.symlink_to(repository.root / "bin" / "launch")
    done = subprocess.run(
        [link, "-c", "print('ran')"],
        env={"PATH": str(repository.path), "TFF_REG_GPU": "0", "PIP_NO_INDEX": "1"},
        cwd="/",
        capture_output=True,
        text=True,
        check=True,
    )

    assert done.stdout == "ran\n"
    assert repository.ready


def test_full_disk_is_said_before_installing(repository, monkeypatch, capsys):
    path = repository.root / "bin" / "environment.py"
    spec = importlib.util.spec_from_file_location("environment_under_test", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    usage = types.SimpleNamespace(free=1e9)
    monkeypatch.setattr(module.shutil, "disk_usage", lambda folder: usage)
    monkeypatch.setenv("PATH", str(repository.path))
    monkeypatch.setenv("TFF_REG_GPU", "0")

    assert module.main(["launch", "-c", ""]) == 2

    (line,) = capsys.readouterr().err.splitlines()
    assert "4 GB" in line and "1.0 GB" in line
    assert repository.installations == []
    assert not repository.ready
