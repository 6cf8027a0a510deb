"""Parts that all commands share: flags, one-line errors, help, exit codes.

A command is `main(argv) -> int`, which can be called from anywhere: each call has its
own set of flags. All of this runs before TensorFlow is loaded.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import pathlib
import re
import signal
import sys
from collections.abc import Callable, Container, Iterable, Sequence
from typing import Any, NoReturn, Optional

from absl import flags, logging

from tff_reg import files, interruption, quiet, scratch, seam
from tff_reg.experiment.config import run_config as config_lib
from tff_reg.lazy import tasks
from tff_reg.methods import catalogue
from tff_reg.settings import Setting, SettingError, as_text, near_names

VERBOSITY = Setting(
    "verbosity",
    int,
    None,
    "0 shows what TensorFlow says and tracebacks",
    group="Others",
)
# The heading of the flags that `--help` lists.
_MAIN = "Flags"


def command(body: Callable[..., None]) -> Callable[..., int]:
    """Decorator that makes a command's `main` from its body.

    The body takes the arguments after the command's name, the `Interruption` for its
    message and clean-up, and any keyword arguments. `main(argv, stop=None, **more)`
    returns the exit code and restores absl's verbosity.
    """

    @functools.wraps(body)
    def main(
        argv: Sequence[str],
        stop: Optional[interruption.Interruption] = None,
        **more: Any,
    ) -> int:
        before = logging.get_verbosity()
        try:
            try:
                _load_plugins(argv)
            except SettingError as error:
                fail(error, command=f"bin/{body.__module__.rpartition('.')[2]}")
            body(argv, stop or interruption.Interruption(), **more)
        except SystemExit as end:
            if not isinstance(end.code, int):
                raise  # Somebody else's, with a message.
            return end.code
        except seam.UnfitError as error:
            # The fault of an installed package, not of the arguments.
            print(f"tff_reg: {error}", file=sys.stderr)
            return 2
        finally:
            logging.set_verbosity(before)
        return 0

    return main


def _load_plugins(argv: Sequence[str]) -> None:
    """Loads the third-party methods that arguments name, so that their flags exist."""
    given = flags.FlagValues()
    plugin = [each for each in config_lib.listed(words=()) if each.name == "plugin"]
    define_flags(given, plugin)
    try:
        catalogue.load_named(given.read_flags_from_files(list(argv)))
        given(["", *argv], known_only=True)
    except (flags.Error, UnicodeDecodeError):
        return  # The command itself reports the error.
    config_lib.RunConfig(plugin=given.plugin or ())


def words_of(argv: Sequence[str]) -> Optional[Sequence[str]]:
    """Returns the words that name the methods of flags; None, for all, if help is."""
    with contextlib.suppress(flags.Error, UnicodeDecodeError):
        argv = flags.FlagValues().read_flags_from_files(list(argv))
    names = {word.lstrip("-").partition("=")[0] for word in argv}
    return None if names & {"h", "help", "helpfull"} else argv


def execute(
    main: Callable[..., int],
    stop: interruption.Interruption,
    argv: Optional[Sequence[str]] = None,
) -> NoReturn:
    """Runs a command in this process, which ends with the command's exit code.

    This is not done by absl's `app.run`: imported inside it, TensorFlow lists its
    devices before it switches to eager execution, and from then on `==` of two tensors
    in a `tf.function` of this thread is False, whatever their values.
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


class _Reader(flags.ArgumentParser):
    """Parser of a setting's flag."""

    def __init__(self, setting: Setting):
        self._setting = setting

    def parse(self, text: str) -> Any:
        if self._setting.type is str:  # No shell expands it in `--data_dir=~/data`.
            text = ",".join(map(os.path.expanduser, text.split(",")))
        return self._setting.read(text)

    def flag_type(self) -> str:
        return self._setting.kind


class _Repeated(flags.Flag):
    """A flag of a tuple that may be given several times."""

    def parse(self, argument: Any) -> None:
        """Adds the values of an argument."""
        before = self.value or ()
        super().parse(argument)
        self.value = (*before, *(self.value or ()))


def define_flags(
    given: flags.FlagValues,
    settings: Optional[Iterable[Setting]] = None,
    key: Container[str] = (),
    words: Optional[Sequence[str]] = None,
) -> None:
    """Defines a flag per setting, None if not given; `--help` lists those in `key`.

    Without `settings` they are a run's, as `run_config.listed` has them for `words`.
    """
    for each in settings or [*config_lib.listed(words=words), VERBOSITY]:
        is_truth = each.type is bool or each.alone is not None
        kind = _Repeated if each.name == "plugin" else flags.Flag
        flag = kind(_Reader(each), None, each.name, None, _help(each), boolean=is_truth)
        flags.DEFINE_flag(flag, given, module_name=each.group or _MAIN)
        if each.name in key:
            given.register_key_flag_for_module(_MAIN, flag)
    for alias, name in (("method", "process"), ("methods", "processes")):
        if name in given and alias not in given:
            flags.DEFINE_alias(alias, name, given, module_name="Others")


def _help(setting: Setting) -> str:
    choices = {"process": catalogue.names, "task": tasks.names}.get(setting.name)
    listed = choices() if choices else setting.choices
    text = setting.help
    if listed:
        text = f"{text.removesuffix('.')}: {', '.join(map(str, listed))}"
    if setting.default not in (None, (), False, dataclasses.MISSING):
        text += f" [{as_text(setting.default)}]"
    return text


def parse(
    argv: Sequence[str],
    given: flags.FlagValues,
    usage: str,
    *,
    takes_words: bool = False,
) -> list[str]:
    """Parses the arguments after a command's name; returns those that are no flags.

    `usage`, which begins with the command, is what `--help` prints above the flags.
    """
    command = usage.split()[0]
    flags.DEFINE_bool("help", False, "Prints the main flags.", given, short_name="h")
    flags.DEFINE_bool("helpfull", False, "Prints all flags.", given)
    try:
        words = given([command, *argv])[1:]
    except flags.UnrecognizedFlagError as error:
        name, known = error.flagname, [*given]
        if {each.name for each in config_lib.listed(words=())} <= {*known}:
            known += [each.name for each in config_lib.listed()]
        near = near_names(name, known, "--")
        fail(
            f"--{name}: there is no such flag{near}; --helpfull lists them.",
            command=command,
        )
    except (flags.Error, ValueError) as error:
        # absl raises its own error while it handles a SettingError.
        cause = error.__context__
        fail(cause if isinstance(cause, SettingError) else error, command=command)
    if given.help or given.helpfull:
        listed = given.module_help(_MAIN)
        if given.helpfull:
            listed = given.get_help(include_special_flags=False)
        print(as_typed(f"{usage.strip()}\n{listed.rstrip()}"))
        if not given.helpfull:
            print("\n--helpfull lists all flags.")
        raise SystemExit(0)
    if words and not takes_words:
        what = f"{words[0]} is not a flag, such as --process=fedavg"
        fail(f"{what}; --helpfull lists them.", command=command)
    return words


def requested(flag_values: flags.FlagValues) -> dict[str, Any]:
    """Returns the settings of a run that were given as flags, by name."""
    return {
        each.name: flag_values[each.name].value
        for each in config_lib.listed(words=flag_values)
        if each.name in flag_values and flag_values[each.name].value is not None
    }


def needed(name: str, value: Any) -> Any:
    """Returns the value of a required flag."""
    if not value:
        raise SettingError(name, None, "it is missing; --help says what it is.")
    return value


def write_new(path: str, text: str) -> None:
    """Writes the file to fill in that the flag `--new` asks for.

    Raises:
      SettingError: If there is a file already, it is not called NAME.toml, or it cannot
        be written.
    """
    if os.path.exists(path):
        raise SettingError("new", path, "there is such a file already.")
    if not path.endswith(".toml"):
        raise SettingError("new", path, "give the path of a new file, NAME.toml.")
    try:
        files.write_text(path, text)
    except OSError as error:
        raise SettingError("new", path, f"{error.strerror}.") from error


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
    """Prints an error in one line and ends; exit code 2 is for wrong flags."""
    print(as_typed(f"{command}: {in_words(error)}"), file=sys.stderr)
    raise SystemExit(exit_code)
