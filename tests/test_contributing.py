"""The changes that CONTRIBUTING.md shows, applied to a copy that then runs."""

import os
import re
import shutil
import subprocess
import sys

import pytest

from tests import commands, documents

# What a change is run with, and what must be said: by the beginning of its diff.
SMALL = ("--scale=tiny", "--total_rounds=1", "--local_epochs=1", "--model=cnn")
OF_CLIENTS = ("--client_evaluation", "--client_test_share=0.3")
SHOWN = {
    "tff_reg/experiment/report/quantities.py": (
        ("compare", "--processes=fedavg", *SMALL, *OF_CLIENTS),
        "clients: median (%)",
    ),
    "tff_reg/experiment/config/work_settings.py": (
        ("run", "--process=fedavg", "--late_share=0.5"),
        "--late_share",
    ),
    "tasks/__init__.py": (
        ("run", "--process=fedavg", "--task=wine", *SMALL[:3]),
        "wine, 48 training",
    ),
    "tasks/recipes/fedexp.toml": (
        ("recipes", "--show=fedexp/table1/fedprox"),
        "process=fedprox",
    ),
    "tff_reg/methods/catalogue.py": (("run", "--process=near", *SMALL), "near"),
}


def _diffs():
    page = documents.ROOT / "CONTRIBUTING.md"
    found = [text for kind, text in documents._fences(page) if kind == "diff"]
    return {re.match(r"diff --git a/(\S+)", each)[1]: each for each in found}


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    """A copy of the library."""
    folder = tmp_path_factory.mktemp("copy")
    for name in ("tff_reg", "tasks"):
        ignored = shutil.ignore_patterns("__pycache__")
        source = documents.ROOT / name
        shutil.copytree(source, folder / name, symlinks=True, ignore=ignored)
    return folder


def test_each_change_is_shown():
    assert _diffs().keys() == SHOWN.keys()


@pytest.mark.parametrize("file", SHOWN)
def test_a_change_of_ten_lines_is_all_that_is_needed(copy, file):
    diff = _diffs()[file]
    assert len(re.findall(r"(?m)^[+-](?!\+\+|--)", diff)) <= 10
    apply = ["git", "apply", "--unidiff-zero", "-"]
    subprocess.run(apply, input=diff, cwd=copy, text=True, check=True)
    (name, *flags), said = SHOWN[file]
    if name in ("run", "compare"):
        flags.append(f"--output_dir={copy / 'runs' / file.replace('/', '_')}")
    done = subprocess.run(
        [sys.executable, "-m", "tff_reg.commands", name, *flags],
        cwd=copy,
        env={**os.environ, "PYTHONPATH": str(copy)},
        capture_output=True,
        text=True,
        timeout=commands.PATIENCE_SECONDS,
    )
    # The setting is refused, as it stands alone.
    assert done.returncode == (2 if said.startswith("--") else 0), done.stderr
    assert said in (done.stderr or done.stdout)
