"""Which experiment a run is, and which code made its rounds."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import pathlib
import platform
import sys
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from importlib import metadata
from typing import Any, Optional

import tff_reg
from tff_reg import kernels, lazy, plugins, runtime, scores
from tff_reg.data import digests
from tff_reg.experiment.config import task_settings
from tff_reg.experiment.config.run_config import RunConfig
from tff_reg.lazy import np, tf
from tff_reg.methods import catalogue
from tff_reg.models import names as model_names
from tff_reg.settings import NO_EFFECT, tagged

_NO_EFFECT = frozenset(tagged(RunConfig, NO_EFFECT))
# Names in `config.json` for the machine and the versions with which the run began,
MACHINE = (
    "made_by",
    "clients_run",
    "tensorflow_devices",
    "cpu_kernels",
    "machine",
    "versions",
)
# and for the code that made its rounds: one entry for each code.
CODE = "code"
# The bytes that a client receives and sends per round; none where they are not known.
TRAFFIC = "bytes_per_client"
# The beginning of the names of the user's own files there.
_FILE = "file "
# The folders of this package on which the numbers of runs do not depend.
_ONLY_LOOKS = ("analysis", "commands")
# What is suspicious about a run's data and model, in sentences.
REMARKS = "remarks"
# The state of the files that settings name when the run began, by the setting.
FILES = "files"
# Names whose values are no settings.
NOT_SETTINGS = frozenset((*MACHINE, CODE, TRAFFIC, REMARKS, FILES, "settings_from"))


def identity(values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the settings on which a run's numbers depend.

    Settings of files, devices and reports are left out, and the code. Two runs with the
    same identity have the same numbers.
    """
    left_out = _NO_EFFECT | NOT_SETTINGS
    found = {name: value for name, value in values.items() if name not in left_out}
    return {**found, **target(values)}


def key(values: Mapping[str, Any]) -> str:
    """Returns the identity as a text, equal for runs with the same numbers."""
    return json.dumps(identity(values), sort_keys=True)


def target(values: Mapping[str, Any]) -> dict[str, str]:
    """Returns `stop_at_target` with its target; empty if a run does not stop there."""
    if not (values.get("stop_at_target") and values.get("targets")):
        return {}
    of_what = ", ".join(str(values.get(f"target_{n}")) for n in ("measure", "model"))
    target = scores.of(values).best(values["targets"])
    return {"stop_at_target": f"{target:g} ({of_what})"}


def differences(
    first: Mapping[str, Any], second: Mapping[str, Any], but: Container[str] = ()
) -> list[str]:
    """Returns the settings in which two runs are different experiments.

    A setting that only one of them has is not compared: not every process has the
    settings of `bin/run`.
    """
    known = identity(first)
    return [
        name
        for name, value in identity(second).items()
        if name not in but and known.get(name, value) != value
    ]


def decided_by_seed(config: Mapping[str, Any]) -> tuple[str, ...]:
    """Returns what may differ if runs differ only in their seed."""
    names = ["seed", digests.KERAS_WEIGHTS, digests.WORK]
    if config.get("partition_seed") is not None:
        return tuple(names)
    if config.get("partition") != "split_file" or config.get("client_test_share"):
        names.append(digests.DEALT)
    changed = task_settings.change_examples(config)
    if (
        config.get("validation_share")
        or config.get("partition") == "natural"
        or changed
    ):
        names.append(digests.DATA)  # Examples that the seed holds out or changes.
    return tuple(names)


def machine() -> dict[str, Any]:
    """Returns this process's machine and versions, by names of `MACHINE`."""
    return {
        "clients_run": runtime.describe(),
        "tensorflow_devices": [
            device.name for device in tf.config.list_logical_devices()
        ],
        "cpu_kernels": kernels.describe(),
        "machine": f"{platform.system()} {platform.machine()}",
        "versions": {
            "python": platform.python_version(),
            "numpy": np.__version__,
            "tff_reg": tff_reg.__version__,
            **_lane(),
        },
    }


def code(
    config: Mapping[str, Any], has_own_objects: bool = False
) -> dict[str, Optional[str]]:
    """Returns the code on which a run's numbers depend in this process.

    It is a digest of the sources of `tff_reg` and of each package and file (with what
    it imports from its folder) that the run's methods, task and model come from, and
    the versions of TensorFlow and TFF. A run of the user's own objects also has all
    loaded files of the user's: what is made of what in them is not known.
    """
    found = {"tff_reg": of_package("tff_reg")}
    for value in _of_others(config):
        module = plugins.module_of(value)
        package = module.__name__.partition(".")[0]
        if package != "tff_reg" and not hasattr(module, "__file__"):  # A notebook.
            found[f"{package} {value.__name__}"] = digests.of_value(value)
        elif package != "tff_reg":
            if "<locals>" in getattr(
                value, "__qualname__", ""
            ):  # A file may make several of a name.
                found[f"{package} {value.__name__}"] = digests.of_value(value)
            is_file = package.startswith(plugins.MODULE)
            name = pathlib.Path(str(module.__file__)).name if is_file else package
            found[name] = of_package(package)
    return {**found, **_lane(), **(_own_files() if has_own_objects else {})}


def _own_files() -> dict[str, Optional[str]]:
    """Returns the digests of the user's files that this process has loaded."""
    found: dict[str, Optional[str]] = {}
    for name, module in sorted(sys.modules.items()):
        file = pathlib.Path(getattr(module, "__file__", None) or "")
        if name == "__mp_main__":  # Another name of the script.
            continue
        if digests.is_own(name) and file.suffix == ".py" and file.is_file():
            shown = file.name if name == "__main__" else f"{name.replace('.', '/')}.py"
            digest = hashlib.sha256(file.read_bytes()).hexdigest()
            found[_FILE + shown] = digest[:8]
    return found


def other_code(config: Mapping[str, Any]) -> Optional[str]:
    """Returns a line on other code that made a run's rounds; None if none did."""
    known = {name for made in config.get(CODE, ()) for name in made}
    now = code(config, any(name.startswith(_FILE) for name in known))
    said = [
        f"{name} {value} (now {now.get(name)})"
        for made in config.get(CODE, ())
        for name, value in made.items()
        if now.get(name) != value
        if name in now or not name.startswith(_FILE)  # A file may be needed no more.
    ]
    if not said:
        return None
    return f"It was made by other code: {', '.join(dict.fromkeys(said))}."


def different_code(groups: Mapping[str, Sequence[Mapping[str, Any]]]) -> Optional[str]:
    """Returns a line that says which code was not the same in compared runs.

    `groups` are the runs' configs by the group's name.
    """
    made: dict[str, dict[str, dict[str, None]]] = {}
    for group, configs in groups.items():
        for config in configs:
            for each in config.get(CODE, ()):
                for name, value in each.items():
                    made.setdefault(name, {}).setdefault(str(value), {})[group] = None
    said = []
    for name, values in made.items():
        if len(values) > 1:
            by = [f"{value} ({', '.join(names)})" for value, names in values.items()]
            said.append(f"{name} {', '.join(by)}")
    if not said:
        return None
    return f"They were not all made by the same code: {'; '.join(said)}."


def _source_files(package: Any) -> Iterator[pathlib.Path]:
    """Yields a package's or a module's source files, always in the same order."""
    if not hasattr(package, "__path__"):
        yield from plugins.sources(package)
        return
    for root in package.__path__:
        yield from files_below(root, _ONLY_LOOKS if package is tff_reg else ())


def files_below(root: str, but: Container[str] = _ONLY_LOOKS) -> Iterator[pathlib.Path]:
    """Yields the Python files below a folder, except those in given subfolders."""
    for where, folders, names in os.walk(root, followlinks=True):
        folders.sort()
        if where == root:
            folders[:] = [each for each in folders if each not in but]
        for name in sorted(names):
            if name.endswith(".py"):
                yield pathlib.Path(where, name)


@functools.cache
def of_package(name: str) -> str:
    """Returns the digest of a package's source files at the first call."""
    return of_files(_source_files(sys.modules[name]))


def of_files(paths: Iterable[pathlib.Path]) -> str:
    """Returns the digest of source files."""
    digest = hashlib.sha256()
    for path in paths:
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()[:8]


def _of_others(config: Mapping[str, Any]) -> list[Any]:
    """Returns the methods of a run, and its third-party task and model."""
    found: list[Any] = []
    # A package that is not installed here is left out.
    with contextlib.suppress(ValueError):
        names = catalogue.parse(config.get("process") or "fedavg")
        found += [catalogue.find(name) for name in names]
    for kind, of_package in (
        ("task", lazy.tasks.of_package),
        ("model", model_names.of_package),
    ):
        with contextlib.suppress(ValueError):
            if value := of_package(config.get(kind) or ""):
                found.append(value)
    return found


def _lane() -> dict[str, Optional[str]]:
    """Returns the versions of TensorFlow and TFF without loading them."""
    found: dict[str, Optional[str]] = {}
    for name in ("tensorflow", "tensorflow_federated"):
        found[name] = None
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found
