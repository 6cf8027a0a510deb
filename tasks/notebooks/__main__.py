"""Executes the notebooks anew: `bin/launch --dev -m tff_reg.tasks.notebooks`."""

import pathlib
import tempfile

import nbformat

from tff_reg.tasks import notebooks

if __name__ == "__main__":
    for path in notebooks.paths():
        notebook = notebooks.read(path)
        notebooks.follow_repository(notebook, path.name)
        with (
            tempfile.TemporaryDirectory() as folder,
            notebooks.executed(notebook, pathlib.Path(folder)),
        ):
            nbformat.write(notebook, path)
        print(f"{path} is executed.")
