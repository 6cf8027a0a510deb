"""What a run was made with, for `config.json`."""

from __future__ import annotations

import pathlib
import platform
import subprocess
from collections.abc import Mapping
from typing import Any, Optional

import tff_reg
from tff_reg import kernels, runtime
from tff_reg.lazy import np, tf, tff

# What `config.json` says about by whom, where and with what rounds were made, ...
MAKER = (
    "made_by",
    "clients_run",
    "tensorflow_devices",
    "cpu_kernels",
    "machine",
    "versions",
    "git_commit",
)
# ... who made the rounds before, and whence settings and data are.
MADE_BEFORE = "made_before"
NAMES = frozenset((*MAKER, MADE_BEFORE, "settings_from", "data_files"))


def of(config: Mapping[str, Any]) -> dict[str, Any]:
    """What a config says of who made the rounds."""
    return {name: config[name] for name in MAKER if name in config}


def made_before(
    config: Mapping[str, Any], maker: Mapping[str, Any], rounds_done: int
) -> list[dict[str, Any]]:
    """Who made rounds that somebody else goes on from.

    Args:
      config: That of the rounds that are there.
      maker: Who goes on, from `of`.
      rounds_done: After how many rounds.

    Returns:
      An entry for each of the others: `rounds`, the first and the last, and what `of`
      gives.
    """
    found = []
    for entry in config.get(MADE_BEFORE, []):
        first, last = entry["rounds"]
        if first <= rounds_done:
            found.append({**entry, "rounds": [first, min(last, rounds_done)]})
    first = found[-1]["rounds"][1] + 1 if found else 1
    if of(config) != maker and first <= rounds_done:
        found.append({"rounds": [first, rounds_done], **of(config)})
    return found


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
