"""Writes a run's model for plain Keras: `bin/export --help` says how.

The thin end of `tff_reg.experiment.export`.
"""

from tff_reg import quiet
from tff_reg.experiment import command_line, export, trained
from tff_reg.lazy import flags, logging

_COMMAND = "bin/export"
_HELP = """\
bin/export --run_dir=DIR --format=keras|saved_model --output=PATH
  Writes the model of a run for plain Keras 2, without this package: from the task's
  images as they are stored to logits, the preprocessing inside.

  --run_dir=DIR           the run; its newest checkpoint is taken
  --format=NAME           keras: one file, PATH ends in .keras; saved_model: a directory
                          for tf.saved_model.load and tf_keras.models.load_model
  --output=PATH           where to; must not be there yet
  --round_num=N           of the checkpoint after that round
  --weights=NAME          server (its model), all_clients (the mean of all clients' last
                          models) or best (the server's in the best round, of a run
                          with --keep_best) [server]

  The names of the classes are in PATH.metadata.json (keras) or PATH/metadata.json."""


def fail(message, exit_code=2):
    """Ends the command with one line."""
    command_line.fail(message, exit_code=exit_code, command=_COMMAND)


@command_line.command(_HELP)
def main(argv, stop):
    """Exports the run that the flags say."""
    stop.say(lambda: "nothing was written")
    given = flags.FlagValues()
    flags.DEFINE_string("run_dir", None, "The run.", given)
    flags.DEFINE_string("format", None, "keras or saved_model.", given)
    flags.DEFINE_string("output", None, "File or directory to write.", given)
    flags.DEFINE_integer("round_num", None, "Round.", flag_values=given)
    flags.DEFINE_string("weights", "server", "Which weights.", given)
    command_line.parse(argv, given, command=_COMMAND)
    quiet.silence()
    logging.set_verbosity(logging.ERROR)
    try:
        for name in ("run_dir", "format", "output"):
            command_line.needed(name, given[name].value)
        export.check(given.format, given.output)
        run = trained.load(
            given.run_dir, round_num=given.round_num, weights=given.weights
        )
        metadata = export.export(run, given.format, given.output)
    except ValueError as error:
        fail(error)
    except OSError as error:
        fail(error, exit_code=1)
    which = {
        "server": f"the model after round {run.round_num}",
        "all_clients": f"the mean of all clients' models after round {run.round_num}",
        "best": "the model of the best round",
    }
    print(f"{given.output}: {which[run.kind]}; {metadata}")
