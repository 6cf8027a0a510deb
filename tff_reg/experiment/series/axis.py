"""An axis of settings: methods compared under several settings of one protocol.

    concentration=0.1,0.3; partition=shards,classes_per_client=2

Semicolons separate groups. The columns of a group are all combinations of the values of
its settings; in a group a part without `=` is a further value of the setting before it.
"""

from __future__ import annotations

import dataclasses
import itertools
import os
from collections.abc import Mapping, Sequence
from typing import Any, Union

from tff_reg.experiment.config import run_config as config_lib
from tff_reg.experiment.series import plan as series
from tff_reg.methods import catalogue
from tff_reg.settings import Setting, SettingError, as_text, near_names
from tff_reg.training import process_settings

SETTINGS = Setting(
    "settings",
    str,
    None,
    "settings to compare the methods under, one column of the table each, such as"
    " 'concentration=0.1,0.3; partition=shards,classes_per_client=2', which are three;"
    " all else is one protocol",
    placeholder="NAME=X,...;NAME=X,NAME=Y",
    is_optional=True,
)
# Settings that a comparison has in common.
_FIXED = ("process", "recipe", "settings_of", "seed", "partition_seed")
_FIXED += ("validation_share",)
Group = Mapping[str, Any]


def parse(
    given: Union[str, Group, Sequence[Group]], others: Mapping[str, Any] = {}
) -> dict[str, dict[str, Any]]:
    """Reads the settings of each column, by the column's heading.

    `given` may also be a group, or a list of groups, as dicts of the values by name;
    `others` are the settings that all columns have.
    """
    text = given if isinstance(given, str) else _as_text(given)
    columns: dict[str, dict[str, Any]] = {}
    for part in filter(None, map(str.strip, text.split(";"))):
        group = _read(part, text, others)
        for values in itertools.product(*group.values()):
            column = dict(zip(group, values))
            heading = ", ".join(f"{n}={as_text(v)}" for n, v in column.items())
            if heading in columns:
                raise SettingError(SETTINGS.name, text, f"{heading} is there twice.")
            columns[heading] = column
    if not columns:
        raise SettingError(SETTINGS.name, text, "it has no settings in it.")
    return columns


def _as_text(given: Union[Group, Sequence[Group]]) -> str:
    groups = [given] if isinstance(given, Mapping) else given
    if not all(isinstance(group, Mapping) for group in groups):
        reason = "give a text, or a list of dicts of values by name."
        raise SettingError(SETTINGS.name, str(given), reason)
    return ";".join(
        ",".join(f"{name}={as_text(values)}" for name, values in group.items())
        for group in groups
    )


def _read(part: str, text: str, others: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Reads the values of a group's settings."""
    known = {each.name: each for each in config_lib.listed()}
    methods = {each.flag: each.method for each in catalogue.strengths()}
    group: dict[str, list[Any]] = {}
    name = ""
    for word in part.split(","):
        *before, value = (each.strip() for each in word.split("=", 1))
        if before:
            (name,) = before
            why = None
            if name in methods:
                why = f"{name} is of the method {methods[name]}; give its flag, or grid"
            elif name not in known or name in _FIXED or known[name].is_tuple:
                near = near_names(name, [*known]) if name not in known else ""
                why = f"{name} is not a setting that columns can differ in{near}"
            elif process_settings.NO_EFFECT_ON_RESULTS in known[name].tags:
                why = f"results do not depend on {name}"
            elif name in others:
                why = f"{name} is given for all columns as well; leave that out"
            elif name in group:
                why = f"{name} is twice in {part}; join its values by commas"
            if why:
                raise SettingError(SETTINGS.name, text, f"{why}.")
            group[name] = []
        if not (name and value):
            reason = f"{part} is no NAME=VALUE,...; semicolons separate groups."
            raise SettingError(SETTINGS.name, text, reason)
        read = known[name].read(value)
        known[name].check(read)
        group[name].append(read)
    return group


def folder(column: Mapping[str, Any]) -> str:
    """Returns the name of the directory of a column's runs and tables."""
    words = (f"{name}{as_text(value)}" for name, value in column.items())
    return "-".join(words).replace(os.sep, "_")


def plan(
    common: config_lib.RunConfig, column: Mapping[str, Any], heading: str, **asked: Any
) -> list[series.PlannedRun]:
    """Plans the runs of a column; more arguments as for `plan.plan`."""
    where = os.path.join(common.output_dir, folder(column))
    own = dataclasses.replace(common, **column, output_dir=where)
    return series.plan(own, **asked, heading=heading)
