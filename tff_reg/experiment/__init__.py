"""Experiments: configs, rounds, evaluation, checkpoints, metrics files, the plot.

    from tff_reg import experiment

    config = experiment.RunConfig(process="fedalign", total_rounds=5)
    result = experiment.run(config)

does what `bin/run` does. For a process and data of one's own:

    evaluate = experiment.CentralEvaluation(process.model_fn, x_test, y_test)
    result = experiment.train(
        process, client_data, total_rounds=20, clients_per_round=4,
        evaluate=evaluate, output_dir="runs/mine")

Importing this package imports neither TensorFlow nor TFF.
"""

from tff_reg.experiment.config.run_config import ResolvedConfig, RunConfig
from tff_reg.experiment.report.comparison import compare
from tff_reg.experiment.report.finished_runs import ComparisonError
from tff_reg.experiment.rounds import progress
from tff_reg.experiment.rounds.callbacks import (
    Callback,
    EarlyStopping,
    LiveCurve,
    Run,
)
from tff_reg.experiment.rounds.directory import DirectoryError, RunDirectory
from tff_reg.experiment.rounds.evaluation import CentralEvaluation
from tff_reg.experiment.rounds.loop import Rounds, TrainingError, train
from tff_reg.experiment.rounds.process_state import StateMismatchError
from tff_reg.experiment.rounds.result import RunResult
from tff_reg.experiment.rounds.runs import run

__all__ = [
    "Callback",
    "CentralEvaluation",
    "ComparisonError",
    "DirectoryError",
    "EarlyStopping",
    "LiveCurve",
    "ResolvedConfig",
    "Rounds",
    "Run",
    "RunConfig",
    "RunDirectory",
    "RunResult",
    "StateMismatchError",
    "TrainingError",
    "compare",
    "progress",
    "run",
    "train",
]
