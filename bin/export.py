"""Writes a run's model for plain Keras: `bin/export --help` says how.

The thin end of `tff_reg.experiment.export`.
"""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))

# pylint: disable=wrong-import-position
from tff_reg.experiment import interruption

if __name__ == "__main__":
    # First of all, so that Ctrl-C is answered while the rest is imported, too.
    _INTERRUPTION = interruption.Interruption()

from absl import app, flags, logging

import tasks
from tff_reg import quiet
from tff_reg.experiment import command_line, export, trained

_COMMAND = "bin/export"
_FLAGS = flags.FLAGS
_HELP = """\
bin/export --run_dir=DIR --format=keras|saved_model --output=PATH
  Writes the model of a run for plain Keras, without this package: from the task's
  images as they are stored to logits, the preprocessing inside.

  --run_dir=DIR           the run; its newest checkpoint is taken
  --format=NAME           keras: one file, PATH ends in .keras; saved_model: a directory
                          for tf.saved_model.load and tf.keras.models.load_model
  --output=PATH           where to; must not be there yet
  --round_num=N           of the checkpoint after that round

  The names of the classes are in PATH.metadata.json (keras) or PATH/metadata.json."""

flags.DEFINE_string("run_dir", None, "The run.")
flags.DEFINE_string("format", None, "keras or saved_model.")
flags.DEFINE_string("output", None, "File or directory to write.")
flags.DEFINE_integer("round_num", None, "Round of the checkpoint.")


def fail(message, exit_code=2):
    command_line.fail(message, exit_code=exit_code, command=_COMMAND)


def main(arguments):
    """Exports the run that the flags say."""
    if len(arguments) > 1:
        fail(f"{arguments[1]} is not a flag; --help lists them.")
    for name in ("run_dir", "format", "output"):
        if not _FLAGS[name].value:
            fail(f"--{name} is missing; --help says what it is.")
    quiet.silence()
    logging.set_verbosity(logging.ERROR)
    try:
        export.check(_FLAGS.format, _FLAGS.output)
        run = trained.load(_FLAGS.run_dir, tasks=tasks, round_num=_FLAGS.round_num)
        metadata = export.export(run, _FLAGS.format, _FLAGS.output)
    except ValueError as error:
        fail(error)
    except OSError as error:
        fail(error, exit_code=1)
    print(f"{_FLAGS.output}: the model after round {run.round_num}; {metadata}")


if __name__ == "__main__":
    app.define_help_flags()
    main(
        command_line.parse_own(sys.argv, help_text=_HELP, command=_COMMAND)
    )
