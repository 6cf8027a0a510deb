"""Trains a federated model: `bin/run --process=fedalign`; `bin/run --help` says more.

The thin end of `tff_reg.experiment.run`.
"""

from tff_reg import experiment
from tff_reg.commands import command_line
from tff_reg.experiment.config import provenance
from tff_reg.experiment.rounds import description
from tff_reg.lazy import flags


@command_line.command(command_line.help_of_run)
def main(argv, stop):
    """Trains as the flags say."""
    given = flags.FlagValues()
    command_line.define_flags(given)
    command_line.parse(argv, given)
    verbose = command_line.be_quiet(given)
    try:
        config = experiment.RunConfig.of(command_line.requested(given)).resolved()
        summary = experiment.finished(config)
        if summary is None:
            summary = experiment.run(config, stop=stop).summary
        else:
            print(f"{config.output_dir} is finished already; --overwrite starts anew.")
            made = experiment.RunDirectory(config.output_dir).config or {}
            if changed := provenance.change(made):
                print(changed)
    except (experiment.TrainingError, experiment.StateMismatchError, OSError) as error:
        if verbose or isinstance(error, BrokenPipeError):
            raise
        command_line.fail(error, exit_code=1)
    except ValueError as error:
        command_line.fail(error)
    print(*description.result(summary, config.output_dir), sep="\n", flush=True)
