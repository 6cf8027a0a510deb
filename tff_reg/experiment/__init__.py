"""Experiments: configs, rounds, evaluation, checkpoints, metrics files, the plot.

    from tff_reg import experiment

    config = experiment.RunConfig(process="fedalign", total_rounds=5)
    result = experiment.run(config)

does what `bin/run` does. For a process and data of one's own:

    evaluate = experiment.CentralEvaluation(process.model_fn, x_test, y_test)
    result = experiment.train(
        process, client_data, total_rounds=20, clients_per_round=4,
        evaluate=evaluate, output_dir="runs/mine")

`await experiment.run_async(...)` and `train_async(...)` are the same for an event loop.

Importing this package imports neither TensorFlow nor TFF.
"""

from tff_reg import lazy
from tff_reg.experiment.config.run_config import ResolvedConfig, RunConfig
from tff_reg.experiment.report.comparison import compare
from tff_reg.experiment.report.finished_runs import ComparisonError
from tff_reg.experiment.report.trained import predict
from tff_reg.experiment.rounds import progress
from tff_reg.experiment.rounds.asynchronous import train_async
from tff_reg.experiment.rounds.callbacks import Callback, Run
from tff_reg.experiment.rounds.directory import DirectoryError, RunDirectory
from tff_reg.experiment.rounds.evaluation import CentralEvaluation
from tff_reg.experiment.rounds.live_curve import LiveCurve
from tff_reg.experiment.rounds.loop import RunResult
from tff_reg.experiment.rounds.round_work import TrainingError
from tff_reg.experiment.rounds.runs import check, finished, prepare, run, run_async
from tff_reg.experiment.rounds.state_file import StateMismatchError
from tff_reg.experiment.rounds.training import Training, train

__all__ = [
    "Callback",
    "CentralEvaluation",
    "ComparisonError",
    "DirectoryError",
    "LiveCurve",
    "ResolvedConfig",
    "Run",
    "RunConfig",
    "RunDirectory",
    "RunResult",
    "StateMismatchError",
    "Training",
    "TrainingError",
    "check",
    "compare",
    "finished",
    "predict",
    "prepare",
    "progress",
    "run",
    "run_async",
    "train",
    "train_async",
]

# The modules of version 0.1, by the package that they are in now.
_MOVED = {
    "tff_reg": ("curves", "files", "tables"),
    "tff_reg.experiment.config": (
        *("provenance", "resolution", "scale", "strengths", "task_settings"),
    ),
    "tff_reg.experiment.report": (
        *("comparison", "export", "finished_runs", "protocol", "trained"),
    ),
    "tff_reg.experiment.rounds": (
        *("asynchronous", "checkpoints", "client_states", "description", "directory"),
        *("evaluation", "loop", "metrics", "privacy", "process_cache"),
        *("process_digest", "programs", "runs", "state_file", "summary"),
    ),
    "tff_reg.experiment.series": (
        *("artifact", "batch", "cluster_jobs", "jobs", "reproduction", "tuning"),
    ),
}

__getattr__ = lazy.moved(
    __name__,
    {name: f"{package}.{name}" for package, names in _MOVED.items() for name in names},
)
