"""Runs a command in a process of its own: `python -m tff_reg.commands NAME [flags]`."""

import importlib
import pathlib
import sys
import warnings

_FOLDER = pathlib.Path(__file__).resolve().parent
if __name__ == "__main__" and sys.path[0] == str(_FOLDER):
    # Started as a file: the package's parent replaces the file's folder on the path.
    sys.path[0] = str(_FOLDER.parents[1])

from tff_reg import commands, interruption

_HELP = f"""\
tff-reg COMMAND [flags]

COMMAND is one of {", ".join(commands.NAMES)}; tff-reg COMMAND --help says more."""


def main() -> None:
    """Runs the command that the first argument names."""
    stop = interruption.Interruption()
    # First of all, so that Ctrl-C also works during the other imports.
    stop.take_over()
    name, *arguments = sys.argv[1:] or ["--help"]
    if name in ("-h", "--help"):
        print(_HELP)
        sys.exit()
    # A warning is printed in one line, without the source code that raised it.
    warnings.formatwarning = lambda message, *_, **__: f"tff_reg: {message}\n"
    command_line = importlib.import_module("tff_reg.commands.command_line")
    if name not in commands.NAMES:
        command_line.fail(
            f"There is no command {name}; use one of {', '.join(commands.NAMES)}.",
            command="tff-reg",
        )
    module = importlib.import_module(f"tff_reg.commands.{name}")
    command_line.execute(module.main, stop, arguments)


if __name__ == "__main__":
    main()
