"""The settings of recipes, as `bin/run` reads them."""

from absl import flags

import tasks
from tasks import recipes
from tff_reg.experiment import command_line, settings


def resolve(recipe, *more):
    """The settings of `bin/run -flagfile=FILE`."""
    values = flags.FlagValues()
    command_line.define_flags(values)
    values(["bin/run", f"--flagfile={recipes.ROOT / recipe.path}", *more])
    return settings.resolve(
        command_line.requested(values),
        task_names=tasks.names(),
        task_defaults=tasks.defaults,
    )


def in_small(recipe, *more):
    return resolve(recipe, "--scale=tiny", "--synthetic_data", *more)
