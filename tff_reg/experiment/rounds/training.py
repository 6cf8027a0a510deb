"""What a training consists of: process, client data, rounds. `loop.train` runs it.

All random draws are a function of the seed and the round, so a checkpoint needs only
the server state, the round and the metrics, and a run that was killed and started again
writes the same bytes as an uninterrupted one.
"""

from __future__ import annotations

import dataclasses
import functools
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Optional, ParamSpec, TypeVar, Union

from tff_reg import data
from tff_reg.data import sampling
from tff_reg.experiment.rounds import (
    callbacks as callbacks_lib,
    directory as directory_lib,
    progress as progress_lib,
    unequal_work,
)
from tff_reg.experiment.rounds.callbacks import Callback, Row
from tff_reg.settings import near_names

if TYPE_CHECKING:
    from tff_reg.experiment.rounds.client_evaluation import ClientResults
    from tff_reg.training.composition import Process

A = TypeVar("A")
P = ParamSpec("P")
R = TypeVar("R")
EvaluationFn = Callable[[Any], Mapping[str, float]]
ClientDatasetFn = Callable[[str, Any], Any]
SampleFn = Callable[[int, list[str]], Sequence[str]]


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
        for the rounds done. `config.json` has its name and that of
        `client_dataset_fn`: a run is not resumed with one of another name.
      unequal_work: Who of a cohort drops out, does part of the work or is late; None if
        all do all. Needs whole-client data.
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
        compared with it when a run is resumed. What the process was built from is so,
        too (of objects of other packages, type and plain attributes); of a process
        that `tff_reg.training` did not build, its hyperparameters.
      weight_names: Names of the trainable and the other variables, for
        `final_weights.npz` and its like; None for `trainable/0` and so on.
      progress: Shows every round; None for a bar on a terminal or in a notebook, and
        lines elsewhere. `progress.Silence()` shows nothing.
      client_evaluation: Measures each client's accuracy; None measures none.
      rounds_per_client_evaluation: Number of rounds between two such evaluations, of
        which there is also one after the last round; 0: only that.
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
    evaluate: Optional[EvaluationFn] = None
    rounds_per_evaluation: int = 1
    rounds_per_checkpoint: int = 1
    client_dataset_fn: Optional[ClientDatasetFn] = None
    output_dir: Union[str, pathlib.Path, directory_lib.RunDirectory, None] = None
    overwrite: bool = False
    client_sampling: str = "fixed"
    sample_fn: Optional[SampleFn] = None
    unequal_work: Optional[unequal_work.UnequalWork] = None
    keep_best: bool = False
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    weight_names: Optional[callbacks_lib.WeightNames] = None
    progress: Optional[progress_lib.Progress] = None
    client_evaluation: Optional[Callable[[Any, int], ClientResults]] = None
    rounds_per_client_evaluation: int = 0
    callbacks: Sequence[Callback] = ()
    on_round: Optional[Callable[[Row], Any]] = None

    def __post_init__(self):
        """Checks the arguments; touches nothing."""
        for name, number in self.numbers().items():
            if isinstance(number, bool) or not isinstance(number, int) or number < 1:
                raise ValueError(
                    f"{name} is {number!r}; it must be a whole number of at least 1."
                )
        for each in self.callbacks:
            if not isinstance(each, Callback):
                raise TypeError(
                    f"callbacks has a {type(each).__name__}; give objects of"
                    " experiment.Callback's sub-classes."
                )
            for name in {*dir(each)} - {*dir(Callback)}:
                if name.startswith("on_") and (near := near_names(name, dir(Callback))):
                    kind = type(each).__name__
                    raise TypeError(f"{kind}.{name} is no hook of a callback{near}.")
        if self.unequal_work and self.client_dataset_fn:
            raise ValueError(
                "unequal_work needs the clients' whole data: leave"
                " client_dataset_fn out."
            )
        if self.unequal_work and self.unequal_work.enough and self.sample_fn:
            raise ValueError(
                "over_select draws more clients than count, and sample_fn draws them"
                " itself: leave one out."
            )
        if self.client_sampling not in ("fixed", "independent"):
            raise ValueError(
                f"client_sampling is {self.client_sampling!r}; it must be fixed or"
                " independent."
            )

    def numbers(self) -> dict[str, int]:
        """Returns the numbers of rounds and clients by name."""
        return {
            "total_rounds": self.total_rounds,
            "clients_per_round": self.clients_per_round,
            "rounds_per_evaluation": self.rounds_per_evaluation,
            "rounds_per_checkpoint": self.rounds_per_checkpoint,
        }

    def cohort(self, client_ids: list[str], round_num: int) -> list[str]:
        """Returns the clients that are drawn for a round."""
        if self.sample_fn is not None:
            return sampling.sample_by(self.sample_fn, client_ids, round_num=round_num)
        drawn = {"seed": self.seed, "round_num": round_num}
        if self.client_sampling == "independent":
            share = self.clients_per_round / len(client_ids)
            return data.sample_clients_bernoulli(client_ids, share, **drawn)
        unequal = self.unequal_work
        count = unequal.num_drawn if unequal else self.clients_per_round
        return data.sample_clients(client_ids, count, **drawn)

    def with_data(
        self, cohort: Sequence[str], round_num: int
    ) -> tuple[Sequence[str], list[Any], Mapping[str, float]]:
        """Returns who of a cohort trains, the data, and columns of `metrics.csv`.

        If nobody is left, it is the first client without examples: the process counts a
        round in which nobody trains.
        """
        unequal = self.unequal_work
        plan = unequal and unequal.plan(cohort, round_num)
        clients = (plan.clients or cohort[:1]) if plan else cohort
        make = self.client_dataset_fn or self.client_data.whole_client_dataset
        datasets = []
        for name in clients:
            key = data.client_key(self.seed, round_num, name)
            work = [plan.work[name]] if plan and plan.work else []
            datasets.append(make(name, key, *work))
        if plan and not plan.clients:
            datasets = [*map(unequal_work.empty, datasets)]
        return clients, datasets, plan.row if plan else {}


def with_arguments_of(
    kind: Callable[P, A],
) -> Callable[[Callable[[A], R]], Callable[P, R]]:
    """Decorator that gives a function of a dataclass the dataclass's arguments."""

    def decorate(function: Callable[[A], R]) -> Callable[P, R]:
        def called(*args: P.args, **kwargs: P.kwargs) -> R:
            make: Any = kind
            gather = getattr(kind, "gathered", dict)
            given = gather(kwargs)
            try:
                arguments = make(*args, **given)
            except TypeError as error:  # Python's own names the class.
                name = f"{getattr(kind, 'CALLED', function.__name__)}()"
                text = str(error).replace(f"{make.__qualname__}.__init__()", name)
                raise TypeError(text) from None
            return function(arguments)

        functools.update_wrapper(called, function)
        # `help` shows the arguments of `kind`.
        vars(called)["__wrapped__"] = kind
        return called

    return decorate
