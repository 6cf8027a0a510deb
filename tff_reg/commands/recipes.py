"""Lists the papers' experiments: `bin/recipes`."""

import functools
import importlib.resources
import textwrap

from absl import flags

from tff_reg.commands import command_line
from tff_reg.experiment.config import run_config as config
from tff_reg.settings import Setting, as_text
from tff_reg.tasks import recipes

_COMMAND = "bin/recipes"
_WIDTH = 88
_USAGE = """\
bin/recipes [PATTERN] [--names]
bin/recipes --show=NAME
bin/recipes --new=paper.toml

Lists the cells of the papers' tables that bin/run --recipe=NAME runs, with their
published numbers. PATTERN is part of a name, such as fedalign/table2; with *, ? or [ in
it a whole name: 'fedmlb/table2/fedprox*'. A paper of your own is a file, whose path
stands before the names: paper.toml/table1/fedprox.
"""
_SETTINGS = (
    Setting("names", bool, False, "prints the names alone, a line each"),
    Setting(
        "show",
        str,
        None,
        "shows one recipe: its settings, the paper and the cell that it comes from, the"
        " published number, and how it differs from the paper",
    ),
    Setting("new", str, None, "writes a paper's file to fill in", placeholder="FILE"),
)

fail = functools.partial(command_line.fail, command=_COMMAND)


def listing(found):
    """Returns the lines of a list of recipes, grouped by paper, table and measure."""
    tables = {}
    for recipe in found:
        key = (recipe.table.paper.title, _title(recipe.table), recipe.measure)
        tables.setdefault(key, []).append(recipe)
    lines = []
    for (paper, title, measure), those in tables.items():
        width = max(len(recipe.name) for recipe in those)
        lines += [line for text in (paper, title, measure) for line in _wrapped(text)]
        lines += [f"  {recipe.name:{width}}  {recipe.published}" for recipe in those]
        lines.append("")
    return [*lines, f"{len(found)} recipe{'s' if len(found) > 1 else ''}"]


def description(recipe):
    """Returns the lines that describe a recipe in full."""
    source = {
        "paper": recipe.table.paper.title,
        "table": _title(recipe.table).removeprefix("Table "),
        "row": recipe.row,
        "column": recipe.column,
        "published": f"{recipe.published} ({recipe.measure})",
    }
    lines = [recipe.name, ""]
    for name, text in source.items():
        lines += _wrapped(f"  {name:9}  {text}", " " * 13)
    lines += ["", "Settings:"]
    for each in config.listed():
        if each.name in recipe.settings:
            lines.append(f"  --{each.name}={as_text(recipe.settings[each.name])}")
    if recipe.notes:
        lines += ["", "Differences from the paper, and what it leaves open:"]
        for note in recipe.notes:
            lines += _wrapped(f"  - {note}", "    ")
    return lines


def _title(table):
    return f"Table {table.number}: {table.title}"


def _wrapped(text, indent=""):
    return textwrap.wrap(text, _WIDTH, subsequent_indent=indent, break_on_hyphens=False)


def _new(path):
    """Writes a paper's file; returns what to do next."""
    text = importlib.resources.files(recipes).joinpath("new_paper.toml").read_text()
    command_line.write_new(path, text.replace("paper.toml", path))
    return f"{path}: fill it in; bin/recipes {path} lists what is in it."


@command_line.command
def main(argv, stop):
    """Lists recipes, or shows one."""
    del stop  # There is nothing to clean up.
    given = flags.FlagValues()
    command_line.define_flags(given, _SETTINGS)
    patterns = command_line.parse(argv, given, _USAGE, takes_words=True)
    if len(patterns) > 1:
        fail(f"{' '.join(patterns)}: give one PATTERN, in quotes if it has a * in it.")
    if given.show is not None and (patterns or given.names):
        fail("--show takes the place of a PATTERN and of --names; leave them out.")
    try:
        if given.new is not None:
            lines = [_new(given.new)]
        elif given.show is not None:
            lines = description(recipes.recipe(given.show))
        else:
            found = recipes.matching(*patterns or [""])
            lines = [each.name for each in found] if given.names else listing(found)
    except ValueError as error:
        fail(error)
    except OSError as error:
        fail(f"{given.new}: {error.strerror}.", exit_code=1)
    print(*lines, sep="\n")
