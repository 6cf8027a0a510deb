"""Executes the notebooks in environments that have what Colab has; not in CI.

    bin/launch --dev tests/machines/colab.py FOLDER

Makes the environments anew in FOLDER, with uv from PATH (3 GB). In the kernel Keras 3
and TensorFlow are in use before the notebook's first cell installs this package and
TFF, which must leave all that is there as it is.
"""

import pathlib
import subprocess
import sys
import tempfile

import nbformat

from tff_reg.tasks import notebooks

ROOT = pathlib.Path(__file__).parents[2]
# Python and TensorFlow.
MACHINES = (("3.12", "2.19"), ("3.13", "2.21"))
PACKAGES = [
    *("attrs", "ipykernel", "jax", "jsonschema", "keras", "matplotlib", "numpy"),
    *("pandas", "protobuf", "requests", "scikit-learn", "scipy", "setuptools"),
]
BEFORE = """
import time

began = time.time()
import keras, tensorflow as tf

keras.layers.Dense(3)(tf.zeros([1, 2]))
tf.keras.layers.Dense
"""


def _uv(*arguments):
    done = subprocess.run(["uv", *arguments], check=True, stdout=subprocess.PIPE)
    return done.stdout.decode()


def _made(folder, python, tensorflow):
    """Makes an environment; returns its Python."""
    _uv("venv", "--clear", "--seed", "-p", python, folder)
    path = folder / "bin" / "python"
    _uv("pip", "install", "-p", path, f"tensorflow=={tensorflow}.*", *PACKAGES)
    return path


def _versions(python):
    return set(_uv("pip", "freeze", "-p", python).splitlines())


def _execute(path, python, clone):
    notebook = notebooks.read(path)
    for cell in notebook.cells:
        if cell.get("id") in ("install", "live"):
            cell.source += "\nprint(f'{time.time() - began:.0f} s')"
    notebook.cells.insert(0, nbformat.v4.new_code_cell(BEFORE))
    with notebooks.executed(notebook, clone / "tasks" / "notebooks", python):
        pass
    for cell in notebook.cells:
        if cell.get("id") in ("install", "live"):
            (*_, seconds) = [o.text for o in cell.outputs if "text" in o]
            print(f"{path.stem}, {cell.id}: at {seconds.splitlines()[-1]}", flush=True)


def main(folder):
    """Executes all notebooks on all machines; the first error ends it."""
    pathlib.Path(folder).mkdir(parents=True, exist_ok=True)
    for python, tensorflow in MACHINES:
        print(f"Python {python}, TensorFlow {tensorflow}", flush=True)
        path = _made(pathlib.Path(folder, python).resolve(), python, tensorflow)
        before = _versions(path)
        with tempfile.TemporaryDirectory(dir=folder) as clone:
            subprocess.run(["git", "clone", "-q", ROOT, clone], check=True)
            for notebook in notebooks.paths():
                _execute(notebook, path, pathlib.Path(clone).resolve())
        assert before <= _versions(path), before - _versions(path)


if __name__ == "__main__":
    main(*sys.argv[1:])
