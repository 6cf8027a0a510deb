"""Third-party methods, tasks and models: entry points, and files named by a flag.

An installed package offers them by entry points in the groups `tff_reg.methods`,
`tff_reg.tasks` and `tff_reg.models`. A package is imported when one of its names is
first used.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import importlib.util
import pathlib
import re
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping
from importlib import metadata
from types import ModuleType
from typing import Any

NAME = re.compile("[a-z][a-z0-9_]*")
# The beginning of the names of modules that are made of single files.
MODULE = "tff_reg_plugin_"


class PluginError(ValueError):
    """Raised when third-party code cannot be used; the message says which, and why."""


@functools.cache
def entry_points(
    group: str, taken: tuple[str, ...]
) -> Mapping[str, metadata.EntryPoint]:
    """Returns the entry points of a group by name, sorted by name.

    Those with a forbidden or taken name are left out with a warning.
    """
    # A package that is found in two folders is listed twice.
    points = {(p.name, p.value): p for p in metadata.entry_points(group=group)}
    found: dict[str, metadata.EntryPoint] = {}
    for _, point in sorted(points.items()):
        is_free = point.name not in taken and point.name not in found
        if is_free and NAME.fullmatch(point.name):
            found[point.name] = point
        else:
            warnings.warn(
                f"{_where(point, group)} is left out: its name is taken already, or is"
                " not of small letters, digits and underscores alone.",
                stacklevel=2,
            )
    return found


def load(
    group: str, taken: tuple[str, ...], name: str, check: Callable[[Any], str]
) -> Any:
    """Imports the value of an entry point; None if there is none of the name.

    `check` returns an empty text for an allowed value, else what the value must be.
    """
    point = entry_points(group, taken).get(name)
    if point is None:
        return None
    try:
        value = point.load()
    except (
        Exception,
        SystemExit,
    ) as error:  # A third-party module may raise anything.
        why = _why(error)
        raise PluginError(f"{_where(point, group)} cannot be loaded: {why}.") from error
    if must := check(value):
        raise PluginError(f"{_where(point, group)} must be {must}, but is {value!r}.")
    return value


def _why(error: BaseException) -> str:
    text = " ".join(str(error).split()).rstrip(".")
    return f"{type(error).__name__}: {text}"


def _where(point: metadata.EntryPoint, group: str) -> str:
    return f"The entry point {point.name!r} of {group} ({point.value})"


def load_file(path: str) -> ModuleType:
    """Imports a Python file; the same module again unless the file has changed."""
    file = pathlib.Path(path).resolve()
    if not file.is_file() or file.suffix != ".py":
        raise PluginError("there is no such Python file.")
    # A file that has changed is another module, even within one Python process.
    digest = hashlib.sha256(bytes(file) + file.read_bytes()).hexdigest()
    name = f"{MODULE}{file.stem}_{digest[:8]}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec and spec.loader  # A .py file has both.
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        why = _why(error)
        raise PluginError(f"it cannot be loaded: {why}.") from error
    return module


def sources(module: ModuleType) -> list[pathlib.Path]:
    """Returns a file's module and those of its folder that it imports, in turn."""
    found = [pathlib.Path(str(module.__file__))]
    for file in found if module.__name__.startswith(MODULE) else ():
        nodes = [*ast.walk(ast.parse(file.read_bytes()))]
        imports = [
            n for node in nodes if isinstance(node, ast.Import) for n in node.names
        ]
        names = {each.name for each in imports}
        names |= {n.module for n in nodes if isinstance(n, ast.ImportFrom) and n.module}
        for first in sorted({name.partition(".")[0] for name in names}):
            beside = found[0].parent / first
            found += [
                path
                for path in (beside.with_suffix(".py"), *sorted(beside.rglob("*.py")))
                if path.is_file() and path not in found
            ]
    return found


def module_of(value: Any) -> ModuleType:
    """Returns the module that defines a class or function, or the module itself."""
    return sys.modules[getattr(value, "__module__", None) or value.__name__]


def members(module: ModuleType, is_wanted: Callable[[Any], bool]) -> Iterable[Any]:
    """Returns the wanted values that a module defines itself, in their order."""
    return [
        value
        for value in vars(module).values()
        if getattr(value, "__module__", None) == module.__name__ and is_wanted(value)
    ]
