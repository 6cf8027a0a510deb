"""The methods by name, and their combinations.

This module needs no TensorFlow, so the command line can build and check its flags here.

A process name is a method or a combination, such as `fedprox` or `fedalign+man`.
`fedavg` adds nothing: `fedavg+man` is `man`. Installed packages add methods by entry
points in the group `tff_reg.methods`, each a sub-class of `method.Method`; `add_file`
adds the methods of a file.

Functions that look up the methods of a process raise the errors of `parse`.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import importlib
import inspect
import warnings
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Optional, Union

from tff_reg import plugins, settings as settings_lib
from tff_reg.methods import checks, method as method_lib

# The modules of our methods, in the order in which they act in a combination.
BUILTIN = (
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
    "asd",
    "fedvls",
    "univarfl",
    "feduv",
    "feddecorr",
    "fedrcl",
    "fedproto",
    "fedlc",
    "fedrs",
    "freeze",
    "fedetf",
    "fedsam",
    "fedasam",
    "fedlesam",
    "fedsol",
    "fedinit",
    "fedswa",
    "scaffold",
    "feddyn",
    "feddc",
    "fedspeed",
    "fedcm",
    "mofedsam",
    "fedgamma",
    "fedlesams",
    "fedsmoo",
    "fedgloss",
    "fedmoswa",
    "fedwmsam",
    # After what scales gradients, as its decay is not scaled.
    "fednar",
    "fednova",
    "feddisco",
    "fedexp",
    "fedacg",
    "fedavgm",
    "fedadam",
    "fedyogi",
    "fedadagrad",
    "ditto",
    "pfedme",
    "fedper",
    "fedbn",
    "fedrep",
    # Last, as nothing may move what it holds.
    "fedbabu",
)

# Processes that methods are compared with, which train as FedAvg but average no models:
# each client has its own, or one client has all examples.
WITHOUT_MODEL, POOLED = ("local",), ("central",)
REFERENCES = (*WITHOUT_MODEL, *POOLED)


def shares_model(process: str) -> bool:
    """Returns whether the server's model has all weights of the clients' models."""
    return process not in WITHOUT_MODEL and not _overrides(process, "personal")


def has_own_models(process: str) -> bool:
    """Returns whether a client is evaluated with weights of its own."""
    return not shares_model(process) or _overrides(process, "own_model")


def _overrides(process: str, hook: str) -> bool:
    if process in REFERENCES:
        return False
    return any(method_lib.overrides(find(name), hook) for name in parse(process))


class UnknownProcessError(ValueError):
    """A process name holds an unknown method or methods that conflict."""


class Hyperparameter(NamedTuple):
    """A hyperparameter of a method, set by the flag `--<method>_<field>`.

    Attributes:
      method: The method's name.
      setting: The field of the method's dataclass.
    """

    method: str
    setting: settings_lib.Setting

    @property
    def flag(self) -> str:
        """The hyperparameter's name among the settings of a run."""
        return f"{self.method}_{self.setting.name}"


def _builtin(name: str) -> type[method_lib.Method]:
    module = importlib.import_module(f"tff_reg.methods.{name}")
    return next(value for value in vars(module).values() if _is_method(value, name))


def _must(name: str, value: Any) -> str:
    must = f"a sub-class of tff_reg.methods.Method named {name!r}"
    return "" if _is_method(value, name) else f"{must}, a dataclass if it has settings"


REGISTRY = plugins.Registry("tff_reg.methods", BUILTIN, _builtin, _must)


def methods() -> Mapping[str, type[method_lib.Method]]:
    """Returns the classes of all methods by name: built-in, packages', files'.

    A package's method that cannot be loaded is left out with a warning.
    """
    found: dict[str, type[method_lib.Method]] = {}
    for name in names():
        try:
            found[name] = find(name)
        except plugins.PluginError as error:
            warnings.warn(f"{error} It is left out.", stacklevel=2)
    return found


def find(name: str) -> type[method_lib.Method]:
    """Imports and returns the class of a method, one of `names`."""
    return REGISTRY.find(name)


def load_named(words: Iterable[str]) -> None:
    """Loads the packages' methods whose names occur in the given words."""
    text = " ".join(words)
    for name in REGISTRY.others():
        if name in text:
            # `parse` reports the error if a process uses the method.
            with contextlib.suppress(plugins.PluginError):
                find(name)


def add_files(
    files: Union[str, Iterable[str]], settings: Iterable[settings_lib.Setting]
) -> None:
    """Adds the methods of Python files, the values of the setting `plugin`.

    `settings` are those of every run, whose names a method's must not have.
    """
    taken = [each.name for each in settings]
    for file in [files] if isinstance(files, str) else files:
        try:
            add_file(file, taken)
        except plugins.PluginError as error:
            raise settings_lib.SettingError("plugin", file, str(error)) from error


def add_file(path: str, taken_by_runs: Iterable[str] = ()) -> list[str]:
    """Adds the methods of a Python file."""
    module = plugins.load_file(path)
    classes = plugins.members(
        module,
        lambda value: _is_method(value, getattr(value, "name", "")),
    )
    if not classes:
        raise plugins.PluginError(
            "it has no method: give it a sub-class of tff_reg.methods.Method with a"
            " name, and @dataclasses.dataclass(frozen=True) if it has settings."
        )
    seen = collections.Counter(cls.name for cls in classes)
    for cls in classes:
        if seen[cls.name] > 1:
            raise plugins.PluginError(f"two methods are called {cls.name!r}.")
        _add(cls, taken_by_runs)
    return [cls.name for cls in classes]


def _add(cls: type[method_lib.Method], taken_by_runs: Iterable[str]) -> None:
    """Adds a method under its name, unless that is another's."""
    if not plugins.NAME.fullmatch(cls.name):
        raise plugins.PluginError(
            f"the name {cls.name!r} of {cls.__name__} is not allowed: take small"
            " letters, digits, underscores."
        )
    known = cls.name in REGISTRY.loaded() and find(cls.name)
    is_same_file = known and _file_of(known) == _file_of(cls)
    if cls.name in (*names(), *REFERENCES) and not is_same_file:
        raise plugins.PluginError(f"there is another method {cls.name!r}: rename it.")
    taken = dict.fromkeys(taken_by_runs, "every run")
    taken |= {each.flag: each.method for each in hyperparameters()}
    for setting in settings_lib.settings_of(cls):
        flag = Hyperparameter(cls.name, setting).flag
        if (other := taken.get(flag, cls.name)) != cls.name:
            raise plugins.PluginError(
                f"{flag} would be a flag of both {other} and {cls.name}: rename one."
            )
    REGISTRY.add(cls.name, cls)


def of_objects(
    given: Any, taken_by_runs: Iterable[str] = ()
) -> tuple[str, dict[str, Any]]:
    """Returns the name of a process that is given as methods, and what they hold.

    Args:
      given: A method, its class or its name, or a list of them: their combination.
      taken_by_runs: The names of the settings of every run.

    Returns:
      The name, and the hyperparameters of the objects by flag.

    Raises:
      TypeError: If it is nothing of these, or has fields that are no settings.
      PluginError: If a class has no name of its own, or another method's.
    """
    parts: list[str] = []
    values: dict[str, Any] = {}
    is_list = issubclass(type(given), (list, tuple))
    objects: Sequence[Any] = given if is_list else [given]
    for each in objects:
        if isinstance(each, str):
            parts.append(each)
            continue
        cls = each if isinstance(each, type) else type(each)
        if not _is_method(cls, name := getattr(cls, "name", "")):
            raise TypeError(
                f"{each!r} is no method: give a name, an object such as FedProx(0.01),"
                " its class (a dataclass if it has settings), or a list of them."
            )
        if not (name in names() and find(name) is cls):
            _add(cls, taken_by_runs)
        parts.append(name)
        of_class = settings_lib.settings_of(cls)
        if each is cls:
            has = [s for s in of_class if s.default is not dataclasses.MISSING]
            values |= {f"{name}_{s.name}": s.default for s in has}
        else:
            own = {s.name: getattr(each, s.name) for s in of_class}
            if vars(each) != vars(cls(**own)):
                raise TypeError(
                    f"{each!r} has values that no run would record: make its fields"
                    " settings (strength: float = settings.setting(0.1, ...))."
                )
            values |= {f"{name}_{field}": value for field, value in own.items()}
    return "+".join(parts), values


def classes_of(given: Any) -> list[type[method_lib.Method]]:
    """Returns the classes of what `of_objects` takes, without names."""
    is_list = issubclass(type(given), (list, tuple))
    objects: Sequence[Any] = given if is_list else [given]
    found = (each if isinstance(each, type) else type(each) for each in objects)
    return [cls for cls in found if issubclass(cls, method_lib.Method)]


def _file_of(cls: type) -> Optional[str]:
    return getattr(plugins.module_of(cls), "__file__", None)  # A notebook has none.


def _is_method(value: Any, name: str) -> bool:
    if not (isinstance(value, type) and issubclass(value, method_lib.Method)):
        return False
    # The decorator is needed only by a class that declares settings.
    is_complete = "__dataclass_fields__" in vars(value)
    is_complete = is_complete or not inspect.get_annotations(value)
    return is_complete and getattr(value, "name", None) == name


def names() -> tuple[str, ...]:
    """Returns the names of all methods without loading any package.

    They act in this order. Methods of other packages come before FedRep and FedBABU,
    which hold what no other may move, sorted by name.
    """
    return (*BUILTIN[:-2], *REGISTRY.others(), *BUILTIN[-2:])


def parse(process: str) -> tuple[str, ...]:
    """Returns the methods of a process name.

    Args:
      process: Method names joined by '+'; capitals do not matter.

    Returns:
      The names of its methods without 'fedavg', which adds nothing, in the order of
      `names`; empty for 'fedavg' itself.

    Raises:
      UnknownProcessError: If a method does not exist or is named twice, or methods
        conflict.
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
        if part in REFERENCES:
            raise UnknownProcessError(
                f"{part} does not combine with methods: give {part} alone."
            )
        if part not in known:
            raise UnknownProcessError(
                f"Unknown process {part!r}{settings_lib.near_names(part, known)}."
                " Choose one method, or a combination (a+b), of:"
                f" {', '.join(known)}. A method of your own needs its file as well"
                " (plugin)."
            )
        if parts.count(part) > 1:
            raise UnknownProcessError(
                f"The process {process!r} names {part!r} twice: name it once."
            )
    chosen = tuple(name for name in known if name in parts and name != "fedavg")
    try:
        checks.check_combination([find(name) for name in chosen])
    except (checks.IncompatibleMethodsError, plugins.PluginError) as error:
        raise UnknownProcessError(str(error)) from None
    return chosen


def parts_of(process: str) -> list[str]:
    """Splits a process name into method names, in order and unchecked."""
    if process.strip().lower() in REFERENCES:
        return ["fedavg"]
    return [part.strip() for part in process.lower().split("+")]


def settings(process: str, given: Collection[str] = ()) -> dict[str, Any]:
    """Returns the default settings of a process.

    Args:
      process: A process name.
      given: As for `required_settings`.

    Returns:
      Settings by name: those of the first method's paper (for 'fedavg' FedAvg's),
      overridden by the settings that the process's methods require.

    Raises:
      SettingError: As in `required_settings`.
    """
    return with_required(process, first(process).paper_settings, given)


def settings_from(process: str) -> str:
    """Returns the source of the settings that `settings` returns, in words."""
    method = first(process)
    return getattr(method.paper_settings, "source", f"the method {method.name}")


def first(process: str) -> type[method_lib.Method]:
    """Returns the method whose settings a process uses: its first method, or FedAvg."""
    return _in_order(process)[0]


def with_required(
    process: str, values: Mapping[str, Any], given: Collection[str] = ()
) -> dict[str, Any]:
    """Adds the settings that a process requires to given settings."""
    required = required_settings(process, given)
    if values.get("projector", "none") != "none":
        required.pop("projector", None)
    return {**values, **required}


def required_settings(process: str, given: Collection[str] = ()) -> dict[str, Any]:
    """Returns the settings that the methods of a process require, by name."""
    required: dict[str, Any] = {}
    whose: dict[str, str] = {}
    for method in _in_order(process):
        for name, value in method.required_settings.items():
            first_value = required.setdefault(name, value)
            if first_value != value and name not in given:
                raise settings_lib.SettingError(
                    name,
                    None,
                    f"{whose[name]} requires {first_value!r}, and {method.name}"
                    f" requires {value!r}: give the value that counts.",
                )
            whose.setdefault(name, method.name)
    return required


def published_name(process: str) -> str:
    """Returns a process as papers write it, `FedProx+MAN`; others as they are."""
    return "+".join(
        find(part).__name__ if part in BUILTIN else part for part in process.split("+")
    )


def without(process: str, other: str) -> str:
    """Removes the methods of `other` from `process`; 'fedavg' if none is left."""
    left = [part for part in parts_of(process) if part not in parts_of(other)]
    return "+".join(left) or "fedavg"


def _in_order(process: str) -> list[type[method_lib.Method]]:
    """Returns the methods in the order of the process name; FedAvg for 'fedavg'."""
    parse(process)
    added = [find(part) for part in parts_of(process) if part != "fedavg"]
    return added or [find("fedavg")]


def hyperparameters(process: Optional[str] = None) -> list[Hyperparameter]:
    """Returns the hyperparameters of a process.

    Args:
      process: A process name, or None for the built-in methods and the methods that
        have been loaded from files and packages.

    Returns:
      One entry per field of each method's dataclass.
    """
    chosen = (*BUILTIN, *REGISTRY.loaded()) if process is None else parse(process)
    return [
        Hyperparameter(name, setting)
        for name in chosen
        for setting in settings_lib.settings_of(find(name))
    ]


def named(words: Iterable[str]) -> dict[str, Hyperparameter]:
    """Returns the hyperparameters of methods whose names begin words, by flag.

    The other methods are not loaded. Words may be command-line arguments.
    """
    plain = [word.lstrip("-") for word in words]
    plain += [word.removeprefix("no") for word in plain]
    found: dict[str, Hyperparameter] = {}
    for name in names():
        if any(word.startswith(f"{name}_") for word in plain):
            with contextlib.suppress(plugins.PluginError):
                found |= {each.flag: each for each in hyperparameters(name)}
    return found


def build(process: str, chosen: Mapping[str, Any]) -> tuple[method_lib.Method, ...]:
    """Makes the methods of a process.

    Args:
      process: A process name.
      chosen: Hyperparameters by flag name; the others have their defaults.

    Returns:
      The methods, in the order in which they act.

    Raises:
      ValueError: If a hyperparameter belongs to none of the methods or is out of range.
    """
    known = {strength.flag: strength for strength in hyperparameters(process)}
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
