"""Exports a run's model as a SavedModel: `bin/export`.

The command line of `tff_reg.experiment.report.export`.
"""

from absl import flags, logging

from tff_reg import quiet
from tff_reg.commands import command_line, several
from tff_reg.experiment.report import export, finished_runs, trained
from tff_reg.settings import Setting

_COMMAND = "bin/export"
_USAGE = """\
bin/export --run_dir=DIR --output=PATH [--client=NAME]

Writes the model of a run as a SavedModel, which TensorFlow loads without this package.
It maps the task's images as stored to logits; preprocessing is included. In PATH are
also weights.npz, the weights by name, and metadata.json, the names of the classes.
"""
_SETTINGS = (
    Setting("run_dir", str, None, "directory of the run"),
    Setting("output", str, None, "directory to write; must not exist"),
    Setting("round_num", int, None, "round of the checkpoint; the newest by default"),
    Setting(
        "client", str, None, "client whose own model it is: name, or number from 0"
    ),
    finished_runs.WEIGHTS,
)


def fail(message, exit_code=2):
    """Prints an error in one line and ends the command."""
    command_line.fail(message, exit_code=exit_code, command=_COMMAND)


@command_line.command
def main(argv, stop):
    """Exports the model of the run that the flags name."""
    stop.say(lambda: "nothing was written")
    given = flags.FlagValues()
    command_line.define_flags(given, _SETTINGS)
    command_line.parse(argv, given, _USAGE)
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
            client=given.client,
        )
        metadata = export.export(run, given.output)
    except ValueError as error:
        fail(error)
    except OSError as error:
        fail(error, exit_code=1)
    if run.client is not None:
        print(
            f"{given.output}: the model of {run.client} after round {run.round_num};"
            f" {metadata}"
        )
        return
    which = {
        "server": f"the model after round {run.round_num}",
        "all_clients": f"the mean of all clients' models after round {run.round_num}",
        "best": "the model of the best round",
    }
    print(f"{given.output}: {which[run.kind]}; {metadata}")
