"""The settings of recipes, as `bin/run` reads them."""

from absl import flags

from tff_reg.commands import command_line
from tff_reg.experiment import RunConfig


def resolve(name, *more):
    """The settings of `bin/run --recipe=NAME`."""
    values = flags.FlagValues()
    command_line.define_flags(values)
    values(["bin/run", f"--recipe={name}", *more])
    return RunConfig.of(command_line.requested(values)).resolved()


def in_small(name, *more):
    return resolve(name, "--scale=tiny", "--synthetic_data", *more)
