"""The strengths of methods among the settings of a run: lists and checks."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Optional

from tff_reg import plugins
from tff_reg.methods import catalogue
from tff_reg.settings import Setting, SettingError

GROUP = "Hyperparameters of the methods"


def listed(process: Optional[str] = None) -> tuple[Setting, ...]:
    """Returns the strengths of a process's methods; of all methods, if None."""
    return tuple(
        dataclasses.replace(each.setting, name=each.flag, group=GROUP)
        for each in catalogue.strengths(process)
    )


def checked(strengths: Mapping[str, Any]) -> dict[str, Any]:
    """Checks strengths, of any method.

    Args:
      strengths: Values by name; None for strengths that are not given.

    Returns:
      The given strengths, converted to their types.

    Raises:
      SettingError: If there is no such strength, or its value is not allowed.
    """
    if not isinstance(strengths, Mapping):
        why = "it must be a dictionary such as {'fedprox_strength': 0.1}."
        raise SettingError("strengths", strengths, why)
    catalogue.load_named(strengths)
    methods, known = _methods(), {each.name: each for each in listed()}
    found = {}
    for name, value in strengths.items():
        if name not in known:
            raise SettingError(name, None, "there is no such setting.")
        if value is None:
            continue
        found[name] = known[name].adopt(value)
        known[name].check(found[name])
        try:
            catalogue.build(methods[name], {name: found[name]})
        except SettingError as error:
            raise SettingError(name, value, error.reason) from error
        except ValueError as error:
            raise SettingError(name, value, str(error)) from error
    return found


def _methods() -> dict[str, str]:
    """Returns the name of the method of each strength, by the strength's name."""
    return {each.flag: each.method for each in catalogue.strengths()}


def owned(strengths: Mapping[str, Any], process: str) -> dict[str, Any]:
    """Returns the strengths that belong to methods of the process."""
    own = {each.name for each in listed(process)}
    return {name: value for name, value in strengths.items() if name in own}


def check_owned(strengths: Mapping[str, Any], processes: Sequence[str]) -> None:
    """Checks that each strength belongs to a method of one of the processes.

    Raises:
      SettingError: If one does not.
    """
    for name, value in strengths.items():
        if not any(owned({name: value}, process) for process in processes):
            whole = f"process={processes[0]}"
            which = whole if len(processes) == 1 else ", ".join(processes)
            reason = f"{_methods()[name]} is not part of {which}."
            raise SettingError(name, value, reason)


def add_files(files: Optional[Sequence[str]]) -> None:
    """Adds the methods of plugin files to the known methods.

    Raises:
      SettingError: If a file cannot be loaded.
    """
    for file in [files] if isinstance(files, str) else files or ():
        try:
            catalogue.add_file(file)
        except plugins.PluginError as error:
            raise SettingError("plugin", file, str(error)) from error


def process_name(text: str) -> str:
    """Returns a process's canonical name: without `fedavg`, which adds nothing.

    Raises:
      SettingError: If it is no process.
    """
    try:
        catalogue.parse(text)
    except ValueError as error:
        raise SettingError("process", text, str(error)) from error
    parts = catalogue.parts_of(text)
    return "+".join(part for part in parts if part != "fedavg") or "fedavg"
