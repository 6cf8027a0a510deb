"""`bin/launch`: a repository of one tiny package, the real uv, and no network."""

import hashlib
import os
import shutil
import signal
import subprocess
import sys
import zipfile

import pytest

from tests import commands

UV = f"{sys.prefix}/bin/uv"  # The group dev has it.
SHOW = "import tiny, sys; print(tiny.VALUE, sys.executable, sys.argv[1:])"
PROJECT = """
project = {name = "few", version = "1", requires-python = ">=3.10"}
dependency-groups = {tff = ["tiny"], today = [], dev = ["more"], ray = ["more"]}
tool.uv = {package = false, no-index = true, find-links = ["."]}
"""
METADATA = {
    "METADATA": "Metadata-Version: 2.1\nName: {}\nVersion: 1.0\n",
    "WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    "RECORD": "",
}


class Repository:
    """A repository with a space in its name, whose `lock` can be written."""

    def __init__(self, home):
        self.home, self.root = home, home / "the repository"
        (self.root / "bin").mkdir(parents=True)
        shutil.copy2(commands.ROOT / "bin" / "launch", self.root / "bin" / "launch")
        (self.root / "pyproject.toml").write_text(PROJECT)
        for name in ("tiny", "more"):
            path = self.root / f"{name}-1.0-py3-none-any.whl"
            with zipfile.ZipFile(path, "w") as archive:
                archive.writestr(f"{name}.py", "VALUE = 5\n")
                for file, text in METADATA.items():
                    archive.writestr(f"{name}-1.0.dist-info/{file}", text.format(name))
        self.lock = self.root / "uv.lock"
        subprocess.run([UV, "lock", "--quiet"], cwd=self.root, check=True)
        # uv writes no hashes of files in folders, but reads them.
        text = self.lock.read_text()
        for path in self.root.glob("*.whl"):
            digest = hashlib.sha256(path.read_bytes()).hexdigest()
            text = text.replace(
                f'{path.name}"', f'{path.name}", hash = "sha256:{digest}"'
            )
        self.lock.write_text(text)
        (home / "path").mkdir()
        (home / "path" / "uv").symlink_to(UV)

    def start(self, *arguments, **environ):
        path = f"{self.home / 'path'}:{os.path.dirname(sys.executable)}:/usr/bin:/bin"
        environ = {"PATH": path, "HOME": str(self.home), "TFF_REG_GPU": "0", **environ}
        return subprocess.Popen(
            [self.root / "bin" / "launch", *(arguments or ("-c", SHOW))],
            env={"TFF_REG_PYTHON": os.path.realpath(sys.executable), **environ},
            cwd=self.home,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *arguments, **environ):
        process = self.start(*arguments, **environ)
        out, err = process.communicate(timeout=60)
        return subprocess.CompletedProcess([], process.returncode, out, err)

    def uninstall_uv(self):
        """Without uv, nothing can be installed any more."""
        (self.home / "path" / "uv").unlink()
        (self.home / "path" / "uv").write_text("#!/bin/sh\nexit 1\n")
        (self.home / "path" / "uv").chmod(0o755)


@pytest.fixture
def repository(tmp_path):
    return Repository(tmp_path)


def test_first_call_installs_and_later_ones_need_no_uv_even_elsewhere(repository):
    first = repository.run("-c", SHOW, "a b", "--dev")
    python = repository.root / ".venv" / "bin" / "python"
    assert first.stdout == f"5 {python} ['a b', '--dev']\n", first.stderr
    assert first.stderr == "tff_reg: installing .venv (tff, today)\n"
    repository.uninstall_uv()
    repository.root = repository.root.rename(repository.home / "moved")
    leaks = {"PYTHONPATH": "/leak", "PYTHONHOME": "/leak"}
    moved = repository.run("-c", "import sys, tiny; print(sys.path)", **leaks)
    assert moved.stderr == "" and str(repository.root) in moved.stdout
    assert "leak" not in moved.stdout


def test_first_calls_at_the_same_time_install_once(repository):
    started = [repository.start() for _ in range(3)]
    done = [each.communicate(timeout=60) for each in started]
    assert [out[:2] for out, _ in done] == ["5 "] * 3
    assert sum("installing" in err for _, err in done) == 1


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_an_interrupted_installation_is_repeated_from_empty(repository, number):
    (repository.home / "path" / "uv").unlink()
    (repository.home / "path" / "uv").write_text(
        '#!/bin/sh\nmkdir -p "$UV_PROJECT_ENVIRONMENT"; sleep 60\n'
    )
    (repository.home / "path" / "uv").chmod(0o755)
    process = repository.start()
    while not (repository.root / ".venv").exists():
        assert process.poll() is None
    process.send_signal(number)
    assert process.wait(60) in (-number, 128 + number)
    (repository.root / ".venv" / "half_installed").touch()
    (repository.home / "path" / "uv").unlink()
    (repository.home / "path" / "uv").symlink_to(UV)
    assert repository.run().stdout[:2] == "5 "
    assert not (repository.root / ".venv" / "half_installed").exists()


def test_groups_and_packages_stay_when_others_are_added(repository):
    repository.run()
    (repository.root / ".venv" / "kept").touch()
    assert repository.run("--dev", "-c", "import more, tiny").returncode == 0
    again = repository.run("-c", "import more, tiny", "--runtime", "ray")
    assert (again.returncode, (repository.root / ".venv" / "kept").exists()) == (0, 1)
    repository.uninstall_uv()
    assert repository.run("--dev", "-c", "import more").stderr == ""
    repository.lock.write_text(repository.lock.read_text() + "\n")
    refused = repository.run()
    assert refused.returncode == 2
    assert refused.stderr.splitlines()[-1].endswith("; the next call goes on.")


def test_an_environment_whose_python_is_gone_is_mended(repository):
    repository.run()
    python = repository.root / ".venv" / "bin" / "python"
    python.unlink()
    python.symlink_to("/nowhere/python")
    assert repository.run().stdout[:2] == "5 "


def test_files_with_another_hash_are_refused(repository):
    text = repository.lock.read_text()
    digest = text.partition("sha256:")[2][:64]
    repository.lock.write_text(text.replace(digest, "5" * 64))
    done = repository.run("--dev", "-c", "")
    assert done.returncode == 2 and "hash" in done.stderr.lower()


def test_uv_is_fetched_by_its_hash(repository):
    wheel = repository.home / "uv-9.8.7-py3-none-manylinux_2_17_x86_64.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.write(UV, "uv-9.8.7.data/scripts/uv")
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    line = f'# url = "{wheel.as_uri()}", hash = "sha256:{digest}"\n'
    (repository.home / "path" / "uv").unlink()
    lock = repository.lock.read_text()
    # A Python beside which there is no uv.
    (repository.home / "path" / "python3").symlink_to(os.path.realpath(sys.executable))
    path = {"PATH": f"{repository.home / 'path'}:/usr/bin:/bin"}
    repository.lock.write_text(line.replace("sha256:", "sha256:0") + lock)
    assert "another hash" in repository.run(**path).stderr
    repository.lock.write_text(line + lock)
    assert repository.run(**path).stdout[:2] == "5 "


def test_uvs_own_sentence_is_the_reason_where_a_python_does_not_start(repository):
    failed = repository.run(TFF_REG_PYTHON="3.99")
    assert failed.returncode == 2
    said = [line for line in failed.stderr.splitlines() if not line.startswith("hint")]
    assert "No interpreter found for Python 3.99" in said[1]
    assert said[-1] == "tff_reg: uv could not install it; the next call goes on."
