"""A user's type checker sees our types: pyright finds the mistakes in a program."""

import json
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[1]
PROGRAM = ROOT / "tests" / "typed_program.py"


def errors_of(program, folder):
    """What pyright says of a program, by line."""
    done = subprocess.run(
        [sys.executable, "-m", "pyright", "--outputjson"]
        + [f"--pythonpath={sys.executable}", str(program)],
        cwd=folder,
        capture_output=True,
        text=True,
    )
    return {
        each["range"]["start"]["line"] + 1: each["message"]
        for each in json.loads(done.stdout)["generalDiagnostics"]
        if each["severity"] == "error"
    }


def test_pyright_finds_the_mistakes_of_a_program_and_no_others():
    found = errors_of(PROGRAM, ROOT)
    lines = PROGRAM.read_text("utf-8").splitlines()
    wrong = {n for n, line in enumerate(lines, 1) if line.endswith("# wrong")}
    assert wrong == found.keys(), {n: found.get(n) for n in wrong ^ found.keys()}


@pytest.mark.slow  # A start of pyright, which bin/lint runs on it as well.
def test_a_method_of_the_tutorial_has_no_mistakes_in_another_folder(tmp_path):
    example = ROOT / "docs" / "examples" / "methods" / "near.py"
    program = tmp_path / "mine.py"
    program.write_text(example.read_text("utf-8"))
    assert not errors_of(program, tmp_path)
