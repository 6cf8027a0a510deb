"""A user's type checker sees our types: pyright finds the mistakes in a program."""

import json
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).parents[1]
PROGRAM = ROOT / "tests" / "typed_program.py"


def test_pyright_finds_the_mistakes_of_a_program_and_no_others():
    command = [sys.executable, "-m", "pyright", "--outputjson"]
    command += [f"--pythonpath={sys.executable}", str(PROGRAM)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    found = {
        each["range"]["start"]["line"] + 1: each["message"]
        for each in json.loads(done.stdout)["generalDiagnostics"]
        if each["severity"] == "error"
    }
    lines = PROGRAM.read_text("utf-8").splitlines()
    wrong = {n for n, line in enumerate(lines, 1) if line.endswith("# wrong")}
    assert wrong == found.keys(), {n: found.get(n) for n in wrong ^ found.keys()}
