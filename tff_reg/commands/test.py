"""Runs the tests of the clone that the package is in: `bin/test`."""

import os
import pathlib

from tff_reg.commands import command_line

_HELP = """\
tff-reg test [--slow | pytest's arguments]
  Runs bin/test of the clone that this package is in, in the clone's own environment. An
  installed package has no tests."""


@command_line.command(_HELP)
def main(argv, stop):
    """Replaces this process by `bin/test`, if that exists."""
    script = pathlib.Path(__file__).parents[2] / "bin" / "test"
    if not script.exists():
        command_line.fail(
            "The tests belong to a clone of the repository: run bin/test there.",
            command="tff-reg test",
        )
    os.execv(script, [str(script), *argv])
