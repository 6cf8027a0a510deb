"""The methods by name; any sum of them is a process.

This module needs no TensorFlow: flags are made and checked from it.

A process name is a sum of methods, such as `fedprox` or `fedalign+man`. `fedavg`
stands for no addition at all, so `fedavg+man` is `man`. Installed packages add methods
by entry points: a name in the group `tff_reg.methods` that stands for a sub-class of
`method.Method`; `add_file` adds those of a file.

Functions of a process name raise an `UnknownProcessError` if it is none, as `parse`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import importlib
import warnings
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, Optional

from tff_reg import plugins, settings as settings_lib
from tff_reg.methods import method as method_lib

ENTRY_POINTS = "tff_reg.methods"
# A new method of ours is one word here: the module that its class is in. They are
# added up in this order.
OURS = (
    "fedavg",
    "fedprox",
    "fedalign",
    "moon",
    "mixup",
    "stochdepth",
    "gradaug",
    "man",
    "fedmlb",
    "kd",
    "fitnet",
    "fedntd",
    "fedgkd",
    "univarfl",
    "feduv",
    "feddecorr",
    "fedlc",
    "fedrs",
    "freeze",
    "fedetf",
    "fedsam",
    "fedasam",
    "fedlesam",
    "fedsol",
    "scaffold",
    "feddyn",
    "feddc",
    "fedspeed",
    "fedcm",
    "mofedsam",
    "fedgamma",
    "fednova",
    "fedacg",
    "fedavgm",
    "fedadam",
    "fedyogi",
    "fedadagrad",
)


class UnknownProcessError(ValueError):
    """A process name holds a method that does not exist, or makes no sense."""


class Strength(NamedTuple):
    """A strength of a method, which is the flag `--<method>_<field>`.

    Attributes:
      method: The method's name.
      setting: The field of the method's dataclass.
    """

    method: str
    setting: settings_lib.Setting

    @property
    def flag(self) -> str:
        """Its name among the settings of a run."""
        return f"{self.method}_{self.setting.name}"


# Methods of files and packages that were asked for so far, by name.
_loaded: dict[str, type[method_lib.Method]] = {}


def methods() -> Mapping[str, type[method_lib.Method]]:
    """The classes of all methods by name: ours, then those of packages and files.

    What a package offers that cannot be loaded or is no method is left out with a
    warning; `find` says why.
    """
    found: dict[str, type[method_lib.Method]] = {}
    for name in names():
        try:
            found[name] = find(name)
        except plugins.PluginError as error:
            warnings.warn(f"{error} It is left out.", stacklevel=2)
    return found


def find(name: str) -> type[method_lib.Method]:
    """The class of a method, whose module is imported now.

    Args:
      name: One of `names`.

    Returns:
      The class.

    Raises:
      PluginError: If it is of a package that cannot be loaded, or is no method.
    """
    if name in OURS:
        module = importlib.import_module(f"tff_reg.methods.{name}")
        return next(value for value in vars(module).values() if _is_method(value, name))
    if name not in _loaded:
        must = f"a dataclass, a sub-class of tff_reg.methods.Method named {name!r}"
        _loaded[name] = plugins.load(
            plugins.entry_points(ENTRY_POINTS, OURS)[name],
            ENTRY_POINTS,
            lambda value: "" if _is_method(value, name) else must,
        )
    return _loaded[name]


def load_named(words: Iterable[str]) -> None:
    """Loads the methods of packages whose name is in one of some words.

    Args:
      words: Arguments of a command, or names of settings.
    """
    text = " ".join(words)
    for name in plugins.entry_points(ENTRY_POINTS, OURS):
        if name in text:
            # `parse` says why a method cannot be had, where it is one of a process.
            with contextlib.suppress(plugins.PluginError):
                find(name)


def add_file(path: str) -> list[str]:
    """Adds the methods of a Python file to all.

    Args:
      path: The file's path.

    Returns:
      Their names.

    Raises:
      PluginError: If the file cannot be loaded, has no method, or one with the name of
        another.
    """
    module = plugins.load_file(path)
    classes = plugins.members(
        module,
        lambda value: _is_method(value, getattr(value, "name", "")),
    )
    if not classes:
        raise plugins.PluginError(
            "it has no method, a frozen dataclass that is a sub-class of"
            " tff_reg.methods.Method and has a name."
        )
    for cls in classes:
        if not plugins.NAME.fullmatch(cls.name):
            raise plugins.PluginError(
                f"the name {cls.name!r} of {cls.__name__} cannot be: take small letters,"
                " digits, underscores."
            )
        if cls.name in names() and _loaded.get(cls.name) is not cls:
            raise plugins.PluginError(
                f"there is another method {cls.name!r}: rename it."
            )
        taken = {each.flag: each.method for each in strengths()}
        for setting in settings_lib.settings_of(cls):
            flag = Strength(cls.name, setting).flag
            if (other := taken.get(flag, cls.name)) != cls.name:
                raise plugins.PluginError(
                    f"{flag} would be a flag of both {other} and {cls.name}: rename one."
                )
        _loaded[cls.name] = cls
    return [cls.name for cls in classes]


def _is_method(value: Any, name: str) -> bool:
    if not (isinstance(value, type) and issubclass(value, method_lib.Method)):
        return False
    return dataclasses.is_dataclass(value) and getattr(value, "name", None) == name


def names() -> tuple[str, ...]:
    """The names of all methods; a process name is one, or a sum that `parse` takes.

    No package is loaded for it.
    """
    known = (*OURS, *plugins.entry_points(ENTRY_POINTS, OURS), *_loaded)
    return tuple(dict.fromkeys(known))


def parse(process: str) -> tuple[str, ...]:
    """Takes a process name apart.

    Args:
      process: Method names joined by '+'; capitals do not matter.

    Returns:
      The names of its methods without 'fedavg', which adds nothing, in the order of
      `names`; empty for 'fedavg' itself.

    Raises:
      UnknownProcessError: If a method does not exist or is named twice, or the sum
        makes no sense.
    """
    # A list of names is a common mistake.
    if not isinstance(process, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise UnknownProcessError(
            f"A process has a name such as 'fedprox' or 'fedprox+man', not {process!r}."
        )
    known, parts = names(), parts_of(process)
    if "" in parts:
        raise UnknownProcessError(f"A name is missing in the process {process!r}.")
    for part in parts:
        if part not in known:
            near = difflib.get_close_matches(part, known, n=1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise UnknownProcessError(
                f"Unknown process {part!r}.{hint} Choose one or a sum (a+b) of: "
                f"{', '.join(known)}."
            )
        if parts.count(part) > 1:
            raise UnknownProcessError(
                f"The process {process!r} names {part!r} twice: name it once."
            )
    chosen = tuple(name for name in known if name in parts and name != "fedavg")
    try:
        method_lib.check_sum([find(name) for name in chosen])
    except (method_lib.IncompatibleMethodsError, plugins.PluginError) as error:
        raise UnknownProcessError(str(error)) from None
    return chosen


def parts_of(process: str) -> list[str]:
    """The names that a process name holds, known or not, in its order."""
    return [part.strip() for part in process.lower().split("+")]


def settings(process: str) -> dict[str, Any]:
    """The settings that a process has where nobody says otherwise.

    Args:
      process: A process name.

    Returns:
      By name what the sum's first method has, FedAvg for 'fedavg', with what every
      method of the sum brings along; `settings_from` says whose they are.
    """
    return with_brought(process, first(process).paper_settings)


def settings_from(process: str) -> str:
    """Whose the settings of `settings` are, in words."""
    method = first(process)
    return getattr(method.paper_settings, "source", f"the method {method.name}")


def first(process: str) -> type[method_lib.Method]:
    """The method whose settings a process has: its first, FedAvg for 'fedavg'."""
    return _in_order(process)[0]


def with_brought(process: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """Settings, and in their place what a process cannot be without.

    Args:
      process: A process name.
      values: Settings by name. A projector among them serves whatever method.

    Returns:
      All of them.
    """
    brought = brings(process)
    if values.get("projector", "none") != "none":
        brought.pop("projector", None)
    return {**values, **brought}


def brings(process: str) -> dict[str, Any]:
    """What the methods of a process bring along; where two do, the first."""
    brought: dict[str, Any] = {}
    for method in _in_order(process):
        brought = {**method.required_settings, **brought}
    return brought


def without(process: str, other: str) -> str:
    """The process of those methods that another has not."""
    left = [part for part in parts_of(process) if part not in parts_of(other)]
    return "+".join(left) or "fedavg"


def _in_order(process: str) -> list[type[method_lib.Method]]:
    """The methods of a process as its name has them; FedAvg for 'fedavg'."""
    parse(process)
    added = [find(part) for part in parts_of(process) if part != "fedavg"]
    return added or [find("fedavg")]


def strengths(process: Optional[str] = None) -> list[Strength]:
    """The strengths of a process.

    Args:
      process: A process name, or None for our methods and those of files and packages
        that were asked for.

    Returns:
      One entry a field of each method's dataclass.
    """
    chosen = (*OURS, *_loaded) if process is None else parse(process)
    return [
        Strength(name, setting)
        for name in chosen
        for setting in settings_lib.settings_of(find(name))
    ]


def build(process: str, chosen: Mapping[str, Any]) -> tuple[method_lib.Method, ...]:
    """Makes the methods of a sum.

    Args:
      process: A process name.
      chosen: Strengths by flag name; the others have their defaults.

    Returns:
      The methods, in the order in which they are added up.

    Raises:
      ValueError: If a strength belongs to no method of the sum or is out of range.
    """
    known = {strength.flag: strength for strength in strengths(process)}
    for flag in chosen:
        if flag not in known:
            raise ValueError(
                f"{flag} is not a setting of the process {process!r}"
                + (f", which has {', '.join(known)}." if known else ".")
            )
    return tuple(
        find(name)(
            **{
                known[flag].setting.name: value
                for flag, value in chosen.items()
                if known[flag].method == name
            }
        )
        for name in parse(process)
    )
