"""The code and versions that made a run, for `config.json`."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import pathlib
import platform
import subprocess
import sys
from collections.abc import Iterator, Mapping
from importlib import metadata
from typing import Any, Optional

import tff_reg
from tff_reg import kernels, lazy, plugins, runtime
from tff_reg.lazy import np, tf
from tff_reg.methods import catalogue
from tff_reg.models import names as model_names

# Names in `config.json` for the code, machine and versions that made the rounds,
MAKER = (
    "made_by",
    "clients_run",
    "tensorflow_devices",
    "cpu_kernels",
    "machine",
    "versions",
    "git_commit",
    "sources",
    "own_sources",
    "plugins",
)
# and for those that made the rounds before a resumption.
MADE_BEFORE = "made_before"
# The folders of this package on which the numbers of runs do not depend.
_ONLY_LOOKS = ("analysis", "commands")
NAMES = frozenset((*MAKER, MADE_BEFORE, "settings_from", "data_files"))


def of(config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the part of a config that says which code made the rounds."""
    return {name: config[name] for name in MAKER if name in config}


def made_before(
    config: Mapping[str, Any], maker: Mapping[str, Any], rounds_done: int
) -> list[dict[str, Any]]:
    """Returns the makers of the rounds that a resumed run continues.

    Args:
      config: The config of the rounds already done.
      maker: The maker of the next rounds, from `of`.
      rounds_done: Number of rounds already done.

    Returns:
      One entry for each other maker: `rounds` (the first and the last), and the result
      of `of`.
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


def source_files(package: Any = tff_reg) -> Iterator[pathlib.Path]:
    """Yields the source files of a package, or of a single module.

    Args:
      package: The package or module; of `tff_reg`, without analysis and commands.

    Yields:
      The files, always in the same order.
    """
    if not hasattr(package, "__path__"):
        if getattr(package, "__file__", None):
            yield pathlib.Path(package.__file__)
        return
    for root in package.__path__:
        for where, folders, names in os.walk(root, followlinks=True):
            folders.sort()
            if package is tff_reg and where == root:
                folders[:] = [each for each in folders if each not in _ONLY_LOOKS]
            for name in sorted(names):
                if name.endswith(".py"):
                    yield pathlib.Path(where, name)


@functools.cache
def _of_package(name: str) -> str:
    """Returns the digest of a package's source files at the first call."""
    digest = hashlib.sha256()
    for path in source_files(sys.modules[name]):
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


def sources(config: Mapping[str, Any]) -> str:
    """Computes the digest of the sources on which a run's numbers depend.

    Args:
      config: The run's config. The packages of its methods, task and model are among
        the sources.
    """
    packages = {"tff_reg"}
    for _, _, value in _of_others(config):
        packages.add(plugins.module_of(value).__name__.partition(".")[0])
    digests = [_of_package(each) for each in sorted(packages)]
    return hashlib.sha256(" ".join(digests).encode()).hexdigest()


def plugins_of(config: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Returns the third-party methods, task and model that a run uses.

    Args:
      config: The run's config.

    Returns:
      One entry for each: its `kind` and `name`, and the result of `plugins.origin`.
    """
    return [
        {"kind": kind, "name": name, **origin}
        for kind, name, value in _of_others(config)
        if (origin := plugins.origin(value))
    ]


def _of_others(config: Mapping[str, Any]) -> list[tuple[str, str, Any]]:
    """Returns (kind, name, value) of the methods and of a third-party task or model."""
    found: list[tuple[str, str, Any]] = []
    # A package that is not installed here is left out.
    with contextlib.suppress(ValueError):
        for name in catalogue.parse(config.get("process") or "fedavg"):
            found.append(("method", name, catalogue.find(name)))
    for kind, of_package in (
        ("task", lazy.tasks.of_package),
        ("model", model_names.of_package),
    ):
        with contextlib.suppress(ValueError):
            if value := of_package(config.get(kind) or ""):
                found.append((kind, config[kind], value))
    return found


def _lane() -> dict[str, Optional[str]]:
    """Returns the versions of TensorFlow and TFF without loading them."""
    found: dict[str, Optional[str]] = {}
    for name in ("tensorflow", "tensorflow_federated"):
        found[name] = None
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


def makers(config: Mapping[str, Any], *, of_tff_reg: bool = False) -> list[str]:
    """Describes the code that made a run's rounds.

    Args:
      config: The run's config.
      of_tff_reg: Whether only the sources of tff_reg count, without plugins.

    Returns:
      One phrase for each distinct code that made a part of the rounds; none if the
      config does not record it.
    """
    parts = [*config.get(MADE_BEFORE, []), config]
    if of_tff_reg:
        parts = [
            {**p, "sources": p.get("own_sources", p.get("sources"))} for p in parts
        ]
    return list(dict.fromkeys(_in_words(each) for each in parts if "versions" in each))


def _in_words(maker: Mapping[str, Any]) -> str:
    versions = maker["versions"]
    code = (maker.get("sources") or "unknown")[:8]
    return (
        f"sources {code} with TensorFlow {versions.get('tensorflow')} and TFF"
        f" {versions.get('tensorflow_federated')}"
    )


def change(config: Mapping[str, Any]) -> Optional[str]:
    """Describes how the code that made a run differs from the present code.

    Returns:
      A line; None if the sources and the versions of TensorFlow and TFF are the same.
    """
    digest = sources(config)
    now = _in_words({"sources": digest, "versions": _lane()})
    others = [each for each in makers(config) if each != now]
    if not others:
        return None
    commits = [
        f"commit {str(commit)[:7]}" if commit else "no commit"
        for commit in (config.get("git_commit"), git_commit())
    ]
    return (
        f"It was made by {commits[0]}, {', and '.join(others)}; this is {commits[1]},"
        f" {now}."
    )


def describe(config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns this process's code and versions, by the names of `MAKER`."""
    return {
        "clients_run": runtime.describe(),
        "tensorflow_devices": [
            device.name for device in tf.config.list_logical_devices()
        ],
        "cpu_kernels": kernels.describe(),
        "machine": f"{platform.system()} {platform.machine()}",
        "versions": {
            "python": platform.python_version(),
            **_lane(),
            "numpy": np.__version__,
            "tff_reg": tff_reg.__version__,
        },
        "git_commit": git_commit(),
        "sources": sources(config),
        "own_sources": sources({}),
        "plugins": plugins_of(config),
    }


def git_commit() -> Optional[str]:
    """Returns the commit of the checkout that `tff_reg` is imported from, or None.

    `-modified` is added if tracked files differ from the commit.
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
