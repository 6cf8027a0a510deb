"""Tests of what commands start with: bin/launch, bin/environment.sh, bin/fetch_uv.py.

Each test has its own small repository, in a folder with a space in its name. Its `uv`
is a script that writes down how it was called and does what the test says; one test has
the real uv. No network.
"""

import contextlib
import hashlib
import os
import shutil
import signal
import subprocess
import sys
import zipfile

import pytest

from tests import commands

BIN = commands.ROOT / "bin"
PYTHON = os.path.realpath(sys.executable)
# All programs that the launcher needs, with flock or Perl.
TOOLS = (
    "awk cat cksum date df dirname flock getconf grep ln mkdir mv perl readlink rm sed"
)
TOOLS += " sh sleep tail touch tr uname"
UV = f"""
for last; do :; done
case $1 in
  --version) echo uv 0.13.9 ;;
  cache) echo "$HOME/cache" ;;
  export) echo "$@" >>"$HOME/exports" ;;
  venv) . "$HOME/venv"
    rm -rf "$last" && mkdir -p "$last/bin" "$last/lib/python3.13/site-packages"
    ln -s "{PYTHON}" "$last/bin/python"
    echo "version_info = ${{VERSION:-3.13}}" >"$last/pyvenv.cfg" ;;
  pip) . "$HOME/pip" ;;
esac
"""
# Says 1 if it has not inherited the lock that makes others wait.
PROGRAM = "import os\ntry: os.fstat(8)\nexcept OSError: print(1)"


class Repository:
    def __init__(self, home):
        self.home, self.root = home, home / "the repository"
        self.venv = self.root / ".venv"
        (home / "path").mkdir()
        (self.root / "bin").mkdir(parents=True)
        for name in ("launch", "environment.sh", "fetch_uv.py", "../tff_reg.pth"):
            shutil.copy2(BIN / name, self.root / "bin" / name)
        for tool in TOOLS.split():
            (home / "path" / tool).symlink_to(shutil.which(tool))
        (home / "path/python3").symlink_to(PYTHON)
        for file, shell in {"path/uv": UV, "venv": "", "pip": ""}.items():
            self.script(file, shell)
        (self.root / "uv.lock").write_text("# first")

    def script(self, file, shell):
        (self.home / file).unlink(missing_ok=True)
        (self.home / file).write_text(f"#!/bin/sh\n{shell}\n")
        (self.home / file).chmod(0o755)

    def start(self, *arguments, launch=None, folder=None, **environ):
        environ = {"PATH": f"{self.home}/path", "HOME": str(self.home), **environ}
        return subprocess.Popen(
            [launch or self.root / "bin/launch", *(arguments or ("-c", PROGRAM))],
            env={"TFF_REG_GPU": "0", "UV_INDEX": "none", **environ},
            cwd=folder or self.home,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *arguments, **options):
        process = self.start(*arguments, **options)
        stdout, stderr = process.communicate(timeout=60)
        return subprocess.CompletedProcess([], process.returncode, stdout, stderr)

    @property
    def installed(self):
        """The groups of each installation."""
        return [
            " ".join(word[8:] for word in line.split() if word[:8] == "--group=")
            for line in (self.home / "exports").read_text().splitlines()
        ]

    def gate(self):
        """What waits for the installation's middle, and what lets it go on."""
        os.mkfifo(self.home / "entered")
        os.mkfifo(self.home / "go_on")
        self.script("pip", 'echo >"$HOME/entered"; read _ <"$HOME/go_on"')
        return (self.home / "entered").read_text, (self.home / "go_on").write_text

    @contextlib.contextmanager
    def used(self):
        user = self.start("-c", "import time; print(1, flush=True); time.sleep(99)")
        assert user.stdout.readline() == "1\n"
        yield
        user.kill()
        user.communicate()


@pytest.fixture
def repository(tmp_path):
    return Repository(tmp_path)


def assert_fails_in_one_line(done, *words):
    *progress, line = done.stderr.splitlines()
    assert all(" ..." in earlier for earlier in progress), done.stderr
    assert (done.returncode, done.stdout, line[:9]) == (2, "", "tff_reg: ")
    assert not [word for word in words if word not in line], line


@pytest.mark.parametrize(
    ("lane", "suffix", "version"),
    [("today", "", "3.13"), ("tff_pins", "-tff_pins", "3.11")],
)
def test_the_first_call_installs_and_the_second_starts_at_once(
    repository, lane, suffix, version
):
    environ = {"TFF_REG_LANE": lane, "VERSION": version}
    show = "import sys; print(sys.executable, sys.argv[1:]); sys.exit(7)"
    first = repository.run("-c", show, "a b", "--dev", **environ)
    second = repository.run("-c", show, "a b", "--dev", **environ)
    assert first.stdout == f"{repository.venv}{suffix}/bin/python ['a b', '--dev']\n"
    assert "installing .venv" in first.stderr and "is ready" in first.stderr
    assert (second.returncode, second.stdout, second.stderr) == (7, first.stdout, "")
    assert repository.installed == [f"tff {lane}"]


@pytest.mark.parametrize("missing", ["perl", "flock"])
def test_first_calls_at_the_same_time_install_once(repository, missing):
    (repository.home / "path" / missing).unlink()
    wait_for_installer, go_on = repository.gate()
    processes = [repository.start()]
    wait_for_installer()
    processes += [repository.start() for _ in range(3)]
    for process in processes[1:]:
        assert "waiting for another command" in process.stderr.readline()
    go_on("\n")
    assert [each.communicate(timeout=60)[0] for each in processes] == ["1\n"] * 4
    assert len(repository.installed) == 1


@pytest.mark.parametrize("adding", [False, True])
@pytest.mark.parametrize("kill", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_an_interrupted_installation_is_repeated_from_empty(repository, kill, adding):
    if adding:
        repository.run()
        (repository.venv / "half_installed").touch()
    wait_for_installer, go_on = repository.gate()
    process = repository.start("--dev", "-c", "")
    wait_for_installer()
    process.send_signal(kill)
    process.wait(60)
    repository.script("pip", "")
    again = repository.start("--dev", "-c", PROGRAM)
    if kill == signal.SIGKILL:  # Then its uv goes on, and the next call waits for it.
        assert "waiting for another command" in again.stderr.readline()
        go_on("\n")
    else:
        assert process.returncode == 130 and "interrupted" in process.stderr.read()
    assert again.communicate(timeout=60)[0] == "1\n"
    assert repository.installed[-2:] == ["tff today dev"] * 2
    assert not (repository.venv / "half_installed").exists()


def test_what_a_killed_addition_left_is_not_used(repository):
    repository.run()
    (repository.venv / "adding").touch()
    assert repository.run().stdout == "1\n"
    assert repository.installed == ["tff today"] * 2


def test_without_gpus_they_are_hidden(repository):
    program = "import os; print(os.environ.get('CUDA_VISIBLE_DEVICES'))"
    assert repository.run("-c", program, TFF_REG_GPU="0").stdout == "-1\n"
    assert repository.run("-c", program, TFF_REG_GPU="1").stdout == "None\n"


def test_another_clone_in_the_folder_is_not_taken_for_this_one(repository):
    (repository.root / "tff_reg").mkdir()
    assert repository.run("-c", PROGRAM, folder=repository.root).stdout == "1\n"
    other = repository.home / "other"
    (other / "tff_reg").mkdir(parents=True)
    done = repository.run("--dev", "-m", "tff_reg", folder=other)
    assert_fails_in_one_line(done, "another tff_reg in this folder")


def test_a_changed_lock_makes_the_environment_anew_when_nobody_uses_it(repository):
    repository.run("--dev", "-c", "")
    left = repository.venv / "left"
    left.touch()
    with repository.used():
        (repository.root / "uv.lock").write_text("# second")
        changed = repository.start()
        assert "installing .venv" in changed.stderr.readline()
        assert "waiting for commands" in changed.stderr.readline()
        assert left.exists()
    assert changed.communicate(timeout=60)[0] == "1\n"
    assert not left.exists() and not (repository.root / ".venv.old").exists()
    assert repository.installed == ["tff today dev", "tff today"]


def test_packages_of_ones_own_are_installed_after_the_lock(repository):
    repository.run()
    (repository.root / "requirements-local.txt").write_text("-e ../anchors\n")
    repository.script("pip", 'echo "$@" >>"$HOME/pips"')
    assert repository.run().stdout == "1\n"
    assert repository.run().stderr == ""
    of_lock, own = (repository.home / "pips").read_text().splitlines()
    assert "--require-hashes" in of_lock
    assert "--constraint=" in own and own.endswith("-r requirements-local.txt")


def test_groups_are_added_beside_running_commands_and_stay(repository):
    repository.run()
    (repository.venv / "kept").touch()
    with repository.used():
        assert repository.run("--dev", "-c", PROGRAM).stdout == "1\n"
        repository.run("-", "--runtime=ray", TFF_REG_GPU="1")
    later = repository.run("-c", PROGRAM, "--jobs_on", "ray", TFF_REG_GPU="1")
    assert (later.stdout, later.stderr) == ("1\n", "")
    assert (repository.venv / "kept").exists()
    assert repository.installed == ["tff today", "tff today dev", "tff today ray gpu"]


def test_a_copy_needs_no_installation_until_its_python_goes(repository):
    repository.run()
    copy = shutil.copytree(repository.root, repository.home / "copy", symlinks=True)
    shutil.rmtree(repository.root)
    python, launch = copy / ".venv/bin/python", copy / "bin/launch"
    done = repository.run("-c", "import sys; print(sys.path)", launch=launch)
    assert str(copy) in done.stdout and done.stderr == ""
    python.unlink()
    python.symlink_to("/nowhere/python")
    assert repository.run(launch=launch).stdout == "1\n"
    assert len(repository.installed) == 2


def test_an_environment_made_by_hand_is_kept_aside(repository):
    repository.venv.mkdir()
    (repository.venv / "pyvenv.cfg").write_text("home = /elsewhere\n")
    done = repository.run()
    (kept,) = repository.root.glob(".venv.previous-*")
    assert done.stdout == "1\n" and str(kept) in done.stderr
    assert (kept / "pyvenv.cfg").read_text() == "home = /elsewhere\n"


def test_another_python_is_looked_at_before_the_old_environment_goes(repository):
    repository.run()
    old = repository.run(TFF_REG_PYTHON="python3.9", VERSION="3.9.18")
    repository.script("venv", "exit 2")
    for python, words in (
        ("/bin/ls", "/bin/ls is not a Python that runs"),
        ("/nowhere/python", "is not a Python that runs"),
        ("3.9", "TFF_REG_PYTHON=3.9: it must be 3.10 to 3.13"),
    ):
        assert_fails_in_one_line(repository.run(TFF_REG_PYTHON=python), words)
    none = repository.run(TFF_REG_PYTHON="nonsense")
    assert_fails_in_one_line(old, "TFF_REG_PYTHON=python3.9", "3.9.18", "3.10 to 3.13")
    assert_fails_in_one_line(none, "nonsense", "whole path or version")
    assert repository.run().stderr == ""


@pytest.mark.parametrize(
    ("file", "shell", "words"),
    [
        ("pip", "echo error: No space left on device; exit 1", "disk is full"),
        ("pip", "echo error: Request failed after 3 retries; exit 1", "network"),
        (
            "pip",
            "echo error: something new; exit 1",
            "uv failed: error: something new.",
        ),
        ("venv", "echo error: No interpreter; exit 2", "TFF_REG_PYTHON=3.14"),
        (
            "path/uname",
            "[ $1 = -s ] && echo Darwin || echo x86_64",
            "for macOS on arm64",
        ),
        ("path/uname", "[ $1 = -s ] && echo Linux || echo i686", "i686"),
        ("path/getconf", "[ $1 = LONG_BIT ] && echo 32", "32 bits"),
        ("path/getconf", "[ $1 = LONG_BIT ] && echo 64", "perhaps musl"),
        (
            "path/getconf",
            "[ $1 = LONG_BIT ] && echo 64 || echo glibc 2.28",
            "glibc 2.28",
        ),
    ],
)
def test_what_goes_wrong_is_one_line_and_leaves_nothing(repository, file, shell, words):
    before = (repository.home / file).read_bytes()
    repository.script(file, shell)
    assert_fails_in_one_line(repository.run(), words)
    assert not [path for path in repository.root.glob(".venv*") if path.is_dir()]
    (repository.home / file).unlink()
    if file in ("pip", "venv"):
        (repository.home / file).write_bytes(before)
        assert repository.run().stdout == "1\n"


@pytest.mark.parametrize("machine", ["Linux aarch64", "Darwin arm64"])
def test_the_lane_of_tffs_pins_needs_linux_on_x86(repository, machine):
    system, architecture = machine.split()
    shell = f"[ $1 = -s ] && echo {system} || echo {architecture}"
    repository.script("path/uname", shell)
    words = ("needs Linux on x86-64", f"this is {system} on {architecture}")
    assert_fails_in_one_line(repository.run(TFF_REG_LANE="tff_pins"), *words)


def test_wrong_settings_and_somebody_elses_folder_are_one_line(repository):
    assert_fails_in_one_line(repository.run(TFF_REG_GPU="yes"), "TFF_REG_GPU", "yes")
    assert_fails_in_one_line(repository.run(TFF_REG_LANE="x"), "TFF_REG_LANE is 'x'")
    (repository.root / ".venv.lock").symlink_to("/nowhere/lock")
    assert_fails_in_one_line(repository.run(), "cannot write", str(repository.root))


def test_uv_is_fetched_once_where_the_one_on_path_does_not_do(repository):
    text = ""
    for tag in ("manylinux_2_17_x86_64", "manylinux_2_17_aarch64", "macosx_11_0_arm64"):
        wheel = repository.home / f"uv-9.8.7-py3-none-{tag}.whl"
        with zipfile.ZipFile(wheel, "w") as archive:
            archive.writestr("uv-9.8.7.data/scripts/uv", f"#!/bin/sh\n{UV}")
        digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
        text += f'url = "{wheel.as_uri()}", hash = "sha256:{digest}"\n'
    lock = repository.root / "uv.lock"
    lock.write_text(text.replace("sha256:", "sha256:0"))
    repository.script("path/uv", "exit 127")
    assert_fails_in_one_line(repository.run(PIP_NO_INDEX="1"), "hash differs")
    lock.write_text(text)
    assert repository.run(PIP_NO_INDEX="1").stdout == "1\n"
    lock.write_text("")  # It would not be fetched again.
    for unsuitable in ("echo rubbish; exit 1", "echo rubbish", "echo uv 0.4.30"):
        repository.script("path/uv", unsuitable)
        shutil.rmtree(repository.venv)
        assert repository.run().stdout == "1\n"


def test_without_uv_and_python_it_is_one_line(repository):
    (repository.home / "path/uv").unlink()
    repository.script("path/python3", "exit 127")  # A switched-off shim.
    assert_fails_in_one_line(repository.run(), "uv", "Python", "docs.astral.sh")


def test_uv_gets_the_mirror_that_pip_is_set_to_and_a_cache_to_write(repository):
    used = 'echo "$UV_DEFAULT_INDEX" "$UV_CACHE_DIR" >>"$HOME/used"'
    repository.script("pip", f"UV_CACHE_DIR=${{UV_CACHE_DIR:-}}; {used}")
    repository.run(PIP_INDEX_URL="a", UV_INDEX="")
    (repository.home / "cache").rmdir()
    (repository.home / "cache").touch()  # In the way.
    repository.run("--dev", "-c", "", PIP_INDEX_URL="a", UV_DEFAULT_INDEX="b")
    settings = "echo \"global.cert='x'\"; echo \"global.index-url='c'\""
    asked = f'[ "$*" = "-m pip config list" ] && {{ {settings}; }}'
    repository.script("path/python3", asked)
    repository.run("-", "--runtime=ray", UV_INDEX="")
    cache = f"{repository.root}/.venv-uv/cache"
    lines = (repository.home / "used").read_text().splitlines()
    assert lines == ["a ", f"b {cache}", f"c {cache}"]


def test_it_works_through_a_link_and_without_the_users_python_settings(repository):
    (repository.home / "link").symlink_to(repository.root / "bin/launch")
    program = "import site, sys; print(sys.path, site.ENABLE_USER_SITE)"
    leaks = {"PYTHONPATH": "/leak", "PYTHONHOME": "/leak"}
    done = repository.run("-c", program, launch=repository.home / "link", **leaks)
    assert str(repository.root) in done.stdout
    assert "leak" not in done.stdout and "False" in done.stdout


def test_help_needs_no_environment(repository):
    program = repository.root / "bin/docs.py"
    program.write_text("import sys; print(sys.argv[1:], sys.flags.no_site)")
    done = repository.run(program, "--process=fedalign", "--help")
    assert done.stdout == "['--process=fedalign', '--help'] 1\n"
    assert done.stderr == "" and not repository.venv.exists()


NAMES = {path.name for path in BIN.iterdir() if path.is_file() and not path.suffix}


# bin/test is pytest, whose help is its own; bin/lint is a shell script.
@pytest.mark.parametrize("name", sorted(NAMES - {"launch", "lint", "test"}))
def test_help_of_every_command_needs_the_standard_library_only(name):
    _, *arguments = commands.command_of(name)
    command = [PYTHON, "-S", "-E", *arguments, "--help"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert f"bin/{name}" in done.stdout
    assert name == "bench" or max(map(len, done.stdout.splitlines())) <= 88
    assert (done.returncode, done.stderr) == (0, "")


def test_the_real_uv_installs_a_lock_and_checks_its_hashes(repository):
    uv = f"{sys.prefix}/bin/uv"  # The group dev has it.
    (repository.home / "path/uv").unlink()
    (repository.home / "path/uv").symlink_to(uv)
    lock = repository.root / "uv.lock"
    lock.unlink()
    (repository.root / "pyproject.toml").write_text("""
        project = {name = "few", version = "1", requires-python = ">=3.10"}
        dependency-groups = {tff = ["tiny"], today = []}
        tool.uv = {package = false, no-index = true, find-links = ["."]}
    """)
    wheel = repository.root / "tiny-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("tiny.py", "VALUE = 5\n")
        for name, text in {
            "METADATA": "Metadata-Version: 2.1\nName: tiny\nVersion: 1.0\n",
            "WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
            "RECORD": "",
        }.items():
            archive.writestr(f"tiny-1.0.dist-info/{name}", text)
    subprocess.run([uv, "lock", "--quiet"], cwd=repository.root, check=True)
    text, digest = lock.read_text(), hashlib.sha256(wheel.read_bytes()).hexdigest()
    environ = {"TFF_REG_PYTHON": PYTHON, "UV_NO_VERIFY_HASHES": "1", "UV_INDEX": ""}

    # uv writes no hashes of files in folders, but reads them.
    lock.write_text(text.replace('.whl"', f'.whl", hash = "sha256:{"5" * 64}"'))
    assert_fails_in_one_line(repository.run(**environ), "hash differs")
    assert not repository.venv.exists()
    lock.write_text(text.replace('.whl"', f'.whl", hash = "sha256:{digest}"'))
    done = repository.run("-c", "import tiny; print(tiny.VALUE)", **environ)
    assert done.stdout == "5\n", done.stderr
