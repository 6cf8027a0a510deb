"""The settings of recipes, as `bin/run` reads them."""

from absl import flags

import tasks
from tff_reg.experiment import command_line, settings


def resolve(name, *more):
    """The settings of `bin/run --recipe=NAME`."""
    values = flags.FlagValues()
    command_line.define_flags(values)
    values(["bin/run", f"--recipe={name}", *more])
    return settings.resolve(
        command_line.requested(values),
        task_names=tasks.names(),
        task_defaults=tasks.defaults,
        recipe_settings=tasks.recipes.settings,
    )


def in_small(name, *more):
    return resolve(name, "--scale=tiny", "--synthetic_data", *more)
