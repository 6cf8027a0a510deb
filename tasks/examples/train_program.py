"""Trains on digits in a program of TFF's, with its managers of states and metrics.

    bin/launch -m tff_reg.tasks.examples.train_program --output_dir=DIR [flags]

The settings are those of the method's paper, as in `bin/run`, and one seed leads to the
same weights. The same command again resumes. DIR gets `training.csv`, `evaluation.csv`,
TensorBoard events, `final_weights.npz` (the trainable variables, then the others), and
what TFF saves: `program_state/`, `evaluation_state/`, `models/`.
"""

import asyncio
import json
import pathlib

from absl import flags

from tff_reg import (
    data,
    experiment,
    files,
    interruption,
    lazy,
    runtime,
    training as training_lib,
)
from tff_reg.commands import command_line
from tff_reg.experiment.config import identity as identity_lib, run_config as config_lib
from tff_reg.experiment.rounds import runs
from tff_reg.lazy import np, tff
from tff_reg.settings import SettingError

programs = lazy.module("tff_reg.experiment.rounds.programs")

_COMMAND = "tff_reg.tasks.examples.train_program"
_EVALUATION_CLIENTS = 4
# The settings of a run that have a flag here.
_TAKEN = (
    "process",
    "output_dir",
    "seed",
    "total_rounds",
    "clients_per_round",
    "local_epochs",
    "rounds_per_evaluation",
)


def read_config(argv):
    """Returns the configuration that the flags give.

    Raises:
      SettingError: If the flags give no valid configuration.
    """
    given = flags.FlagValues()
    taken = [each for each in config_lib.listed() if each.name in _TAKEN]
    command_line.define_flags(given, [*taken, command_line.VERBOSITY], key=_TAKEN)
    command_line.parse(argv, given, f"{_COMMAND}\n\n{__doc__}")
    command_line.be_quiet(given)
    asked = {name: given[name].value for name in _TAKEN}
    if not asked["output_dir"]:
        raise SettingError("output_dir", None, "it is missing; give a directory.")
    asked["process"] = asked["process"] or "fedalign"
    return experiment.RunConfig.of(asked).resolved()


def prepare_directory(config):
    """Writes `settings.json`, unless a training with other settings is there already.

    Args:
      config: The `experiment.ResolvedConfig`.

    Returns:
      The directory.

    Raises:
      SettingError: If there is one, or the directory is not writable.
    """
    output_dir = files.make_directory(config.output_dir, "output_dir")
    settings = config.dump()
    recorded = identity_lib.identity(settings)
    path = output_dir / "settings.json"
    if path.exists() and identity_lib.differences(
        json.loads(path.read_text()), recorded, ("total_rounds",)
    ):
        reason = "a training with other settings is there; give another directory."
        raise SettingError("output_dir", output_dir, reason)
    files.write_text(path, json.dumps(recorded, indent=2))
    return output_dir


def build(config):
    """Builds the task, and the processes of training and evaluation.

    Raises:
      SettingError: If clients have state between rounds, which programs cannot keep.
    """
    task = runs.build_task(config)
    training = runs.build_process(config, task)
    if isinstance(training, training_lib.StatefulLearningProcess):
        reason = (
            "its clients remember something, for which a program has no place; bin/run"
            " trains it."
        )
        raise SettingError("process", config.process, reason)
    return task, training, training_lib.build_evaluation(training)


def build_test_source(task, seed):
    """Returns the test data, divided among clients that evaluate in batches of 64."""
    x, y = task.test_arrays()
    clients = data.ArrayClientData(
        x, y, np.array_split(np.arange(len(y)), _EVALUATION_CLIENTS)
    )

    def dataset_fn(client_id, key):
        return clients.batched_dataset(
            client_id, key, 64, augment_fn=lambda images, key: task.normalize_fn(images)
        )

    return data.SeededDataSource(clients, seed=seed, client_dataset_fn=dataset_fn)


async def train(config, task, training, evaluation):
    """Runs the remaining rounds, tests the models, writes the weights."""
    output_dir = pathlib.Path(config.output_dir)

    def metrics_manager(name):
        return tff.program.GroupingReleaseManager(
            [
                programs.LineReleaseManager(name),
                tff.program.LoggingReleaseManager(),
                tff.program.CSVFileReleaseManager(
                    output_dir / f"{name}.csv", key_fieldname="round_num"
                ),
                tff.program.TensorBoardReleaseManager(output_dir / name),
            ]
        )

    source = data.SeededDataSource(task.client_data, seed=config.seed)
    states = tff.program.FileProgramStateManager(output_dir / "program_state")
    with tff.framework.get_context_stack().install(runtime.program_context()):
        await tff.learning.programs.train_model(
            train_process=training,
            train_data_source=source,
            train_per_round_clients=config.clients_per_round,
            train_total_rounds=config.total_rounds,
            program_state_manager=states,
            model_output_manager=tff.program.SavedModelFileReleaseManager(
                output_dir / "models"
            ),
            train_metrics_manager=metrics_manager("training"),
            evaluation_manager=programs.EvaluationManager(
                evaluation,
                build_test_source(task, config.seed),
                cohort_size=_EVALUATION_CLIENTS,
                metrics_manager=metrics_manager("evaluation"),
                root_dir=output_dir / "evaluation_state",
            ),
            evaluation_periodicity=config.rounds_per_evaluation,
        )
    # A program that was killed after its last round releases no model, but has saved
    # its state.
    start = tff.learning.programs.ProgramState(
        training.initialize(), 0, 0, source.iterator()
    )
    last, _ = await states.load_latest(start)
    weights = training.get_model_weights(last.state)
    arrays = [*weights.trainable, *weights.non_trainable]
    np.savez(output_dir / "final_weights.npz", *arrays)


@command_line.command
def main(argv, stop):
    """Trains as the flags say."""
    stop.say(lambda: "the same command goes on with it")
    try:
        config = read_config(argv)
        output_dir = prepare_directory(config)
        with runtime.running("in_process"):
            asyncio.run(train(config, *build(config)))
    except (ValueError, OSError) as error:
        command_line.fail(error, command=_COMMAND)
    print(f"In {output_dir}: {', '.join(sorted(p.name for p in output_dir.iterdir()))}")


if __name__ == "__main__":
    STOP = interruption.Interruption()
    STOP.take_over()
    command_line.execute(main, STOP)
