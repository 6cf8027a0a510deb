"""Experiments: rounds, evaluation, checkpoints, metrics files, the plot.

    from tff_reg import experiment

    evaluate = experiment.CentralEvaluation(model_fn, x_test, y_test)
    result = experiment.train(
        process, client_data, total_rounds=20, clients_per_round=4,
        evaluate=evaluate, output_dir="runs/mine")

`await experiment.train_async(...)` is the same for an event loop.

Importing this package imports neither TensorFlow nor TFF.
"""

from tff_reg.experiment.asynchronous import train_async
from tff_reg.experiment.comparison import ComparisonError, compare
from tff_reg.experiment.directory import DirectoryError, RunDirectory
from tff_reg.experiment.evaluation import CentralEvaluation
from tff_reg.experiment.loop import RunResult, TrainingError, train
from tff_reg.experiment.state_file import StateMismatchError

__all__ = [
    "CentralEvaluation",
    "ComparisonError",
    "DirectoryError",
    "RunDirectory",
    "RunResult",
    "StateMismatchError",
    "TrainingError",
    "compare",
    "train",
    "train_async",
]
