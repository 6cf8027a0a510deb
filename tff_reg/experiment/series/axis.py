"""An axis of settings: methods compared under several settings of one protocol.

    concentration=0.1,0.3; partition=shards,classes_per_client=2

Semicolons separate groups. The columns of a group are all combinations of the values of
its settings.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Container, Mapping, Sequence
from typing import Any, Optional, Union

from tff_reg.experiment.config.run_config import RunConfig
from tff_reg.experiment.series import plan as series
from tff_reg.methods import catalogue
from tff_reg.settings import COMMON, Setting, SettingError, as_text, tagged

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
_FIXED = tagged(RunConfig, COMMON)


def parse(
    given: Union[str, series.Values, Sequence[series.Values]],
    others: Container[str] = (),
) -> dict[str, dict[str, Any]]:
    """Reads the settings of each column, by the column's heading.

    `given` is as in `plan.read_values`; `others` are the settings that all columns
    have.
    """
    methods = {each.flag: each.method for each in catalogue.strengths()}

    def why_not(name: str) -> Optional[str]:
        if name in methods:
            return f"{name} is of the method {methods[name]}; give its flag, or grid"
        if name in others:
            return f"{name} is given for all columns as well; leave that out"
        return None

    columns: dict[str, dict[str, Any]] = {}
    for group in series.read_values(SETTINGS.name, given, _FIXED, why_not):
        for values in itertools.product(*group.values()):
            column = dict(zip(group, values))
            heading = ", ".join(f"{n}={as_text(v)}" for n, v in column.items())
            if heading in columns:
                why = f"{heading} is there twice."
                raise SettingError(SETTINGS.name, None, why)
            columns[heading] = column
    return columns


def folder(column: Mapping[str, Any]) -> str:
    """Returns the name of the directory of a column's runs and tables."""
    words = (f"{name}{as_text(value)}" for name, value in column.items())
    return "-".join(words).replace(os.sep, "_")
