"""The package as others have it, and the files around it that people read."""

import os
import pathlib
import re
import shlex
import subprocess
import sys
import tarfile
import venv
import zipfile

import pytest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

from tests import commands, documents
from tff_reg import seam

ROOT = documents.ROOT
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
PROJECT = PYPROJECT["project"]
SMALL = [
    "--model=cnn",
    "--num_clients=4",
    "--clients_per_round=2",
    "--partition=iid",
    "--total_rounds=1",
    "--local_epochs=1",
]


class Environment:
    """An environment that sees the lock's packages and none of this repository."""

    def __init__(self, folder):
        self.folder = folder
        venv.create(folder, symlinks=True)
        (site,) = folder.glob("lib/python*/site-packages")
        # Those of the tests' environment, installed by the locks.
        locked = [path for path in sys.path if path.endswith("site-packages")]
        (site / "locked.pth").write_text("\n".join(locked) + "\n")
        for path in locked:  # setuptools' is what makes distutils importable.
            for pth in pathlib.Path(path).glob("distutils*.pth"):
                (site / f"with_{pth.name}").write_bytes(pth.read_bytes())

    def run(self, *command, cwd, **environ):
        """Runs a program of it, without network."""
        environ = {
            **{k: v for k, v in os.environ.items() if not k.startswith("PYTHON")},
            "PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}",
            "PIP_NO_INDEX": "1",
            "PIP_DISABLE_PIP_VERSION_CHECK": "1",
            "PIP_NO_BUILD_ISOLATION": "false",  # In pip that says: there is none.
            **environ,
        }
        program = [str(self.folder / "bin" / command[0])]
        if command[0] == "pip":  # It is the lock's, seen from this Python.
            program = [str(self.folder / "bin" / "python"), "-m", "pip"]
        return subprocess.run(
            [*program, *map(str, command[1:])],
            cwd=cwd,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=commands.PATIENCE_SECONDS,
        )


def copy_of_the_clone(folder):
    """What git tracks, and what it would: building leaves files in the sources."""
    listed_files = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        check=True,
        text=True,
    ).stdout
    for name in filter(None, listed_files.split("\0")):
        source, target = ROOT / name, folder / name
        if name.startswith("tests/") or not os.path.lexists(source):
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_symlink():
            target.symlink_to(os.readlink(source))
        else:
            target.write_bytes(source.read_bytes())


@pytest.fixture(scope="module")
def clone(tmp_path_factory):
    folder = tmp_path_factory.mktemp("package") / "clone"
    copy_of_the_clone(folder)
    return folder


@pytest.fixture(scope="module")
def installed(tmp_path_factory, clone):
    """An environment in which the package is installed as the site says, with pip."""
    environment = Environment(tmp_path_factory.mktemp("environment") / "env")
    lines = [
        line
        for line in documents.commands(documents.PAGES / "start.md")
        if line.startswith("pip ")
    ]
    # The second is for today's TensorFlow (test_seam.py); the last has what is there.
    assert len(lines) == 3
    for line in (lines[0], seam.install_command()):
        done = environment.run(*shlex.split(line), cwd=clone)
        assert done.returncode == 0, done.stdout[-2000:]
    return environment


def test_a_wheel_has_the_library_its_tasks_and_their_data(clone, installed, tmp_path):
    done = installed.run(
        *("pip", "wheel", ".", "--no-deps", "--no-build-isolation", "-w", tmp_path),
        cwd=clone,
    )
    assert done.returncode == 0, done.stdout[-2000:]
    (wheel,) = tmp_path.glob("*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    wanted = {
        file.relative_to(ROOT).as_posix()
        for folder in [ROOT / "tff_reg", ROOT / "tff_reg" / "tasks"]
        for pattern in (
            "*.py",
            "*/*.py",
            "*/*.csv",
            "*/*.toml",
            "*/*.ipynb",
            "py.typed",
        )
        for file in folder.glob(pattern)
    }
    assert {"tff_reg/tasks/recipes/new_paper.toml", "tff_reg/py.typed"} <= wanted
    assert not wanted - names
    others = {name.split("/")[0] for name in names}
    assert others == {"tff_reg", f"tff_reg-{_version()}.dist-info"}
    # Where in dist-info depends on the version of setuptools.
    assert {"LICENSE", "NOTICE"} <= {name.rpartition("/")[2] for name in names}


def test_an_sdist_has_the_tasks_too(clone, installed, tmp_path):
    code = (
        f"from setuptools import build_meta; build_meta.build_sdist({str(tmp_path)!r})"
    )
    done = installed.run("python", "-c", code, cwd=clone)
    assert done.returncode == 0, done.stdout[-2000:]
    (archive,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(archive) as opened:
        member = opened.getmember(f"tff_reg-{_version()}/tff_reg/tasks/digits.py")
        assert member.isfile()


# Six seconds: TensorFlow starts with the installed wheel.
def test_it_trains_from_an_empty_folder(installed, tmp_path):
    done = installed.run(
        "tff-reg", "run", "--process=fedavg", *SMALL, cwd=tmp_path, TMPDIR=str(tmp_path)
    )
    assert done.returncode == 0, done.stdout
    assert "Test accuracy" in done.stdout
    assert (tmp_path / "runs" / "fedavg-digits-seed0" / "metrics.csv").exists()


def test_the_tutorials_method_is_there_when_its_package_is_installed(
    installed, tmp_path
):
    """As the tutorial says; test_installed_methods.py trains with it."""
    for file in (ROOT / "docs" / "examples" / "anchors").glob("*.*"):
        (tmp_path / file.name).write_bytes(file.read_bytes())
    done = installed.run("pip", "install", ".", cwd=tmp_path)
    assert done.returncode == 0, done.stdout[-2000:]
    done = installed.run(
        "tff-reg", "run", "--process=man+anchor", "--helpfull", cwd=tmp_path
    )
    assert done.returncode == 0, done.stdout
    assert "--anchor_strength:" in done.stdout and "--man_strength:" in done.stdout
    # It calls itself what was typed.
    assert "tff-reg run --process=" in done.stdout and "bin/run" not in done.stdout
    done = installed.run("tff-reg", "run", "--process=manx", cwd=tmp_path)
    assert done.stdout.startswith("tff-reg run: --process=manx: ")


def _version():
    text = (ROOT / "tff_reg" / "__init__.py").read_text("utf-8")
    return re.search(r'__version__ = "(.*)"', text).group(1)


def test_the_requirements_for_pip_are_the_lock():
    command = "uv export --frozen --no-annotate --no-header"
    assert command in (documents.PAGES / "design.md").read_text("utf-8")
    done = subprocess.run(
        f"{sys.prefix}/bin/{command}".split(),
        cwd=ROOT,
        stdout=subprocess.PIPE,
        check=True,
        text=True,
    )
    assert (ROOT / "requirements.txt").read_text("utf-8") == done.stdout
