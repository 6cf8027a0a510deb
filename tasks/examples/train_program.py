"""Trains on digits in a program of TFF's, with its managers of states and metrics.

    bin/launch -m tasks.examples.train_program --process=fedalign --output_dir=DIR

The settings are those of the method's paper, as in `bin/run`, and one seed leads to the
same weights. The same command again resumes. DIR gets `training.csv`, `evaluation.csv`,
TensorBoard events, `final_weights.npz` (the trainable variables, then the others), and
what TFF saves: `program_state/`, `evaluation_state/`, `models/`.

  --process=NAME            a method, or a sum of methods [fedalign]
  --output_dir=DIR          directory to write to and to resume from
  --seed=N                  everything random follows from it [0]
  --total_rounds=N          these three instead of the paper's
  --clients_per_round=N
  --local_epochs=N
  --rounds_per_evaluation=N test so often [1]
  --verbosity=0             what TFF and its LoggingReleaseManager say
"""

import asyncio
import dataclasses
import json
import pathlib
import sys

import tasks
from tff_reg import data, runtime, training as training_lib
from tff_reg.experiment import command_line, files, interruption
from tff_reg.lazy import flags, np, tff
from tff_reg.methods import catalogue

_COMMAND = "tasks.examples.train_program"
_OF_PAPER = ("total_rounds", "clients_per_round", "local_epochs")
_EVALUATION_CLIENTS = 4


def define_flags():
    """The flags above, none of them given yet."""
    given = flags.FlagValues()
    command_line.define_verbosity(given)
    flags.DEFINE_string("process", "fedalign", "Method, or a sum of methods.", given)
    flags.DEFINE_string("output_dir", None, "Directory.", given)
    flags.DEFINE_integer("seed", 0, "Seed.", 0, flag_values=given)
    flags.DEFINE_integer("rounds_per_evaluation", 1, "So often.", 1, flag_values=given)
    for name in _OF_PAPER:
        flags.DEFINE_integer(name, None, "Not the paper's.", 1, flag_values=given)
    return given


def choose_settings(name, given):
    """The settings of a process's paper with those that were given.

    Raises:
      ValueError: If there is no such process, or there are too few clients.
    """
    settings = dataclasses.replace(catalog.settings(name), **given)
    if settings.clients_per_round > settings.num_clients:
        raise ValueError(
            f"--clients_per_round={settings.clients_per_round}: there are only"
            f" {settings.num_clients} clients."
        )
    return settings


def prepare_directory(output_dir, settings, **others):
    """Writes `settings.json`, unless a training with other settings is there already.

    Raises:
      ValueError: If there is.
    """
    output_dir.mkdir(parents=True, exist_ok=True)
    recorded = {**dataclasses.asdict(settings), **others, "total_rounds": None}
    path = output_dir / "settings.json"
    if path.exists() and json.loads(path.read_text()) != recorded:
        raise ValueError(
            f"--output_dir: {path} has other settings; give them, or another directory."
        )
    files.write_text(path, json.dumps(recorded, indent=2))


def build(name, settings, seed):
    """The task, and the processes of training and evaluation.

    Raises:
      ValueError: If clients have to remember something, which programs cannot.
    """
    task = tasks.build(
        "digits",
        partition=settings.partition,
        concentration=settings.concentration,
        num_clients=settings.num_clients,
        projector=settings.projector,
        seed=seed,
    )
    training = training_lib.build_from_settings(
        name,
        task.model_fn,
        settings,
        strengths={},
        client_preprocess_fn=task.augment_fn,
        example_dtype="uint8",
    )
    if isinstance(training, training_lib.StatefulLearningProcess):
        raise ValueError(
            f"--process={name}: its clients remember something, for which a program has"
            " no place; bin/run trains it."
        )
    evaluation = tff.learning.algorithms.build_fed_eval(
        training_lib.adapt_model_fn(task.model_fn, catalogue.build(name, {}))
    )
    return task, training, evaluation


def build_test_source(task, seed):
    """The test data, dealt out to clients who evaluate in batches of 64."""
    x, y = task.test_arrays()
    clients = data.ArrayClientData(
        x, y, np.array_split(np.arange(len(y)), _EVALUATION_CLIENTS)
    )

    def dataset_fn(client_id, key):
        return clients.batched_dataset(
            client_id, key, 64, augment_fn=lambda images, key: task.normalize_fn(images)
        )

    return data.SeededDataSource(clients, seed=seed, client_dataset_fn=dataset_fn)


def train(task, training, evaluation, settings, seed, output_dir, evaluation_period=1):
    """Runs the rounds that are left, tests the models, writes the weights."""
    # It loads TFF.
    from tff_reg.experiment import programs

    def metrics_manager(name):
        return tff.program.GroupingReleaseManager([
            programs.LineReleaseManager(name),
            tff.program.LoggingReleaseManager(),
            tff.program.CSVFileReleaseManager(
                output_dir / f"{name}.csv", key_fieldname="round_num"
            ),
            tff.program.TensorBoardReleaseManager(output_dir / name),
        ])

    source = data.SeededDataSource(task.client_data, seed=seed)
    states = tff.program.FileProgramStateManager(output_dir / "program_state")
    with tff.framework.get_context_stack().install(runtime.program_context()):
        asyncio.run(
            tff.learning.programs.train_model(
                train_process=training,
                train_data_source=source,
                train_per_round_clients=settings.clients_per_round,
                train_total_rounds=settings.total_rounds,
                program_state_manager=states,
                model_output_manager=tff.program.SavedModelFileReleaseManager(
                    output_dir / "models"
                ),
                train_metrics_manager=metrics_manager("training"),
                evaluation_manager=programs.EvaluationManager(
                    evaluation,
                    build_test_source(task, seed),
                    cohort_size=_EVALUATION_CLIENTS,
                    metrics_manager=metrics_manager("evaluation"),
                    root_dir=output_dir / "evaluation_state",
                ),
                evaluation_periodicity=evaluation_period,
            )
        )
    # A program that was killed after its last round releases no model any more, but
    # its state is there.
    start = tff.learning.programs.ProgramState(
        training.initialize(), 0, 0, source.iterator()
    )
    last, _ = asyncio.run(states.load_latest(start))
    weights = training.get_model_weights(last.state)
    arrays = [*weights.trainable, *weights.non_trainable]
    np.savez(output_dir / "final_weights.npz", *arrays)


@command_line.command(__doc__)
def main(argv, stop):
    """Trains as the flags say."""
    stop.say(lambda: "the same command goes on with it")
    given = define_flags()
    command_line.parse_own(argv, given, command=_COMMAND)
    command_line.be_quiet(given)
    of_paper = {name: given[name].value for name in _OF_PAPER if given[name].value}
    try:
        if not given.output_dir:
            raise ValueError("--output_dir is missing; give a directory.")
        settings = choose_settings(given.process, of_paper)
        output_dir = pathlib.Path(given.output_dir)
        prepare_directory(
            output_dir, settings, process=given.process, seed=given.seed
        )
    except (ValueError, OSError) as error:
        command_line.fail(error, command=_COMMAND)
    with runtime.running("in_process"):
        try:
            built = build(given.process, settings, given.seed)
        except ValueError as error:
            command_line.fail(error, command=_COMMAND)
        train(*built, settings, given.seed, output_dir, given.rounds_per_evaluation)
    print(f"In {output_dir}: {', '.join(sorted(p.name for p in output_dir.iterdir()))}")


if __name__ == "__main__":
    STOP = interruption.Interruption()
    STOP.take_over()
    command_line.execute(main, STOP)
