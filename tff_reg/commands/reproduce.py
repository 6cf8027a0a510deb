"""Reproduces a paper's table or figure: `bin/reproduce`.

The command line of `tff_reg.experiment.series.reproduction`, and of
`tasks.recipes.artifacts`, which lists the tables and figures.
"""

import functools
import os
import shlex
import textwrap

from absl import flags

from tff_reg import experiment, files
from tff_reg.analysis import figures
from tff_reg.commands import command_line, several
from tff_reg.experiment.series import jobs, plan as series, reproduction
from tff_reg.settings import Setting, SettingError
from tff_reg.tasks import recipes
from tff_reg.tasks.recipes import artifacts

_COMMAND = "bin/reproduce"
_USAGE = """\
bin/reproduce PAPER/TABLE [--seeds=N] [--scale=X] [--jobs=N] [flags]
bin/reproduce --list [PAPER]

Runs and analyses the experiments of a table or figure of a paper, such as
fedalign/table1, fedmlb/table6 or man/figure2, and writes it with the published numbers
beside the new ones: table.md, table.csv, report.html and, for a figure, figure.png, by
default in runs/PAPER/TABLE. The same command again resumes. --list gives the tables
and figures, and their numbers of runs with one seed. PAPER may be a file of your own,
as in paper.toml/table1: bin/recipes --new=paper.toml writes one to fill in.

--scale=tiny is a smoke test of minutes, --synthetic_data takes random images in place
of all data. The flags of bin/run override the recipes; hyperparameters such as
--fedprox_strength apply to the methods that have them.
"""

_RUNS = "runs"
_WIDTH = 88
_LIST = Setting("list", bool, False, "lists the tables and figures")
_RUNS_DIR = Setting(
    "runs_dir",
    str,
    None,
    "directory of the runs, DIR/RECIPE-seedN, which tables and figures share; by"
    " default --output_dir, or runs",
    placeholder="DIR",
    is_optional=True,
)
_OWN = (series.SEEDS, _RUNS_DIR, *jobs.SETTINGS)

fail = functools.partial(command_line.fail, command=_COMMAND)


def listing(found):
    """Returns the lines that list tables and figures with their numbers of runs."""
    width = max(len(each.name) for each in found)
    head = f"{'':{width}}  runs  "
    lines = [head.rstrip()]
    for each in found:
        lines += textwrap.wrap(
            each.title,
            _WIDTH,
            initial_indent=f"{each.name:{width}}  {len(artifacts.runs(each)):4}  ",
            subsequent_indent=" " * len(head),
        )
    return lines


def planned(given, name):
    """Returns the study that the flags ask for, its output directory and its runs'."""
    requested = several.requested(given)
    for setting in ("recipe", "process"):
        if setting in requested:
            reason = "leave it out: the table says what runs."
            raise SettingError(setting, requested[setting], reason)
    output_dir = requested.pop("output_dir", None)
    runs_dir = several.value_of(given, _RUNS_DIR) or output_dir or _RUNS
    study = reproduction.planned(
        artifacts.artifact(name),
        experiment.RunConfig.of(requested),
        seeds=series.SEEDS.of(several.value_of(given, series.SEEDS)),
        runs_dir=runs_dir,
        kind=figures.Drawn,
    )
    return study, output_dir or os.path.join(_RUNS, recipes.place_of(name)), runs_dir


@command_line.command
def main(argv, stop, executor=None):
    """Plans the runs, carries them out, analyses and tabulates them."""
    given = flags.FlagValues()
    where = "directory of the table and the figure [runs/PAPER/WHICH]"
    own = [*several.settings_of_runs(where, argv), *_OWN, _LIST, command_line.VERBOSITY]
    command_line.define_flags(given, own, key=("output_dir", "scale"))
    words = command_line.parse(argv, given, _USAGE, takes_words=True)
    if len(words) > 1 or (not words and not given.list):
        found = " ".join(words) or "nothing"
        fail(f"give one table or figure (found {found}); --list names them all.")
    if given.list:
        paper = words[0] if words else ""
        try:
            known = artifacts.artifacts(paper)
        except ValueError as error:
            fail(error)
        found = [each for each in known if each.name.startswith(paper)]
        if not found:
            fail(f"There is no table or figure of {paper!r}; --list names them all.")
        print(*listing(found), sep="\n")
        return
    try:
        study, output_dir, runs_dir = planned(given, words[0])
        files.check_writable(output_dir, "output_dir")
        of_runs = study.runs, runs_dir, "runs_dir"
        done = several.begin(given, stop, *of_runs, executor)
    except artifacts.UnknownArtifactError as error:
        fail(f"{error} --list names them all.")
    except ValueError as error:
        fail(error)
    command = shlex.join([_COMMAND, *argv])
    several.carry_out(study, done, given, output_dir, fail, command=command)
