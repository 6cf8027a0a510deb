"""The notebooks run from top to bottom, and what is kept in them is what they give."""

import base64
import contextlib
import io
import os
import pathlib
import re
import subprocess

import matplotlib.image
import numpy as np
import pytest

import tff_reg
from tests import commands
from tff_reg import seam
from tff_reg.tasks import notebooks

pytestmark = pytest.mark.notebook

QUICKSTART = notebooks.ROOT / "quickstart.ipynb"
FIGURES = {"data": 1, "live": 1, "own": 1, "regularizer": 1, "hessian": 1}


def code_cells(notebook):
    return {cell.id: cell for cell in notebook.cells if cell.cell_type == "code"}


def text_of(cell):
    return "".join(o.text for o in cell.outputs if o.output_type == "stream")


def figures_of(cell):
    """The pictures that a cell shows, float [height, width, 4] each."""
    return [
        matplotlib.image.imread(io.BytesIO(base64.b64decode(o.data["image/png"])))
        for o in cell.outputs
        if "image/png" in o.get("data", {})
    ]


def check_cells(notebook, number_of_figures):
    """No errors, no complaints, and as many pictures as there should be."""
    cells = code_cells(notebook)
    for name, cell in cells.items():
        figures = figures_of(cell)
        assert len(figures) == number_of_figures.get(name, 0), name
        # Not an empty sheet.
        assert all(np.std(figure[..., :3]) > 0.05 for figure in figures), name
        assert not any(o.output_type == "error" for o in cell.outputs), name
        assert not any(o.get("name") == "stderr" for o in cell.outputs), name
    assert text_of(cells["install"]) == "Nothing to install.\n"
    return cells


def check_outputs(notebook):
    cells = check_cells(notebook, FIGURES)
    for name, count in {"live": 1, "own": 1, "regularizer": 2}.items():
        accuracies = re.findall(r"est accuracy (\d+\.\d)%", text_of(cells[name]))
        assert len(accuracies) == count
        worst = min(map(float, accuracies))
        assert worst > 65, (name, accuracies)
    first, second = re.findall(r"eigenvalues (\d+\.\d+)", text_of(cells["hessian"]))
    assert float(first) > 0 and float(second) > 0


@contextlib.contextmanager
def execute(folder, replacements, path=QUICKSTART):
    """Executes a notebook; yields it and the client of its kernel."""
    notebook = notebooks.read(path)
    replaced = set()
    for cell in code_cells(notebook).values():
        cell.outputs, cell.execution_count = [], None
        for old, new in replacements.items():
            if old in cell.source:
                cell.source = cell.source.replace(old, new)
                replaced.add(old)
    assert replaced == replacements.keys()
    with notebooks.executed(notebook, folder) as client:
        yield notebook, client


def check_run(notebook, client):
    assert notebooks.is_current(notebook)
    folder = pathlib.Path(client.km.provisioner.cwd) / "runs" / "fedalign"
    assert {"metrics.csv", "summary.json"} <= {p.name for p in folder.iterdir()}


@pytest.mark.slow
def test_the_quickstart_runs_from_top_to_bottom(tmp_path):
    with execute(tmp_path, {}) as (notebook, client):
        check_outputs(notebook)
        check_run(notebook, client)


OTHERS = {
    "why_averaging_fails": (
        {
            "local_epochs=5": "local_epochs=1",
            "ROUNDS = 15": "ROUNDS = 2",
            "points=13": "points=3",
            # Their first rounds take the time.
            '    "FedProx": [methods.FedProx(0.01)],\n': "",
            '    "FedRS": [methods.FedRS()],\n': "",
            '    "MAN": [methods.MAN(0.5)],\n': "",
        },
        dict.fromkeys(("data", "fedavg", "drift", "forget", "plane", "methods"), 1),
    ),
    "your_own_model": (
        {
            "local_epochs=3": "local_epochs=1",
            "total_rounds=12": "total_rounds=2",
            # As above.
            '    "FedProx": [methods.FedProx(0.1)],\n': "",
            '    "FedMLB": [methods.FedMLB(1.0)],\n': "",
            '    "MAN + SAM": [methods.MAN(0.05), methods.FedSAM(0.05)],\n': "",
        },
        {"train": 1},
    ),
}


def test_these_are_all_notebooks():
    assert [p.stem for p in notebooks.paths()] == sorted([QUICKSTART.stem, *OTHERS])


@pytest.mark.slow
@pytest.mark.parametrize("name", OTHERS)
def test_another_notebook_runs_from_top_to_bottom_in_short(name, tmp_path):
    changes, figures = OTHERS[name]
    path = notebooks.ROOT / f"{name}.ipynb"
    with execute(tmp_path, changes, path) as (notebook, _):
        check_cells(notebook, figures)


@pytest.mark.slow
@pytest.mark.parametrize("name", OTHERS)
def test_another_notebooks_outputs_are_reproduced(name, tmp_path):
    path = notebooks.ROOT / f"{name}.ipynb"
    with execute(tmp_path, {}, path) as (notebook, _):
        check_kept(name, notebook)


@pytest.mark.parametrize("name", OTHERS)
def test_another_notebook_keeps_its_outputs(name):
    check_kept(name, notebooks.read(notebooks.ROOT / f"{name}.ipynb"))


def numbers(cell, pattern):
    """What a cell prints, by name: numbers behind it."""
    lines = re.findall(rf"(?m)^(.*?\S)  +{pattern}", text_of(cell))
    return {line[0]: tuple(map(float, line[1:])) for line in lines}


def check_kept(name, notebook):
    """What the notebooks say is what they print."""
    cells = check_cells(notebook, OTHERS[name][1])
    if name == "your_own_model":
        found = numbers(cells["train"], r"test accuracy (\d+\.\d)%")
        assert len(found) == 5 and min(found.values()) > (60,)
        kept = re.search(r"of the file (\d+\.\d)%", text_of(cells["away"]))
        assert float(kept.group(1)) == pytest.approx(found["FedAvg"][0])
        return
    number = r"([+-]?\d+\.\d+)"
    last = rf"test accuracy in the last rounds {number}%, at least {number}%"
    averaged = numbers(cells["fedavg"], last)
    assert averaged["IID"][0] > averaged["Dir(0.05)"][0] + 2
    steps = rf"mean cosine {number}, a step {number} long, their mean {number}"
    drifts = numbers(cells["drift"], steps)
    assert drifts["Dir(0.05)"][1] > drifts["IID"][1]
    ends = numbers(cells["methods"], last)
    assert set(ends) == {"FedAvg", "FedProx", "FedRS", "SCAFFOLD", "MAN"}
    assert max(ends.values()) > ends["FedAvg"]
    sharp = numbers(cells["curvature"], rf"largest eigenvalue {number}")
    assert set(sharp) == set(ends) and min(sharp.values()) > (0,)


@pytest.mark.parametrize("path", notebooks.paths(), ids=lambda path: path.name)
def test_kept_outputs_are_of_the_current_code(path):
    notebook = notebooks.read(path)
    assert notebooks.is_current(notebook), (
        f"The outputs in {path.name} are of other code:"
        " bin/launch --dev -m tff_reg.tasks.notebooks"
    )
    counts = [cell.execution_count for cell in code_cells(notebook).values()]
    assert counts == list(range(1, len(counts) + 1))


def test_a_notebook_names_the_repository_once_there_is_one(monkeypatch):
    path = QUICKSTART
    notebook, kept = notebooks.read(path), notebooks.read(path)
    notebooks.follow_repository(notebook, path.name)
    assert notebook == kept
    monkeypatch.setattr(tff_reg, "REPOSITORY", "https://github.com/some/place")
    notebooks.follow_repository(notebook, path.name)
    title, install = (cell.source for cell in notebook.cells[:2])
    assert install.startswith('SOURCE = "git+https://github.com/some/place"  #')
    address = "colab.research.google.com/github/some/place/blob/main/tasks/notebooks"
    assert title.split("\n\n")[1] == f"[Open in Colab](https://{address}/{path.name})"
    monkeypatch.undo()
    notebooks.follow_repository(notebook, path.name)
    assert notebook == kept


def test_the_quickstart_keeps_its_outputs():
    check_outputs(notebooks.read(QUICKSTART))


# "Installs" into the environment that it is in.
PIP = """
import pathlib, sys

site = pathlib.Path(__file__).parents[1]
with open(site / "calls", "a") as calls:
    print(*sys.argv[1:], file=calls)
name, origin = {{
    "../..": ("tff_reg", {root!r}),
}}.get(sys.argv[-1], ("tensorflow_federated", {site!r}))
(site / name).symlink_to(pathlib.Path(origin, name))
"""


def test_the_first_cell_installs_what_is_missing_into_the_kernels_own_python(tmp_path):
    python = commands.python_without_tff(tmp_path / "environment")
    (site,) = python.parents[1].glob("lib/python*/site-packages")
    # In the place of the environment's own.
    (site / "pip").unlink(missing_ok=True)
    (site / "pip").mkdir()
    (site / "pip" / "__main__.py").write_text(
        PIP.format(
            root=str(commands.ROOT), site=str(pathlib.Path(np.__file__).parents[1])
        )
    )
    install = code_cells(notebooks.read(QUICKSTART))["install"].source
    (tmp_path / "cells.ipy").write_text(f"{install}\n{install}\n")
    environ = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    done = subprocess.run(
        [python, "-m", "IPython", "cells.ipy"],
        cwd=tmp_path,
        env={**environ, "IPYTHONDIR": str(tmp_path / ".ipython")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.splitlines()[-1] == "Nothing to install.", done.stderr
    assert (site / "calls").read_text().splitlines() == [
        "install --quiet ../..",
        seam.install_command().replace("pip install", "install --quiet"),
    ]
