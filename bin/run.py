"""Trains a federated model: `bin/run --process=fedalign`; `bin/run --help` says more.

The thin end of `tff_reg.experiment`: what it does can all be done from Python.
"""

import contextlib
import functools
import pathlib
import sys

if __name__ == "__main__":
    sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
    from tff_reg.experiment import interruption

    # First of all, so that Ctrl-C is answered while the rest is imported, too.
    STOP = interruption.Interruption()
    STOP.take_over()

# pylint: disable=wrong-import-position
import tasks
from tff_reg import experiment, runtime, training
from tff_reg.experiment import (
    command_line,
    description,
    progress,
    settings,
    summary,
    trained,
)
from tff_reg.lazy import flags
from tff_reg.methods import catalogue


def chosen_runtime(values):
    """The runtime of a run, for the body of a `with` statement."""
    return runtime.running(
        values["runtime"],
        devices=values["devices"],
        clients_in_parallel=values["clients_in_parallel"],
        require_gpu=values["require_gpu"],
        workers=values["workers"],
    )


def prepare(values, directory, stop):
    """Loads the data and builds the process; returns what runs the rounds."""
    where = runtime.describe()
    print(where[0].upper() + where[1:], flush=True)
    from tff_reg.training import aggregators

    task = tasks.build(values["task"], **settings.task_settings(values))
    recorded = {**values, "class_names": list(task.class_names)}
    if not values["overwrite"]:
        directory.check_settings(recorded)
    x_test, y_test = task.test_arrays()
    methods = catalogue.build(values["process"], settings.strengths(values))
    evaluation = experiment.CentralEvaluation(
        training.adapt_model_fn(task.model_fn, methods),
        x_test,
        y_test,
        preprocess_fn=task.normalize_fn,
    )
    lines = description.header(
        values,
        num_train=sum(task.client_data.client_sizes),
        num_test=len(y_test),
        num_weights=evaluation.num_weights,
    )
    print(*lines, sep="\n", flush=True)
    process = trained.build_process(
        task,
        values,
        model_aggregator=aggregators.build_model_aggregator(
            **settings.aggregator_settings(values)
        ),
        metrics_aggregator=aggregators.build_metrics_aggregator(values["aggregator"]),
    )
    told = progress.for_this_output(values["total_rounds"])
    stop.before_exit(told.close)
    return functools.partial(
        experiment.train,
        process,
        task.client_data,
        total_rounds=values["total_rounds"],
        clients_per_round=values["clients_per_round"],
        seed=values["seed"],
        evaluate=evaluation,
        rounds_per_evaluation=values["rounds_per_evaluation"],
        rounds_per_checkpoint=values["rounds_per_checkpoint"],
        output_dir=directory,
        overwrite=values["overwrite"],
        settings=recorded,
        title=description.plot_title(values),
        subtitle=description.plot_subtitle(values),
        weight_names=evaluation.weight_names,
        progress=told,
    )


def print_result(results, directory):
    print(*description.result(results, directory.path), sep="\n", flush=True)


@command_line.command(functools.partial(command_line.help_of_run, tasks=tasks))
def main(argv, stop):
    """Trains as the flags say."""
    given = flags.FlagValues()
    command_line.define_flags(given)
    command_line.parse(argv, given)
    verbose = command_line.be_quiet(given)
    with contextlib.ExitStack() as stack:
        train(command_line.requested(given), verbose, stop, stack)


def train(requested, verbose, stop, stack):
    """Trains with what was requested; `stack` closes what it opens."""
    try:
        values = settings.resolve(
            requested,
            task_names=tasks.names(),
            task_defaults=tasks.defaults,
            recipe_settings=tasks.recipes.settings,
        )
        directory = experiment.RunDirectory(values["output_dir"])
        if not values["overwrite"]:
            directory.check_settings(values)
            finished = summary.refresh(directory, values)
            if finished is not None:
                print(f"{directory.path} is finished already; --overwrite starts anew.")
                print_result(finished, directory)
                return
            directory.check_rounds(values)
        stop.say(functools.partial(description.resumption, directory, values))
        if not values["synthetic_data"]:
            tasks.check_data(values["task"], values["data_dir"])
        stack.enter_context(chosen_runtime(values))
        stop.before_exit(runtime.shutdown)
        run = prepare(values, directory, stop)
    except ValueError as error:
        command_line.fail(error)
    except runtime.NoGpuError as error:
        command_line.fail(f"--require_gpu: {error}")
    except runtime.WorkerError as error:
        command_line.fail(error)
    try:
        result = run()
    except (experiment.TrainingError, experiment.StateMismatchError, OSError) as error:
        if verbose or isinstance(error, BrokenPipeError):
            raise
        command_line.fail(error, exit_code=1)
    print_result(result.summary, directory)


if __name__ == "__main__":
    command_line.execute(main, STOP)
