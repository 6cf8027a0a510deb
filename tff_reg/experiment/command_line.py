"""Flags of `bin/run`: their definition, their errors in one line, their help.

Everything here is done before TensorFlow is loaded.
"""

from __future__ import annotations

import sys
import textwrap
from typing import Any, Callable, Mapping, NoReturn, Optional, Sequence

from absl import flags

from tff_reg.data import partitions
from tff_reg.experiment import settings
from tff_reg.processes import catalog

_WIDTH = 88
_NAME_WIDTH = 34
_STRENGTHS = "Strengths of the methods"
DEFINERS = {
    bool: flags.DEFINE_boolean,
    int: flags.DEFINE_integer,
    float: flags.DEFINE_float,
    str: flags.DEFINE_string,
}
_HELP_FLAGS = ("--help", "-help", "-h", "--h", "-?", "--helpshort", "-helpshort")


def define_flags(flag_values: flags.FlagValues = flags.FLAGS) -> None:
    """Defines a flag for every option and for every strength of every method.

    All of them are None unless given, so that it is known what was.
    """
    entries = [(each.name, each.type, each.help) for each in settings.OPTIONS]
    entries += [(f.flag, f.type, f.help) for f in catalog.strength_fields()]
    for name, type_, text in entries:
        DEFINERS[type_](name, None, text, flag_values=flag_values)


def names() -> list[str]:
    """The names of the flags that `define_flags` defines."""
    return [option.name for option in settings.OPTIONS] + [
        field.flag for field in catalog.strength_fields()
    ]


def requested(flag_values: flags.FlagValues = flags.FLAGS) -> dict[str, Any]:
    """The flags that were given, by name."""
    return {
        name: flag_values[name].value
        for name in names()
        if flag_values[name].value is not None
    }


def fail(message: Any, *, exit_code: int = 2, command: str = "bin/run") -> NoReturn:
    """Ends the command with one line on stderr; 2 says that the flags are wrong.

    Raises:
      SystemExit: Always.
    """
    print(f"{command}: " + " ".join(str(message).split()), file=sys.stderr)
    raise SystemExit(exit_code)


def parse(
    arguments: Sequence[str],
    *,
    tasks: Any,
    command: str = "bin/run",
    own_names: Sequence[str] = (),
    help_fn: Optional[Callable[..., str]] = None,
) -> list[str]:
    """Parses the command line; for `app.run`'s `flags_parser`.

    Args:
      arguments: The command line, the program's name first.
      tasks: The module `tasks`, or what has its `names` and `defaults`.
      command: Who says that something is wrong.
      own_names: The flags that the command has beside those of `define_flags`.
      help_fn: Makes what `--help` prints, like `help_text`, which None stands for.

    Returns:
      What is not a flag: the program's name alone.

    Raises:
      SystemExit: If the flags are wrong (2), or `--help` is among them (0).
    """
    wants_help = any(argument in _HELP_FLAGS for argument in arguments[1:])
    try:
        rest = flags.FLAGS([a for a in arguments if a not in _HELP_FLAGS])
    except flags.Error as error:
        fail(_flag_error(error, own_names), command=command)
    if wants_help:
        print((help_fn or help_text)(requested(), tasks=tasks))
        raise SystemExit(0)
    if len(rest) > 1:
        fail(
            f"{rest[1]} is not a flag; flags look like --process=fedalign.",
            command=command,
        )
    return rest


def parse_own(arguments: Sequence[str], *, help_text: str, command: str) -> list[str]:
    """Parses the command line of a command with few flags, all of them its own.

    Args:
      arguments: The command line, the program's name first.
      help_text: What `--help` prints.
      command: Who says that something is wrong.

    Returns:
      What is not a flag.

    Raises:
      SystemExit: If the flags are wrong (2), or `--help` is among them (0).
    """
    if {"--help", "-h", "--helpshort", "--helpfull"} & set(arguments):
        print(help_text)
        raise SystemExit(0)
    try:
        return flags.FLAGS(arguments)
    except flags.Error as error:
        fail(error, command=command)


def _flag_error(error: flags.Error, own_names: Sequence[str]) -> str:
    if isinstance(error, flags.UnrecognizedFlagError):
        name = error.flagname
        near = settings.near_names(name, [*names(), *own_names], "--")
        return f"--{name}: there is no such flag{near}; --help lists them."
    message = str(error).strip()
    # absl: "flag --batch_size=x: invalid literal for int() with base 10: 'x'"
    if message.startswith("flag --") and ": " in message:
        flag = message.split(": ", 1)[0].removeprefix("flag ")
        name = flag.removeprefix("--").split("=", 1)[0]
        kind = _kind(name)
        if kind:
            return f"{flag}: it must be {kind}."
    return message


def _kind(name: str) -> Optional[str]:
    types = {option.name: option.type for option in settings.OPTIONS}
    types.update({field.flag: field.type for field in catalog.strength_fields()})
    kinds = {int: "a whole number", float: "a number", bool: "true or false"}
    return kinds.get(types.get(name))


def help_text(given: Mapping[str, Any], *, tasks: Any) -> str:
    """What `--help` prints.

    Args:
      given: The flags that were given; with `process` among them the effective
        values of that run are shown.
      tasks: The module `tasks`.

    Returns:
      The text.
    """
    values: Mapping[str, Any] = {}
    lines = [
        "bin/run --process=NAME[+NAME...] [flags]",
        "",
        *textwrap.wrap(
            "Trains a model by federated learning and writes metrics, plot, weights and"
            " checkpoints to a directory. The same command again resumes.",
            _WIDTH,
        ),
        "",
    ]
    if "process" in given:
        values = settings.resolve(
            given, task_names=tasks.names(), task_defaults=tasks.defaults
        )
        lines += [f"Values are those of --process={values['process']}", ""]
        lines[-2] += f" on --task={values['task']}."
    else:
        lines += [
            *textwrap.wrap(
                "What is not given is as in the method's paper, unless the task says"
                " otherwise: bin/run --process=fedalign --help shows those values.",
                _WIDTH,
            ),
            "",
        ]
    group = None
    for option in settings.OPTIONS:
        if option.group != group:
            lines += ["", f"{option.group}:"] if group else [f"{option.group}:"]
            group = option.group
        lines += _entry(option.name, option.type, _option_text(option, tasks), values)
    lines += ["", f"{_STRENGTHS}:"]
    for field in catalog.strength_fields(values.get("process")):
        text = field.help if field.help.endswith(".") else f"{field.help}."
        if not values:
            text += f" [{_shown(field.default)}]"
        lines += _entry(field.flag, field.type, text, values)
    lines += [
        "",
        "Others:",
        *_entry("flagfile", str, "reads flags from a file, one a line", {}),
        *_entry("verbosity", int, "0 shows what TensorFlow says and tracebacks", {}),
        *_entry("helpfull", None, "these and the flags of the libraries", {}),
    ]
    return "\n".join(lines)


def _option_text(option: settings.Option, tasks: Any) -> str:
    choices = {
        "process": catalog.names,
        "task": tasks.names,
        "partition": partitions.names,
    }.get(option.name)
    listed = choices() if choices else option.choices
    text = option.help
    if listed:
        text += f": {', '.join(listed)}"
    if option.name == "output_dir":
        text += " [runs/PROCESS-TASK-seedSEED]"
    elif option.default is not None and option.default is not False:
        text += f" [{_shown(option.default)}]"
    return text


def _entry(
    name: str, type_: Optional[type], text: str, values: Mapping[str, Any]
) -> list[str]:
    places = {int: "=N", float: "=X", str: "=NAME", bool: "", None: ""}
    place = "=DIR" if name.endswith("_dir") else places[type_]
    if name in ("split_file", "class_list"):
        place = "=FILE"
    head = f"  --{'[no]' if type_ is bool else ''}{name}{place}"
    if values.get(name) is not None:
        text = text.rsplit(" [", 1)[0] if text.endswith("]") else text
        text += f" [{_shown(values[name])}]"
    wrapped = textwrap.wrap(text, _WIDTH - _NAME_WIDTH)
    if len(head) < _NAME_WIDTH - 1:
        first = head.ljust(_NAME_WIDTH) + wrapped.pop(0)
    else:
        first = head
    return [first, *(" " * _NAME_WIDTH + line for line in wrapped)]


def _shown(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
