"""Builds the site with Sphinx: `bin/docs --help` says how."""

import gc
import pathlib
import shutil
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    from tff_reg import interruption

    STOP = interruption.Interruption()
    STOP.take_over()

from absl import flags

from docs import evidence, verdicts
from tff_reg import files
from tff_reg.commands import command_line
from tff_reg.lazy import sphinx_build
from tff_reg.settings import Setting, SettingError

_COMMAND = "bin/docs"
SOURCES = ROOT / "docs"
README = ROOT / "README.md"
WRITTEN = [README, *(SOURCES / "pages" / f"{name}.md" for name in ("results", "which"))]
_USAGE = """\
bin/docs [--output_dir=DIR]
  Builds the site; DIR/index.html is its first page. Exit code 1 if Sphinx warns of
  anything. An older site in DIR is replaced.

bin/docs --links
  Asks all addresses that the site names whether they are there.

bin/docs --readme
  Writes the README's table of methods, which follows from their files, and the map and
  the verdicts, tables and lists of the pages on results, which follow from the
  published studies and docs/figures.

bin/docs --publish=runs/studies/NAME
  Takes over the numbers of a finished study of this package, for --readme.
"""
_SETTINGS = (
    Setting("output_dir", str, str(SOURCES / "site"), "where to build the site"),
    Setting("links", bool, False, "only the addresses"),
    Setting("readme", bool, False, "only tables and verdicts"),
    Setting("publish", str, None, "a study's directory", placeholder="DIR"),
)


def is_free(output_dir):
    """Whether there is nothing but an older site, if anything."""
    if not output_dir.exists():
        return True
    if not output_dir.is_dir():
        return False
    # Sphinx leaves it in what it builds.
    return not any(output_dir.iterdir()) or (output_dir / ".buildinfo").exists()


def build(builder, output_dir):
    """Has Sphinx build the site, in the place of an older one; gives its exit code."""
    with tempfile.TemporaryDirectory() as folder:
        built = pathlib.Path(folder, "site")  # MyST-NB leaves notebooks beside it.
        options = ["-W", "--keep-going", "-q", "-T", "-b", builder]
        options += ["-d", f"{folder}/doctrees", "-j", "auto"]
        code = sphinx_build.build_main([*options, str(SOURCES), str(built)])
        if built.exists():
            shutil.rmtree(output_dir)
            shutil.copytree(built, output_dir)
    return code


def with_blocks(text, blocks):
    """Returns a page with each marked part replaced by the block of that name."""
    for name, block in blocks.items():
        begins, ends = f"<!-- bin/docs --readme writes {name}. -->", f"<!-- {name} ends"
        before, found, rest = text.partition(begins)
        if found:
            after = rest.partition(ends)[2]
            text = f"{before}{begins}\n{block}\n{ends}{after}"
    return text


@command_line.command
def main(argv, stop):
    """Builds the site where the flags say."""
    stop.say(lambda: "there is no new site")
    given = flags.FlagValues()
    command_line.define_flags(given, _SETTINGS)
    command_line.parse(argv, given, _USAGE)
    if given.publish:
        try:
            evidence.publish(given.publish)
        except ValueError as error:
            command_line.fail(error, command=_COMMAND)
        return
    if given.readme:
        evidence.write_map()
        blocks = verdicts.blocks()
        for page in WRITTEN:
            files.write_text(page, with_blocks(page.read_text("utf-8"), blocks))
        return
    if given.links:
        with tempfile.TemporaryDirectory() as report:
            if build("linkcheck", pathlib.Path(report)):
                raise SystemExit(1)
        return
    output_dir = pathlib.Path(given.output_dir or SOURCES / "site")
    if not is_free(output_dir):
        command_line.fail(
            f"--output_dir={output_dir} has something else in it; give another one.",
            command=_COMMAND,
        )
    try:
        files.make_directory(output_dir, "output_dir")
    except SettingError as error:
        command_line.fail(error, command=_COMMAND)
    if build("html", output_dir):
        raise SystemExit(1)
    print(output_dir / "index.html")


if __name__ == "__main__":
    # Sphinx makes millions of nodes; looking for cycles among them takes a quarter of
    # the time. Without that it needs 3.5 GB of memory.
    gc.disable()
    command_line.execute(main, STOP)
