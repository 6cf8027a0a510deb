"""Trains a federated model: `bin/run --process=fedalign`; see `bin/run --help`.

The command line of `tff_reg.experiment.run`.
"""

from tff_reg import experiment
from tff_reg.commands import command_line, help_texts
from tff_reg.experiment.config import identity
from tff_reg.experiment.rounds import description, runs
from tff_reg.lazy import flags


@command_line.command(help_texts.help_of_run)
def main(argv, stop):
    """Carries out the run that the flags describe."""
    given = flags.FlagValues()
    command_line.define_flags(given)
    command_line.parse(argv, given)
    verbose = command_line.be_quiet(given)
    try:
        asked = experiment.RunConfig.of(command_line.requested(given))
        checked = runs.CheckedRun(asked)
        where = checked.config.output_dir
        summary = runs.summary_of(checked)
        if summary is None:
            summary = runs.carry_out(checked, stop=stop).summary
        else:
            print(f"{where} is finished already; --overwrite starts anew.")
            made = experiment.RunDirectory(where).config
            if changed := identity.other_code(made or {}):
                print(changed)
    except (experiment.TrainingError, experiment.StateMismatchError, OSError) as error:
        if verbose or isinstance(error, BrokenPipeError):
            raise
        command_line.fail(error, exit_code=1)
    except ValueError as error:
        command_line.fail(error)
    print(*description.result(summary, where), sep="\n", flush=True)
