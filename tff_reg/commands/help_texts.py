"""The help texts of the commands, made from the settings with the standard library."""

from __future__ import annotations

import dataclasses
import re
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Optional

from tff_reg.commands.command_line import (
    ALL_FLAGS,
    VERBOSITY,
    fail,
    own_name,
    written_out,
)
from tff_reg.experiment.config import (
    run_config as config_lib,
    strengths as strengths_lib,
)
from tff_reg.lazy import tasks
from tff_reg.methods import catalogue
from tff_reg.settings import Setting, as_text

_WIDTH = 88
_NAME_WIDTH = 34
# The settings that a short help lists first, in this order.
_FIRST = (
    "process",
    "task",
    "data_dir",
    "model",
    "num_clients",
    "partition",
    "concentration",
    "clients_per_round",
    "total_rounds",
    "local_epochs",
    "batch_size",
    "client_learning_rate",
    "seed",
    "scale",
    "output_dir",
    "overwrite",
)


def help_of_run(argv: Sequence[str]) -> str:
    """Returns the text that `bin/run ... --help` prints.

    Raises:
      Ended: If a value among the arguments is not allowed (exit code 2).
    """
    try:
        return help_text(_settings_in(argv), _asks_for_all(argv))
    except (ValueError, OSError) as error:
        fail(error)


def _asks_for_all(argv: Sequence[str]) -> bool:
    return any(argument in ALL_FLAGS for argument in argv)


def _settings_in(argv: Sequence[str]) -> dict[str, Any]:
    """Reads the settings among the arguments without absl, for the help."""
    settings, given = {each.name: each for each in config_lib.listed()}, {}
    truths = {name for name, each in settings.items() if each.type is bool}
    words = iter([own_name(word, settings) for word in written_out(argv)])
    for word in words:
        if not word.startswith("-"):
            continue
        name, is_whole, text = word.lstrip("-").partition("=")
        negated = name.removeprefix("no")
        if not is_whole and name in truths:
            given[name] = True
        elif not is_whole and negated in truths:
            given[negated] = False
        elif name in settings:
            given[name] = settings[name].read(text if is_whole else next(words, ""))
    return given


def help_text(given: Mapping[str, Any], is_all: bool = False) -> str:
    """Returns the help of `bin/run`.

    Args:
      given: The given settings; if `process` or `recipe` is among them, the help shows
        the effective values of that run.
      is_all: Whether to list all settings instead of the most important ones.

    Raises:
      SettingError: If a value is not allowed.
    """
    values, process = _defaults(), None
    lines = ["bin/run --process=NAME[+NAME...] [flags]", ""]
    what = (
        "Trains a model by federated learning and writes metrics, plot, weights and"
        " checkpoints to a directory. The same command again resumes."
    )
    if "process" in given or "recipe" in given:
        resolved = config_lib.RunConfig.of(given).resolved().dump()
        values.update((n, v) for n, v in resolved.items() if v is not None)
        process = values["process"]
        whose = (
            f"Values are those of --process={process} on --task={values['task']};"
            f" what is not given comes from {values['settings_from']}."
        )
    else:
        whose = (
            "Settings that are not given come from the method's paper or code: bin/run"
            " --process=fedalign --help shows their values."
        )
    lines += textwrap.wrap(f"{what} {whose}", _WIDTH)
    if is_all:
        return "\n".join([*lines, *_all_flags(process, values)])
    known = {each.name: each for each in config_lib.listed(process or "fedavg")}
    lines.append("")
    for name in _FIRST:
        lines += _entry(known[name], values.get(name), is_short=True)
    for name, each in known.items():
        if each.group == strengths_lib.GROUP:
            lines += _entry(each, values.get(name))
    lines += ["", *textwrap.wrap(f"Methods: {', '.join(catalogue.names())}.", _WIDTH)]
    lines.append(f"--help=all lists all {len(config_lib.listed())} flags.")
    return "\n".join(lines)


def with_settings(help_: str, settings: Iterable[Setting]) -> str:
    """Replaces `{own}` in a help by the entries of settings."""
    own = [line for each in settings for line in _entry(each, each.default or None)]
    return help_.replace("{own}", "\n".join(own))


def with_flags_of_runs(
    help_: str, settings: Iterable[Setting]
) -> Callable[[Sequence[str]], str]:
    """Makes the help of a command that takes the flags of `bin/run`, too.

    Returns:
      A `help_` for `command`; with `--help=all` it also lists the flags of `bin/run`.
    """

    def made(argv: Sequence[str]) -> str:
        own = with_settings(help_, settings)
        if not _asks_for_all(argv):
            return own
        return "\n".join([own, *_all_flags(None, _defaults())])

    return made


def _defaults() -> dict[str, Any]:
    """Returns the default values that do not depend on the process."""
    papers = {name for each in catalogue.OURS for name in catalogue.settings(each)}
    return {
        each.name: each.default
        for each in config_lib.listed()
        if each.name not in papers
        and each.default is not False
        and each.default not in (dataclasses.MISSING, ())
    }


def _all_flags(process: Optional[str], values: Mapping[str, Any]) -> list[str]:
    """Returns the help lines of all flags of `bin/run`, grouped by heading."""
    lines, group = [], None
    for each in config_lib.listed(process):
        if each.group != group:
            group = each.group
            lines += ["", f"{group}:"]
        lines += _entry(each, values.get(each.name))
    return [
        *lines,
        "",
        "Others:",
        *_entry(Setting("flagfile", str, None, "reads flags from a file, one a line")),
        *_entry(VERBOSITY),
    ]


def _entry(setting: Setting, value: Any = None, is_short: bool = False) -> list[str]:
    """Returns a setting's lines in the help, with its value if it has one.

    With `is_short`, the lines have no choices and only the first clause of the help.
    """
    is_truth = setting.type is bool
    place = setting.placeholder or {int: "N", float: "X", str: "NAME"}.get(
        setting.type, ""
    )
    if setting.is_tuple:
        place += ",..."
    head = f"  --{'[no]' if is_truth else ''}{setting.name}"
    if not is_truth:
        head += f"={place}"
    text = re.split("[;:]", setting.help)[0] if is_short else setting.help
    choices = {"process": catalogue.names, "task": tasks.names}.get(setting.name)
    listed = choices() if choices else setting.choices
    if listed and not is_short:
        text = f"{text.removesuffix('.')}: {', '.join(map(str, listed))}"
    if value not in (None, []):
        text += f" [{as_text(value)}]"
    wrapped = textwrap.wrap(text, _WIDTH - _NAME_WIDTH, break_on_hyphens=False)
    if len(head) < _NAME_WIDTH - 1:
        first = head.ljust(_NAME_WIDTH) + wrapped.pop(0)
    else:
        first = head
    return [first, *(" " * _NAME_WIDTH + line for line in wrapped)]
