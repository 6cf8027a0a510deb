"""Measures how long things take: `bin/bench --help` says what and how.

The thin end of the folder benchmarks/.
"""

import pathlib
import sys

_ROOT = pathlib.Path(__file__).resolve().parent.parent
if __name__ == "__main__":
    sys.path.insert(0, str(_ROOT))
    from tff_reg import interruption

    # First of all, so that Ctrl-C is answered while the rest is imported, too.
    STOP = interruption.Interruption()
    STOP.take_over()

from absl import flags

from benchmarks.shared import subject
from tff_reg import files, quiet
from tff_reg.commands import command_line
from tff_reg.settings import SettingError

_COMMAND = "bin/bench"


def fail(message):
    """Ends the command with a line that says why, and exit code 2."""
    command_line.fail(message, command=_COMMAND)


def _usage():
    parts = [each.help for each in subject.find().values()]
    parts.append("All print a table, and --json writes what they found to a file.")
    return "\n\n".join(parts)


@command_line.command
def main(argv, stop):
    """Runs the benchmark that is named."""
    stop.say(lambda: "nothing was written")
    given = flags.FlagValues()
    flags.DEFINE_bool("quick", False, "Fewer rounds.", given)
    flags.DEFINE_string("json", None, "File to write to.", given)
    subjects = subject.find()
    # The first one's flags: a word after a flag may be that flag's value.
    named = [word for word in argv if word in subjects][:1]
    for name in named:
        subjects[name].define_flags(given)
    words = command_line.parse(argv, given, _usage(), takes_words=True)
    if not named or words != named:
        found = " ".join(words) or "nothing"
        fail(
            f"say what to measure, one of: {', '.join(subjects)} (found {found}); "
            "--help says what they do."
        )
    quiet.silence()
    try:
        if given.json:
            files.check_place(given.json, "json")
        subjects[name].run(given)
    except (SettingError, subject.RefusedError) as error:
        fail(error)


if __name__ == "__main__":
    command_line.execute(main, STOP)
