"""What a run was made with, for `config.json`."""

from __future__ import annotations

import pathlib
import platform
import subprocess
from typing import Any, Optional

import tff_reg
from tff_reg import kernels, runtime
from tff_reg.lazy import np, tf, tff

# What `config.json` says about by whom, where and with what a run was made.
NAMES = frozenset(
    (
        "made_by",
        "settings_from",
        "data_files",
        "clients_run",
        "tensorflow_devices",
        "cpu_kernels",
        "machine",
        "versions",
        "git_commit",
    )
)


def describe() -> dict[str, Any]:
    """Versions, devices and commit, as JSON values."""
    return {
        "clients_run": runtime.describe(),
        "tensorflow_devices": [
            device.name for device in tf.config.list_logical_devices()
        ],
        "cpu_kernels": kernels.describe(),
        "machine": f"{platform.system()} {platform.machine()}",
        "versions": {
            "python": platform.python_version(),
            "tensorflow": tf.__version__,
            "tensorflow_federated": tff.__version__,
            "numpy": np.__version__,
            "tff_reg": tff_reg.__version__,
        },
        "git_commit": git_commit(),
    }


def git_commit() -> Optional[str]:
    """The commit of the checkout that `tff_reg` is imported from; None if none.

    `-modified` is added when tracked files differ from it.
    """
    root = pathlib.Path(tff_reg.__file__).resolve().parent.parent
    if not (root / ".git").exists():
        return None
    commit = _git(root, "rev-parse", "HEAD")
    if not commit:
        return None
    changes = _git(root, "status", "--porcelain", "--untracked-files=no")
    return f"{commit}-modified" if changes else commit


def _git(root: pathlib.Path, *arguments: str) -> Optional[str]:
    try:
        result = subprocess.run(
            ["git", "-C", str(root), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=10,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return result.stdout.decode("utf-8", "replace").strip()
