"""A training: a process, its clients' data and its rounds; `train` runs it."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Optional, ParamSpec, TypeVar, Union

from tff_reg import runtime
from tff_reg.experiment.rounds import (
    callbacks as callbacks_lib,
    directory as directory_lib,
    loop,
    progress as progress_lib,
    round_work,
)
from tff_reg.experiment.rounds.callbacks import Callback, Row
from tff_reg.experiment.rounds.loop import RunResult

if TYPE_CHECKING:
    from tff_reg.training.composition import Process

A = TypeVar("A")
P = ParamSpec("P")
R = TypeVar("R")


@dataclasses.dataclass(frozen=True)
class Training:
    """The rounds of a learning process, or the rest of them.

    With an `output_dir`, a training that was stopped (by Ctrl-C, a notebook's
    interrupt, an exception, `kill -9`) resumes when run again, with the same bytes.

    Attributes:
      process: Any `tff.learning.templates.LearningProcess`, or a
        `tff_reg.training.StatefulLearningProcess`, whose clients' states are kept in
        `output_dir`, or in memory without one. If its server keeps the mean of all
        clients' last models, that mean is evaluated and written, too.
      client_data: Has `client_ids` and `whole_client_dataset(client_id, key)`, like
        `tff_reg.data.ArrayClientData`.
      total_rounds: Number of rounds of the finished run.
      clients_per_round: Clients sampled per round, without replacement.
      client_sampling: 'fixed' draws exactly `clients_per_round` clients;
        'independent' includes each client with probability clients_per_round / (number
        of clients), and at least one client.
      sample_fn: Samples the clients in place of `client_sampling`: called with the
        round (from 1) and all clients' ids, it returns the ids of the cohort. Its
        result may depend on its arguments only, since a resumed run does not call it
        for the rounds done. `config.json` has its digest: a run is not resumed with
        another function.
      seed: Seed of the sampling and of the clients' keys.
      evaluate: Function from `tff.learning.models.ModelWeights` to `loss` and
        `accuracy`, such as a `CentralEvaluation`; None to train without evaluation.
      rounds_per_evaluation: Number of rounds between two evaluations; the last round
        is always evaluated.
      rounds_per_checkpoint: Number of rounds between two checkpoints; there is also one
        after the last round, and when `on_round` raises.
      keep_best: Write the server's model after the round with the best test accuracy
        to `best_weights.npz`; the first of several equal ones.
      client_dataset_fn: Function of a client's id and its key for the round (int64 [2])
        that returns its `tf.data.Dataset`; None for `client_data.whole_client_dataset`.
      output_dir: Directory to resume from and to write to, or its `RunDirectory`; None
        writes nothing.
      overwrite: Delete the run in `output_dir` first.
      settings: Further JSON values by name, which are recorded in `config.json` and
        compared with it when a run is resumed.
      title: Title of `accuracy.png`.
      subtitle: The line below the title.
      weight_names: Names of the trainable and the other variables, for
        `final_weights.npz` and its like; None for `trainable/0` and so on.
      progress: Shows every round; None for a bar on a terminal or in a notebook, and
        lines elsewhere. `progress.Silence()` shows nothing.
      callbacks: Called at the start, after every round and at the end, in this order
        and after the run's own; see `experiment.Callback`.
      on_round: Called with the row of every round, in order, as in `RunResult.rows`,
        including the rounds of earlier processes. An exception that it raises stops the
        run; call again to resume.
    """

    process: Process
    client_data: Any
    total_rounds: int
    clients_per_round: int
    seed: int = 0
    evaluate: Optional[round_work.EvaluationFn] = None
    rounds_per_evaluation: int = 1
    rounds_per_checkpoint: int = 1
    client_dataset_fn: Optional[round_work.ClientDatasetFn] = None
    output_dir: Union[str, pathlib.Path, directory_lib.RunDirectory, None] = None
    overwrite: bool = False
    client_sampling: str = "fixed"
    sample_fn: Optional[round_work.SampleFn] = None
    keep_best: bool = False
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    title: str = ""
    subtitle: str = ""
    weight_names: Optional[callbacks_lib.WeightNames] = None
    progress: Optional[progress_lib.Progress] = None
    callbacks: Sequence[Callback] = ()
    on_round: Optional[Callable[[Row], Any]] = None

    def __post_init__(self):
        """Checks the arguments; touches nothing.

        Raises:
          TypeError: If one is of another kind.
          ValueError: If a number is out of range.
        """
        kinds = {
            "process": ("next", "tff_reg.training.build('fedavg', model_fn)"),
            "client_data": ("client_ids", "a tff_reg.data.ArrayClientData"),
        }
        for name, (attribute, example) in kinds.items():
            given = getattr(self, name)
            if not hasattr(given, attribute):
                kind = type(given).__name__
                raise TypeError(f"{name} is a {kind}, but must be like {example}.")
        data_fn = "whole_client_dataset"
        if self.client_dataset_fn is None and not hasattr(self.client_data, data_fn):
            raise TypeError(
                f"client_data is a {type(self.client_data).__name__} without {data_fn}:"
                " give a tff_reg.data.ArrayClientData, or a client_dataset_fn, such as"
                " lambda client_id, key:"
                " client_data.create_tf_dataset_for_client(client_id)."
            )
        for name, number in self.numbers().items():
            if isinstance(number, bool) or not isinstance(number, int) or number < 1:
                raise ValueError(
                    f"{name} is {number!r}; it must be a whole number of at least 1."
                )
        if self.client_sampling not in ("fixed", "independent"):
            raise ValueError(
                f"client_sampling is {self.client_sampling!r}; it must be fixed or"
                " independent."
            )
        for each in self.callbacks:
            if not isinstance(each, callbacks_lib.Callback):
                kind = each if isinstance(each, type) else type(each)
                raise TypeError(
                    f"callbacks has {kind.__name__}, which is no object of a"
                    " tff_reg.experiment.Callback; sub-class it, and give an object."
                )
        round_work.check_sample_fn(self.sample_fn)
        if self.sample_fn is not None and self.client_sampling != "fixed":
            raise ValueError(
                "client_sampling and sample_fn both sample the clients; give one."
            )
        num_clients = len(self.client_data.client_ids)
        if self.clients_per_round > num_clients:
            raise ValueError(
                f"clients_per_round is {self.clients_per_round}, but there are only"
                f" {num_clients} clients."
            )

    def numbers(self) -> dict[str, int]:
        """Returns the numbers of rounds and clients by name."""
        return {
            "total_rounds": self.total_rounds,
            "clients_per_round": self.clients_per_round,
            "rounds_per_evaluation": self.rounds_per_evaluation,
            "rounds_per_checkpoint": self.rounds_per_checkpoint,
        }

    def run(self) -> RunResult:
        """Does the rounds.

        Returns:
          The result.

        Raises:
          DirectoryError: If `output_dir` holds something else, or a run with other
            settings.
          StateMismatchError: If the state there does not fit this process.
          TrainingError: If a round fails, from the error of the process.
        """
        rounds = loop.Rounds(self)
        with runtime.outside_programs(), contextlib.closing(rounds.rows()) as rows:
            for row in rows:
                if self.on_round is not None:
                    self.on_round(row)
        return rounds.result


def with_arguments_of(
    kind: Callable[P, A],
) -> Callable[[Callable[[A], R]], Callable[P, R]]:
    """Decorator that gives a function of a dataclass the dataclass's arguments."""

    def decorate(function: Callable[[A], R]) -> Callable[P, R]:
        def called(*args: P.args, **kwargs: P.kwargs) -> R:
            return function(kind(*args, **kwargs))

        functools.update_wrapper(called, function)
        # `help` shows the arguments of `kind`.
        vars(called)["__wrapped__"] = kind
        return called

    return decorate


@with_arguments_of(Training)
def train(training: Training) -> RunResult:
    """Runs the rounds of a learning process, or the rest of them.

        result = experiment.train(
            process, client_data, total_rounds=20, clients_per_round=4)

    The arguments are the attributes of `Training`.

    Returns:
      The result.

    Raises:
      TypeError: If there is no such argument, one is missing, or is of another kind.
      ValueError: If a number is out of range.
      DirectoryError: If `output_dir` holds something else, or a run with other
        settings.
      StateMismatchError: If the state there does not fit this process.
      TrainingError: If a round fails.
    """
    return training.run()
