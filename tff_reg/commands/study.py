"""Carries out studies, whose claims are tested: `bin/study`."""

import dataclasses
import functools
import os
import pathlib
import shlex
import sys
from typing import Any

from absl import flags

from tff_reg import files, tables
from tff_reg.commands import command_line, compare, several
from tff_reg.experiment.report import claims
from tff_reg.experiment.series import comparing, jobs
from tff_reg.settings import Setting, SettingError, as_text
from tff_reg.tasks import studies

_COMMAND = "bin/study"
_USAGE = """\
bin/study --list
bin/study NAME [--jobs=N] [--output_dir=DIR]
bin/study FILE.toml [--jobs=N] [--output_dir=DIR]
bin/study --new=FILE.toml

Lists the studies of this package, and whether their numbers are published, or carries
one out: a comparison whose claims were written down before it is run. The same command
again resumes. In DIR, by default runs/studies/NAME, are the files of bin/compare, and

  study.toml   the study as it was when its first run began
  values.csv   the columns of each run, and the code that made it
  claims.csv   the test of each claim for each method: difference, interval, p, verdict
  study.md     the same in words
"""
_SETTINGS = (
    Setting("output_dir", str, None, "directory of the study", placeholder="DIR"),
    *jobs.SETTINGS,
    Setting(
        "dry_run", bool, False, "as of bin/compare: tries two rounds of each method"
    ),
    Setting("new", str, None, "writes a study to fill in", placeholder="FILE.toml"),
    Setting("list", bool, False, "lists the studies of this package"),
)
_OF_COMPARISON = [each.name for each in _SETTINGS if each.name not in ("new", "list")]
_FILES = ("study.toml", "values.csv", "claims.csv", "study.md")

fail = functools.partial(command_line.fail, command=_COMMAND)


@dataclasses.dataclass
class _Sheet(comparing.Tables):
    """Writes the tables of a study's comparison, and the tests of its claims.

    Attributes:
      asked: The `tasks.studies.Study`.
      tests: Those of its claims.
    """

    asked: Any = None
    tests: Any = ()

    def contents(self, study, columns, is_last, **of_files):
        """As of the comparison; when all is there, the claims, too."""
        found = super().contents(study, columns, is_last, **of_files)
        return [*found, ("", _FILES, self._of_claims)] if is_last else found

    def _of_claims(self):
        rows = claims.tested(self.tests, self.tables)
        values = claims.values(self.tables, self.layout.columns)
        codes = sorted({row["code"] for row in values} - {""})
        few = claims.too_few(self.tests, len({row["seed"] for row in values}))
        made_by = f"Made by the code {', '.join(codes)}. {few}".rstrip()
        contents = (
            self.asked.text,
            tables.to_csv(values),
            tables.to_csv(rows),
            claims.page(self.asked, rows, self.tables, made_by),
        )
        return dict(zip(_FILES, contents))


def _listing():
    """Returns the lines of a list of studies."""
    found = [studies.read(name) for name in studies.names()]
    width = max(len(each.name) for each in found)
    return [
        f"{each.name:{width}}  {_state(each.name)}  {each.question}" for each in found
    ]


def _state(name):
    """Returns whether the package has a study's numbers."""
    return "published" if studies.published(name, "values.csv") else "not run  "


def _check_free(asked, path):
    """Refuses a directory with other files, or another study than that at `path`."""
    folder, kept = path.parent, path.exists()
    there = [*folder.iterdir()] if folder.is_dir() else []
    if there in ([], [path]) or (kept and path.read_text("utf-8") == asked.text):
        return
    why = "it has files that are older than the study; give another."
    if kept:
        why = f"its runs are of {path}, and the study was changed since; give another."
    raise SettingError("output_dir", str(folder), why)


@command_line.command
def main(argv, stop):
    """Lists studies, or carries one out."""
    own = flags.FlagValues()
    command_line.define_flags(own, _SETTINGS)
    names = command_line.parse(argv, own, _USAGE, takes_words=True)
    try:
        if own.new is not None:
            command_line.write_new(own.new, studies.template())
            print(f"{own.new}: fill it in, then bin/study {own.new}")
            return
        if own.list or not names:
            print(*_listing(), sep="\n")
            return
        if len(names) > 1:
            raise SettingError("study", " ".join(names), "give one.")
        asked = studies.read(names[0])
        usual = os.path.join("runs", "studies", asked.name)
        where = own.output_dir or asked.flags.get("output_dir", usual)
        kept = pathlib.Path(where, _FILES[0])
        _check_free(asked, kept)
        chosen = {n: own[n].value for n in _OF_COMPARISON if own[n].value is not None}
        chosen |= {**asked.flags, "output_dir": where}
        given = compare.read_flags([f"--{n}={as_text(v)}" for n, v in chosen.items()])
        study = compare.planned(given)
        sheet = study.sheet
        columns = sheet.layout.columns or ("score", "ema")
        columns = (*(claim.quantity for claim in asked.claims), *columns)
        layout = dataclasses.replace(sheet.layout, columns=columns)
        rows = [*dict.fromkeys(row for row, _, _ in study.trials)]
        configs = [run.config for run in study.runs]
        claims.check(asked.claims, rows, [*sheet.folders], configs)
        tests = claims.planned(asked.claims, rows, [*sheet.folders])
        of_study = {"asked": asked, "tests": tests}
        study.sheet = _Sheet(layout, sheet.folders, sheet.tuner, **of_study)
        done = several.begin(given, stop, study.runs, where, "output_dir")
        if not given.dry_run:
            files.make_directory(kept.parent, "output_dir")
            files.write_text(kept, asked.text)
    except ValueError as error:
        fail(error)
    if said := claims.too_few(tests, len({config.seed for config in configs})):
        print(f"{_COMMAND}: {said}", file=sys.stderr)
    if given.dry_run:
        compare.try_runs(study, done, several.value_of(given, jobs.JOBS))
        return
    command = shlex.join([_COMMAND, *argv])
    several.carry_out(study, done, given, where, fail, title="", command=command)
    if not given.list_commands:
        print("", (pathlib.Path(where) / "study.md").read_text("utf-8"), sep="\n")
