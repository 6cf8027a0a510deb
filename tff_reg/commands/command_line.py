"""Parts that all commands share: flags, one-line errors, help, exit codes.

A command is `main(argv) -> int`, which can be called from anywhere: each call has its
own set of flags. All of this runs before TensorFlow is loaded, and `--help` needs only
the standard library: bin/launch asks any Python for it before anything is installed.
"""

from __future__ import annotations

import functools
import os
import pathlib
import re
import signal
import sys
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from typing import (
    Any,
    NoReturn,
    Optional,
    Union,
)

from tff_reg import interruption, quiet, scratch, seam
from tff_reg.experiment.config import (
    run_config as config_lib,
)
from tff_reg.lazy import flags, logging
from tff_reg.methods import catalogue
from tff_reg.settings import Setting, SettingError, near_names

ALL_FLAGS = ("--help=all", "--helpfull")
VERBOSITY = Setting(
    "verbosity", int, None, "0 shows what TensorFlow says and tracebacks"
)
_HELP_FLAGS = ("--help", "-help", "-h", "--h", "-?", "--helpshort", *ALL_FLAGS)


class Ended(SystemExit):
    """Raised to end a command: after its help, or after an error message."""

    code: int


def command(
    help_: Union[str, Callable[[Sequence[str]], str]],
) -> Callable[[Callable[..., None]], Callable[..., int]]:
    """Decorator that makes a command's `main` from its body.

    The body takes the arguments after the command's name, the `Interruption` for its
    message and clean-up, and any keyword arguments.

    Args:
      help_: The text that `--help` prints, or a function of the arguments returning it.

    Returns:
      A decorator that returns `main(argv, stop=None, **more)`, which returns the exit
      code and restores absl's verbosity.
    """

    def decorate(body: Callable[..., None]) -> Callable[..., int]:
        @functools.wraps(body)
        def main(
            argv: Sequence[str],
            stop: Optional[interruption.Interruption] = None,
            **more: Any,
        ) -> int:
            try:
                _load_plugins(argv)
                answer_help(argv, help_)
                before = logging.get_verbosity()
                try:
                    body(argv, stop or interruption.Interruption(), **more)
                finally:
                    logging.set_verbosity(before)
            except Ended as end:
                return end.code
            except seam.UnfitError as error:
                # The fault of an installed package, not of the arguments.
                print(f"tff_reg: {error}", file=sys.stderr)
                return 2
            return 0

        return main

    return decorate


def _load_plugins(argv: Sequence[str]) -> None:
    """Loads the third-party methods that arguments name, so that their flags exist.

    A file that cannot be loaded is reported later, when the command reads its flags.
    """
    catalogue.load_named(argv)
    try:
        for word in written_out(argv):
            name, _, files = word.lstrip("-").partition("=")
            if name == "plugin" and word.startswith("-"):
                config_lib.RunConfig(plugin=tuple(filter(None, files.split(","))))
    except ValueError:
        return  # The command itself reports the error.


def answer_help(
    argv: Sequence[str], help_: Union[str, Callable[[Sequence[str]], str]]
) -> None:
    """Prints a command's help if an argument asks for it; `help_` is as for `command`.

    Raises:
      Ended: If the help was printed.
    """
    if any(argument in _HELP_FLAGS for argument in argv):
        print(as_typed(help_ if isinstance(help_, str) else help_(argv)))
        raise Ended(0)


def execute(
    main: Callable[..., int],
    stop: interruption.Interruption,
    argv: Optional[Sequence[str]] = None,
) -> NoReturn:
    """Runs a command in this process, which ends with the command's exit code.

    This is not done by absl's `app.run`: imported inside it, TensorFlow lists its
    devices before it switches to eager execution, and from then on `==` of two tensors
    in a `tf.function` of this thread is False, whatever their values.

    Args:
      main: The command.
      stop: The `Interruption`, which has taken over the signals.
      argv: Its arguments; by default the arguments of this Python process.
    """
    scratch.use_own_folder()
    try:
        status = main(sys.argv[1:] if argv is None else argv, stop)
        sys.stdout.flush()
        sys.exit(status)
    except BrokenPipeError:
        # The reader of the output, such as `head`, has ended. Commands can be resumed.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(128 + signal.SIGPIPE)


def be_quiet(given: flags.FlagValues) -> bool:
    """Silences libraries unless `--verbosity` is at least 0; returns whether it is."""
    verbosity = given["verbosity"].value
    if verbosity is None or verbosity < 0:
        verbosity = logging.ERROR
    verbose = verbosity >= 0
    quiet.silence(verbose)
    logging.set_verbosity(verbosity)
    return verbose


class _Reader:
    """Parser of a setting's flag, for absl."""

    syntactic_help = ""

    def __init__(self, setting: Setting):
        self._setting = setting

    def parse(self, text: str) -> Any:
        return self._setting.read(text)

    def flag_type(self) -> str:
        return self._setting.kind


def define_flags(
    flag_values: flags.FlagValues, settings: Optional[Iterable[Setting]] = None
) -> None:
    """Defines a flag per setting; by default for a run's settings and `VERBOSITY`.

    A flag that is not given is None.
    """
    for each in settings or [*config_lib.listed(), VERBOSITY]:
        is_truth = each.type is bool
        reader: Any = _Reader(each)
        flag = flags.Flag(reader, None, each.name, None, each.help, boolean=is_truth)
        flags.DEFINE_flag(flag, flag_values)


def requested(flag_values: flags.FlagValues) -> dict[str, Any]:
    """Returns the settings of a run that were given as flags, by name."""
    return {
        each.name: flag_values[each.name].value
        for each in config_lib.listed()
        if flag_values[each.name].value is not None
    }


def needed(name: str, value: Any) -> Any:
    """Returns the value of a required flag.

    Raises:
      SettingError: If it is missing.
    """
    if not value:
        raise SettingError(name, None, "it is missing; --help says what it is.")
    return value


def in_words(error: Any) -> str:
    """Returns an error in one line, with settings written as flags."""
    is_of_setting = isinstance(error, SettingError)
    names = "|".join(each.name for each in config_lib.listed())
    text = error.reason if is_of_setting else str(error)
    if isinstance(error, OSError) and error.filename is not None:
        text = f"{error.filename}: {error.strerror}."
    text = re.sub(rf"(?<![-\w./=])({names})=", r"--\1=", text)
    if is_of_setting:
        text = f"--{error.setting}{error.given}: {text}"
    return " ".join(text.split())


def as_typed(text: str) -> str:
    """Replaces `bin/run` in a text by `tff-reg run`, except in a clone.

    In a clone the text stays as it is, unless the command was started as `tff-reg`.
    """
    is_clone = pathlib.Path(__file__).parents[2].joinpath("bin", "launch").exists()
    if is_clone and os.path.basename(sys.argv[0]) != "tff-reg":
        return text
    of_clones = "bench|docs|launch|lint|test"
    return re.sub(rf"\bbin/(?!(?:{of_clones})\b)(?=[a-z])", "tff-reg ", text)


def fail(error: Any, *, exit_code: int = 2, command: str = "bin/run") -> NoReturn:
    """Prints an error in one line on stderr and ends; exit code 2 is for wrong flags.

    Raises:
      Ended: Always.
    """
    print(as_typed(f"{command}: {in_words(error)}"), file=sys.stderr)
    raise Ended(exit_code)


def parse(
    argv: Sequence[str],
    given: flags.FlagValues,
    *,
    command: str = "bin/run",
    takes_words: bool = False,
) -> list[str]:
    """Parses the arguments after a command's name; returns those that are no flags.

    Raises:
      Ended: If the flags are wrong (exit code 2); the message begins with `command`.
    """
    lists = "--help=all" if "scale" in given else "--help"
    try:
        named = [own_name(word, given) for word in written_out(argv)]
        words = given([command, *named])[1:]
    except flags.UnrecognizedFlagError as error:
        name, near = error.flagname, near_names(error.flagname, list(given), "--")
        fail(
            f"--{name}: there is no such flag{near}; {lists} lists them.",
            command=command,
        )
    except (flags.Error, ValueError) as error:
        # absl raises its own error while it handles a SettingError.
        cause = error.__context__
        fail(cause if isinstance(cause, SettingError) else error, command=command)
    if words and not takes_words:
        fail(f"{words[0]} is not a flag; {lists} lists them.", command=command)
    return words


def written_out(argv: Sequence[str]) -> list[str]:
    """Returns the arguments with flag files replaced by their lines, and `~` expanded.

    Raises:
      SettingError: If a flag file cannot be read, or names itself.
    """
    return [
        # No shell expands it in `--output_dir=~/runs`, or in a file.
        re.sub(r"(?<=[=,])~(?=/|,|$)", os.path.expanduser("~"), word)
        if word.startswith("-")
        else word
        for word in _with_flag_files(iter(argv))
    ]


def own_name(word: str, names: Container[str]) -> str:
    """Replaces `--method` in an argument by `--process`, if only that is a flag."""
    for other, own in (("method", "process"), ("methods", "processes")):
        if own in names and other not in names:
            word = re.sub(rf"^(--?){other}(?==|$)", rf"\1{own}", word)
    return word


def _with_flag_files(
    words: Iterator[str], within: tuple[str, ...] = ()
) -> Iterator[str]:
    for word in words:
        name, is_whole, path = word.lstrip("-").partition("=")
        if name != "flagfile" or not word.startswith("-"):
            yield word
            continue
        path = os.path.expanduser(path if is_whole else next(words, ""))
        if os.path.realpath(path) in within:
            raise SettingError("flagfile", path, "it names itself.")
        try:
            with open(path, encoding="utf-8") as file:
                lines = [line.strip() for line in file]
        except OSError as error:
            reason = f"it cannot be read ({error.strerror})."
            raise SettingError("flagfile", path, reason) from error
        except ValueError as error:
            raise SettingError("flagfile", path, "it is no text file.") from error
        yield from _with_flag_files(
            iter([line for line in lines if line and line[0] not in "#/"]),
            (*within, os.path.realpath(path)),
        )
