"""The notebooks: executed from top to bottom, and stored with their outputs.

`bin/launch --dev -m tff_reg.tasks.notebooks` executes them all and writes their outputs
into them.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import pathlib
import re
from collections.abc import Iterator
from typing import Any, Optional

import nbclient
import nbformat
from jupyter_client import kernelspec, manager

import tff_reg

ROOT = pathlib.Path(__file__).resolve().parent
_SECONDS_A_CELL = 600
# Metadata key with the digest of the code that made the outputs.
_DIGEST = "executed_code_sha256"


def paths() -> list[pathlib.Path]:
    """Returns the paths of all notebooks."""
    return sorted(ROOT.glob("*.ipynb"))


def read(path: pathlib.Path) -> Any:
    """Reads a notebook as an `nbformat.NotebookNode`."""
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    return notebook


def follow_repository(notebook: Any, name: str) -> None:
    """Writes the repository's address into a notebook's install cell and Colab link.

    Without a repository, the address is the notebook's own clone, and there is no link.

    Args:
      notebook: The notebook; its first cells are the title and `install`.
      name: Name of the notebook's file.
    """
    title, install = notebook.cells[:2]
    title.source = re.sub(r"\n\n\[Open in Colab\]\(.*?\)", "", title.source)
    source, on_github = "../..", "https://github.com/"
    if tff_reg.REPOSITORY:
        source = f"git+{tff_reg.REPOSITORY}"
    if tff_reg.REPOSITORY.startswith(on_github):
        where = tff_reg.REPOSITORY.removeprefix(on_github)
        address = f"https://colab.research.google.com/github/{where}/blob/main"
        link = f"\n\n[Open in Colab]({address}/tasks/notebooks/{name})"
        heading, _, rest = title.source.partition("\n")
        title.source = f"{heading}{link}\n{rest}"
    install.source = re.sub(
        r'^SOURCE = "[^"]*"', f'SOURCE = "{source}"', install.source
    )


def is_current(notebook: Any) -> bool:
    """Whether the outputs in a notebook come from its present code."""
    return notebook.metadata.get(_DIGEST) == _digest_of_code(notebook)


def _digest_of_code(notebook: Any) -> str:
    sources = [cell.source for cell in notebook.cells if cell.cell_type == "code"]
    return hashlib.sha256("\0".join(sources).encode("utf-8")).hexdigest()


@contextlib.contextmanager
def executed(
    notebook: Any, folder: pathlib.Path, python: Optional[pathlib.Path] = None
) -> Iterator[Any]:
    """Executes a notebook in a kernel of this Python, not in an installed kernel.

    Args:
      notebook: The notebook; its outputs are replaced.
      folder: The kernel's working directory.
      python: Another environment's Python, which may not have this package.

    Yields:
      The `nbclient.NotebookClient`; its kernel lives until the block ends.

    Raises:
      nbclient.exceptions.CellExecutionError: If a cell raises.
    """
    own = kernelspec.KernelSpecManager(kernel_dirs=[])
    km = manager.AsyncKernelManager(kernel_name="python3", kernel_spec_manager=own)
    environ = {
        **os.environ,
        "PYTHONPATH": str(ROOT.parents[1]),
        # Without a user's start-up files and history.
        "IPYTHONDIR": str(folder / ".ipython"),
    }
    if python is not None:
        assert km.kernel_spec is not None
        km.kernel_spec.argv[0] = str(python)
        # And without variables that this package has set.
        for name in ("PYTHONPATH", "TF_USE_LEGACY_KERAS", "TF_ENABLE_ONEDNN_OPTS"):
            environ.pop(name, None)
    client = nbclient.NotebookClient(
        notebook, km=km, timeout=_SECONDS_A_CELL, record_timing=False
    )
    with client.setup_kernel(env=environ, cwd=str(folder), cleanup_kc=True):
        client.execute()
        notebook.metadata[_DIGEST] = _digest_of_code(notebook)
        yield client
