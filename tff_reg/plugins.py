"""Third-party methods, tasks and models: entry points, and files named by a flag.

An installed package offers them by entry points in the groups `tff_reg.methods`,
`tff_reg.tasks` and `tff_reg.models`. A package is imported when one of its names is
first used.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import pathlib
import re
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping
from importlib import metadata
from types import ModuleType
from typing import Any, Optional

NAME = re.compile("[a-z][a-z0-9_]*")
# The beginning of the names of modules that are made of single files.
MODULE = "tff_reg_plugin_"


class PluginError(ValueError):
    """Raised when third-party code cannot be used; the message says which, and why."""


class Registry:
    """Things by name: our own, those of installed packages, those of files.

    Each is imported when it is first asked for.

    Attributes:
      own: Our names, in their order.
    """

    def __init__(
        self,
        group: str,
        own: Iterable[str],
        load: Callable[[str], Any],
        must: Callable[[str, Any], str],
    ):
        """Makes a registry.

        Args:
          group: The group of the packages' entry points.
          own: Our names.
          load: Imports one of ours.
          must: Says what a package's value of this name must be; empty if it is.
        """
        self.own = tuple(own)
        self._group, self._load, self._must = group, load, must
        self._found: dict[str, Any] = {}
        self._points: Optional[Mapping[str, metadata.EntryPoint]] = None

    def _packages(self) -> Mapping[str, metadata.EntryPoint]:
        """Returns the entry points by name, sorted, less forbidden or taken names."""
        if self._points is None:
            self._points = self._look()
        return self._points

    def _look(self) -> Mapping[str, metadata.EntryPoint]:
        # A package that is found in two folders is listed twice.
        points = metadata.entry_points(group=self._group)
        found: dict[str, metadata.EntryPoint] = {}
        for _, point in sorted({(p.name, p.value): p for p in points}.items()):
            is_free = point.name not in (*self.own, *found)
            if is_free and NAME.fullmatch(point.name):
                found[point.name] = point
            else:
                warnings.warn(
                    f"{self._where(point)} is left out: its name is taken already, or"
                    " is not of small letters, digits and underscores alone.",
                    stacklevel=2,
                )
        return found

    def others(self) -> tuple[str, ...]:
        """Returns the names of packages and files, sorted, without loading any."""
        return tuple(sorted({*self._packages(), *self._found} - {*self.own}))

    def loaded(self) -> tuple[str, ...]:
        """Returns the names of packages and files that have been loaded."""
        return tuple(name for name in self._found if name not in self.own)

    def names(self) -> tuple[str, ...]:
        """Returns all names; those of packages and files come last, sorted."""
        return (*self.own, *self.others())

    def add(self, name: str, value: Any) -> None:
        """Adds what a file defines."""
        self._found[name] = value

    def find(self, name: str) -> Any:
        """Imports and returns what has a name; None if nothing has it.

        Raises:
          PluginError: If a package's cannot be loaded, or is not what it must be.
        """
        if name not in self._found:
            if name in self.own:
                self._found[name] = self._load(name)
            elif point := self._packages().get(name):
                self._found[name] = self._load_point(point)
        return self._found.get(name)

    def _load_point(self, point: metadata.EntryPoint) -> Any:
        where = self._where(point)
        try:
            value = point.load()
        except (Exception, SystemExit) as error:  # Others' code may raise anything.
            raise PluginError(f"{where} cannot be loaded: {_why(error)}.") from error
        if must := self._must(point.name, value):
            raise PluginError(f"{where} must be {must}, but is {value!r}.")
        return value

    def _where(self, point: metadata.EntryPoint) -> str:
        return f"The entry point {point.name!r} of {self._group} ({point.value})"


def _why(error: BaseException) -> str:
    text = " ".join(str(error).split()).rstrip(".")
    return f"{type(error).__name__}: {text}"


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
