"""Exports a run's model as a SavedModel; see `bin/export --help`.

The command line of `tff_reg.experiment.report.export`.
"""

from tff_reg import quiet
from tff_reg.commands import command_line, several
from tff_reg.experiment.report import export, finished_runs, trained
from tff_reg.lazy import flags, logging
from tff_reg.settings import Setting

_COMMAND = "bin/export"
_HELP = """\
bin/export --run_dir=DIR --output=PATH
  Writes the model of a run as a SavedModel, which TensorFlow loads without this
  package. It maps the task's images as stored to logits; preprocessing is included.

  --run_dir=DIR           directory of the run
  --output=PATH           directory to write; must not exist
  --round_num=N           round of the checkpoint to export [the newest]
  --weights=NAME          server (its model), all_clients (the mean of all clients' last
                          models) or best (the server's in the best round, of a run
                          with --keep_best) [server]

  In PATH are also weights.npz, the weights by name, and metadata.json, the names of the
  classes."""


_SETTINGS = (
    *(Setting(name, str, None, "see above") for name in ("run_dir", "output")),
    Setting("round_num", int, None, "of a checkpoint"),
    finished_runs.WEIGHTS,
)


def fail(message, exit_code=2):
    """Prints an error in one line and ends the command."""
    command_line.fail(message, exit_code=exit_code, command=_COMMAND)


@command_line.command(_HELP)
def main(argv, stop):
    """Exports the model of the run that the flags name."""
    stop.say(lambda: "nothing was written")
    given = flags.FlagValues()
    command_line.define_flags(given, _SETTINGS)
    command_line.parse(argv, given, command=_COMMAND)
    quiet.silence()
    logging.set_verbosity(logging.ERROR)
    try:
        for name in ("run_dir", "output"):
            command_line.needed(name, given[name].value)
        export.check(given.output)
        run = trained.load(
            given.run_dir,
            round_num=given.round_num,
            weights=several.value_of(given, finished_runs.WEIGHTS),
        )
        metadata = export.export(run, given.output)
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
