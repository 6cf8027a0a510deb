"""What commands share: flags, their errors in one line, help, exit codes.

A command is `main(argv) -> int`, which can be called from anywhere: flags are in a set
of their own for each call. Everything here is done before TensorFlow is loaded, and
`--help` is answered with the standard library alone: bin/launch asks any Python for it
where nothing is installed yet.
"""

from __future__ import annotations

import functools
import os
import signal
import sys
import textwrap
from typing import (
    Any,
    Callable,
    Iterator,
    Mapping,
    NoReturn,
    Optional,
    Sequence,
    Union,
)

from tff_reg import quiet, scratch
from tff_reg.data import partitions
from tff_reg.experiment import interruption, settings
from tff_reg.lazy import flags, logging
from tff_reg.processes import catalog

_WIDTH = 88
_NAME_WIDTH = 34
_STRENGTHS = "Strengths of the methods"
_TRUTHS = dict.fromkeys(("true", "t", "1"), True)
_TRUTHS.update(dict.fromkeys(("false", "f", "0"), False))
_HELP_FLAGS = ("--help", "-help", "-h", "--h", "-?", "--helpshort", "--helpfull")


class Ended(SystemExit):
    """Raised to end a command: after its help, or a line that says what is wrong."""


def command(
    help_: Union[str, Callable[[Sequence[str]], str]],
) -> Callable[[Callable[..., None]], Callable[..., int]]:
    """Makes a command's `main` of its body; a decorator.

    The body takes the arguments after the command's name, the `Interruption` that is
    told what to say and to clean up, and what keyword arguments it likes.

    Args:
      help_: What `--help` prints, or what makes it of the arguments.

    Returns:
      Makes `main(argv, stop=None, **more)`, which returns the exit code, and leaves
      absl's verbosity as it was.
    """

    def decorate(body: Callable[..., None]) -> Callable[..., int]:
        @functools.wraps(body)
        def main(
            argv: Sequence[str],
            stop: Optional[interruption.Interruption] = None,
            **more: Any,
        ) -> int:
            try:
                answer_help(argv, help_)
                before = logging.get_verbosity()
                try:
                    body(argv, stop or interruption.Interruption(), **more)
                finally:
                    logging.set_verbosity(before)
            except Ended as end:
                return end.code
            return 0

        return main

    return decorate


def answer_help(
    argv: Sequence[str], help_: Union[str, Callable[[Sequence[str]], str]]
) -> None:
    """Prints a command's help if it is asked for.

    Args:
      argv: The arguments after the command's name.
      help_: As for `command`.

    Raises:
      Ended: If it was.
    """
    if any(argument in _HELP_FLAGS for argument in argv):
        print(help_ if isinstance(help_, str) else help_(argv))
        raise Ended(0)


def execute(main: Callable[..., int], stop: interruption.Interruption) -> NoReturn:
    """Runs a command that is all that its process is for.

    Not absl's `app.run`: TensorFlow asks for its devices when it is imported inside
    that, before it has switched to eager execution, and from then on `==` of two
    tensors in a `tf.function` of this thread is False, whatever they hold.
    """
    scratch.use_own_folder()
    try:
        status = main(sys.argv[1:], stop)
        sys.stdout.flush()
        sys.exit(status)
    except BrokenPipeError:
        # Whoever read our output, `head` perhaps, has gone. Commands can be resumed.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(128 + signal.SIGPIPE)


def be_quiet(given: flags.FlagValues) -> bool:
    """Silences the libraries, unless `--verbosity` wants to hear them.

    Returns:
      Whether it does.
    """
    verbosity = given["verbosity"].value
    verbose = verbosity is not None and verbosity >= 0
    quiet.silence(verbose)
    logging.set_verbosity(verbosity if verbose else logging.ERROR)
    return verbose


def define_flags(flag_values: flags.FlagValues) -> None:
    """Defines a flag for every option and for every strength of every method.

    All of them, and `--verbosity`, are None unless given, so that it is known what was.
    """
    define_verbosity(flag_values)
    define = {
        bool: flags.DEFINE_boolean,
        int: flags.DEFINE_integer,
        float: flags.DEFINE_float,
        str: flags.DEFINE_string,
    }
    for name, type_ in _types().items():
        define[type_](name, None, "See the help.", flag_values=flag_values)


def define_verbosity(flag_values: flags.FlagValues) -> None:
    """Defines `--verbosity`."""
    flags.DEFINE_integer("verbosity", None, "See the help.", flag_values=flag_values)


def names() -> list[str]:
    """The names of the flags that `define_flags` defines."""
    return list(_types())


def _types() -> dict[str, type]:
    types = {option.name: option.type for option in settings.OPTIONS}
    types.update({field.flag: field.type for field in catalog.strength_fields()})
    return types


def requested(flag_values: flags.FlagValues) -> dict[str, Any]:
    """The flags that were given, by name."""
    return {
        name: flag_values[name].value
        for name in names()
        if flag_values[name].value is not None
    }


def fail(message: Any, *, exit_code: int = 2, command: str = "bin/run") -> NoReturn:
    """Ends the command with one line on stderr; 2 says that the flags are wrong.

    Raises:
      Ended: Always.
    """
    print(f"{command}: " + " ".join(str(message).split()), file=sys.stderr)
    raise Ended(exit_code)


def parse(
    argv: Sequence[str],
    given: flags.FlagValues,
    *,
    command: str = "bin/run",
) -> None:
    """Parses the arguments of a command that takes the flags of `define_flags`.

    Args:
      argv: The arguments after the command's name.
      given: The flags, which get their values.
      command: Who says that something is wrong.

    Raises:
      Ended: If the flags are wrong (2).
    """
    try:
        rest = given([command, *argv])[1:]
    except flags.Error as error:
        fail(_flag_error(error, given), command=command)
    if rest:
        fail(
            f"{rest[0]} is not a flag; flags look like --process=fedalign.",
            command=command,
        )


def parse_own(
    argv: Sequence[str],
    given: flags.FlagValues,
    *,
    command: str,
    takes_words: bool = False,
) -> list[str]:
    """Parses the arguments of a command that has only flags of its own.

    Args:
      argv: The arguments after the command's name.
      given: The flags, which get their values.
      command: Who says that something is wrong.
      takes_words: Whether there may be arguments that are not flags.

    Returns:
      What is not a flag.

    Raises:
      Ended: If the flags are wrong (2).
    """
    try:
        words = given([command, *argv])[1:]
    except flags.Error as error:
        fail(error, command=command)
    if words and not takes_words:
        fail(f"{words[0]} is not a flag; --help lists them.", command=command)
    return words


def _flag_error(error: flags.Error, given: flags.FlagValues) -> str:
    if isinstance(error, flags.UnrecognizedFlagError):
        name = error.flagname
        near = settings.near_names(name, list(given), "--")
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
    kinds = {int: "a whole number", float: "a number", bool: "true or false"}
    return kinds.get(_types().get(name))


def help_of_run(argv: Sequence[str], *, tasks: Any) -> str:
    """What `bin/run ... --help` prints.

    Args:
      argv: The arguments.
      tasks: The module `tasks`.

    Returns:
      The text.

    Raises:
      Ended: If a setting among the arguments cannot be (2).
    """
    try:
        return help_text(_settings_in(argv), tasks=tasks)
    except (ValueError, OSError) as error:
        fail(error)


def _settings_in(argv: Sequence[str]) -> dict[str, Any]:
    """The settings among arguments, for the help, which has no absl to read them."""
    types, given = _types(), {}
    words = _with_flag_files(iter(argv))
    for word in words:
        if not word.startswith("-"):
            continue
        name, is_whole, text = word.lstrip("-").partition("=")
        negated = name.removeprefix("no")
        if not is_whole and types.get(name) is bool:
            given[name] = True
        elif not is_whole and types.get(negated) is bool:
            given[negated] = False
        elif name in types:
            text = text if is_whole else next(words, "")
            read = _TRUTHS.__getitem__ if types[name] is bool else types[name]
            try:
                given[name] = read(text)
            except (KeyError, ValueError) as error:
                message = f"--{name}={text}: it must be {_kind(name)}."
                raise settings.SettingError(message) from error
    return given


def _with_flag_files(words: Iterator[str]) -> Iterator[str]:
    for word in words:
        name, is_whole, path = word.lstrip("-").partition("=")
        if name != "flagfile" or not word.startswith("-"):
            yield word
            continue
        with open(path if is_whole else next(words, ""), encoding="utf-8") as file:
            lines = (line.strip() for line in file)
            yield from _with_flag_files(
                iter([line for line in lines if line and line[0] not in "#/"])
            )


def help_text(given: Mapping[str, Any], *, tasks: Any) -> str:
    """The help of `bin/run`.

    Args:
      given: The flags that were given; with `process` or `recipe` among them the
        effective values of that run are shown.
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
    if "process" in given or "recipe" in given:
        values = settings.resolve(
            given,
            task_names=tasks.names(),
            task_defaults=tasks.defaults,
            recipe_settings=tasks.recipes.settings,
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
