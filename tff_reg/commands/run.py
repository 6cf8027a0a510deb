"""The command line of `tff_reg.experiment.run`: `bin/run --process=fedalign`."""

import functools
import shlex

from absl import flags

from tff_reg import experiment
from tff_reg.commands import command_line
from tff_reg.data import partition_report
from tff_reg.experiment.config import identity
from tff_reg.experiment.config.task_settings import TaskSettings
from tff_reg.experiment.report import comparison, evidence, protocol
from tff_reg.experiment.rounds import description, runs
from tff_reg.settings import KEY, Setting, as_text, tagged
from tff_reg.tasks import studies

_USAGE = """\
bin/run --process=NAME[+NAME...] [flags]
bin/run --advise [flags]

Trains a model by federated learning and writes metrics, plot, weights and checkpoints
to a directory. The same command again resumes. Settings that are not given come from
the method's paper or code, the task, or the brackets below, in this order.
"""
_ADVISE = Setting(
    "advise",
    bool,
    False,
    "trains nothing: says which families of methods gained on FedAvg where clients"
    " differed most nearly as in this split",
)
# Settings of a run that the advised comparison has of its own.
_NOT_ADVISED = ("process", "seed", "output_dir", "overwrite")


def _advice(requested):
    """Returns lines on the measured condition nearest to that of a run's settings."""
    asked = experiment.RunConfig.of({"process": "fedavg", **requested})
    config = protocol.asked(asked).resolved()
    report = partition_report.of_task(
        runs.build_task(config), config.part(TaskSettings)
    )
    rows = studies.published("", "map.csv")
    if config.task == "digits":  # Other data are like none of the map's.
        rows = [row for row in rows if row["task"] == config.task]
    late = config.deadline is not None or config.over_select > 1 or config.attack_share
    kept = {n: v for n, v in requested.items() if n not in _NOT_ADVISED}
    return evidence.advice(
        evidence.Condition.of(report, config),
        rows,
        [f"--{name}={as_text(value)}" for name, value in kept.items()],
        bool(late),
    )


@command_line.command
def main(argv, stop):
    """Carries out the run that the flags describe."""
    given = flags.FlagValues()
    key, words = tagged(experiment.RunConfig, KEY), command_line.words_of(argv)
    command_line.define_flags(given, key=key, words=words)
    command_line.define_flags(given, [_ADVISE], key=[_ADVISE.name])
    command_line.parse(argv, given, _USAGE)
    verbose = command_line.be_quiet(given)
    try:
        requested = command_line.requested(given)
        if given.advise:
            print(*_advice(requested), sep="\n")
            return
        asked = experiment.RunConfig.of(requested)
        checked = runs.CheckedRun(asked)
        where = checked.config.output_dir
        summary = checked.refresh_summary()
        if summary is None:
            stop.say(functools.partial(description.resumption, checked.config))
            summary = checked.run(stop=stop).summary
            comparison.report_run(where, shlex.join(["bin/run", *argv]))
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
