"""The settings of a process, without its methods and their hyperparameters.

This module needs no TensorFlow.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping
from typing import Any, Optional

from tff_reg import settings as settings_lib
from tff_reg.methods import all_clients, catalogue, method as method_lib
from tff_reg.settings import (
    ASIDE,
    KEY,
    ROUND,
    SETUP,
    SettingError,
    check,
    conflicts,
    off_when,
    only_with,
    setting,
    settings_of,
    wrong_when,
)
from tff_reg.training import kept_optimizer

# Headings in the command line's help.
ROUNDS = "Rounds and clients"
CLIENTS = "Training on a client"
SERVER = "Server"
DATA = "Data and model"
_of_rounds = functools.partial(setting, group=ROUNDS)
_of_clients = functools.partial(setting, group=CLIENTS)
_of_server = functools.partial(setting, group=SERVER)

_ADAPTIVE = ("adam", "yogi", "adagrad")
# Of clients beside sgd.
_OTHERS = ("adam", "adamw", "adagrad", "rmsprop")
_SCHEDULES = ("constant", "exponential", "cosine", "step")
_DECAYING = ("exponential", "step")


# Rules of the arguments of `training.build` that take the place of settings.
_replaced_by = functools.partial(conflicts, then=settings_lib.KEPT)
_OF_CLIENT_DATA = _replaced_by(
    "client_data", why="has them: give a tff_reg.training.WholeClientData"
)
_OF_CLIENTS = _replaced_by("client_optimizer_fn", why="replaces it")
_OF_SERVER = _replaced_by("server_optimizer_fn", why="replaces it")
_ALL_ALIKE = "sets the steps of every client"


def _has_nothing(client_optimizer: str, client_momentum: float) -> bool:
    return client_optimizer == "sgd" and not client_momentum


def _is_of_rounds(client_learning_rate: Any) -> bool:
    return callable(client_learning_rate)


def _has_few(num_clients: int, of_task: Any) -> bool:
    there = of_task.num_train_examples
    return there is not None and num_clients > there


def _is_unknown(
    learning_rate_schedule: str, server_learning_rate_schedule: str, given: Any
) -> bool:
    schedules = (learning_rate_schedule, server_learning_rate_schedule)
    return "cosine" in schedules and "total_rounds" not in given


@dataclasses.dataclass(frozen=True, kw_only=True)
class PopulationSettings:
    """Settings that the partition of the data and the process share."""

    num_clients: int = _of_rounds(
        16,
        help="number of clients in the partition",
        minimum=1,
        rules=(
            _replaced_by("population", why="replaces it"),
            wrong_when(
                _has_few,
                "the task {task} has only {of_task.num_train_examples} training"
                " examples.",
            ),
        ),
        tags=(KEY, SETUP),
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class ProcessSettings(PopulationSettings):
    """The settings of a process; the defaults are a starting point."""

    total_rounds: int = _of_rounds(
        25,
        help="number of rounds",
        minimum=1,
        rules=(
            wrong_when(
                _is_unknown,
                "the cosine schedule needs the number of all rounds: give it.",
            ),
        ),
        tags=(KEY,),
    )
    local_epochs: float = _of_clients(
        5,
        help="epochs over a client's data per round, such as 5 or 0.5: batches are"
        " rounded up",
        above=0,
        maximum=2**31 - 1,
        keeps_whole=True,
        rules=(
            _OF_CLIENT_DATA,
            _replaced_by("local_steps", why=_ALL_ALIKE),
        ),
        tags=(KEY,),
    )
    local_steps: Optional[int] = _of_clients(
        None,
        help="steps that each client takes per round, in place of local_epochs",
        minimum=1,
        rules=(_OF_CLIENT_DATA,),
    )
    batch_size: int = _of_clients(
        50,
        help="examples per local step",
        minimum=1,
        rules=(_OF_CLIENT_DATA,),
        tags=(KEY,),
    )
    drop_remainder: bool = _of_clients(
        False,
        help="whether the shorter last batch of an epoch is left out; a client with"
        " fewer examples than a batch then does not train",
        rules=(_OF_CLIENT_DATA,),
    )
    same_local_steps: bool = _of_clients(
        False,
        help="whether all clients take the number of steps of an average-sized client",
        rules=(
            _OF_CLIENT_DATA,
            conflicts("local_steps", why=_ALL_ALIKE),
        ),
    )
    client_optimizer: str = _of_clients(
        "sgd",
        help="optimiser of the clients; papers' learning rates are for sgd",
        choices=("sgd", *_OTHERS),
        rules=(_OF_CLIENTS,),
    )
    keep_client_optimizer: bool = _of_clients(
        False,
        help="whether a client's optimiser goes on in its next round with its momenta;"
        " otherwise each round begins with a new one",
        rules=(
            _OF_CLIENTS,
            conflicts("process", *catalogue.WITHOUT_MODEL, is_quiet=True),
            off_when(
                _has_nothing,
                "client_optimizer=sgd without client_momentum has nothing to keep.",
            ),
        ),
    )
    client_learning_rate: float = _of_clients(
        0.1,
        help="initial learning rate of the clients' optimiser",
        above=0,
        rules=(_OF_CLIENTS,),
        tags=(KEY,),
    )
    learning_rate_schedule: str = _of_clients(
        "constant",
        help="schedule of the client learning rate over rounds",
        choices=(*_SCHEDULES, "listed"),
        rules=(
            off_when(
                _is_of_rounds,
                "client_learning_rate is a function of the round; leave it out.",
                then="listed",
            ),
        ),
    )
    learning_rate_decay: Optional[float] = _of_clients(
        None,
        help="factor of the exponential schedule per round, of step at each milestone",
        above=0,
        rules=(only_with("learning_rate_schedule", *_DECAYING, example="0.1"),),
    )
    learning_rate_milestones: tuple[int, ...] = _of_clients(
        (),
        help="rounds, such as 50,75, after which the step schedule decays",
        minimum=1,
        rules=(only_with("learning_rate_schedule", "step", example="50,75"),),
        tags=(ROUND,),
    )
    warmup_rounds: int = _of_clients(
        0,
        help="first rounds in which the client learning rate grows evenly to that of"
        " the schedule",
        minimum=0,
        tags=(ROUND,),
    )
    client_learning_rates: Optional[tuple[float, ...]] = _of_clients(
        None,
        help="learning rates of the listed schedule, one for each round; the last"
        " applies to all later rounds",
        above=0,
        rules=(
            only_with("learning_rate_schedule", "listed", example="0.1,0.05"),
            _OF_CLIENTS,
        ),
    )
    client_momentum: float = _of_clients(
        0.0,
        help="momentum of the clients' SGD",
        minimum=0,
        below=1,
        rules=(only_with("client_optimizer", "sgd"), _OF_CLIENTS),
    )
    client_nesterov: bool = _of_clients(
        False,
        help="whether the client momentum is Nesterov's",
        rules=(only_with("client_momentum"), _OF_CLIENTS),
    )
    client_weight_decay: float = _of_clients(
        0.0,
        help="weight decay of the clients' sgd (L2, added to the clipped gradient) and"
        " adamw (decoupled, times the learning rate; by default 0.01)",
        minimum=0,
        rules=(only_with("client_optimizer", "sgd", "adamw"), _OF_CLIENTS),
    )
    client_beta1: Optional[float] = _of_clients(
        None,
        help="beta1 of the clients' adam and adamw; by default 0.9",
        minimum=0,
        below=1,
        rules=(only_with("client_optimizer", "adam", "adamw"), _OF_CLIENTS),
    )
    client_beta2: Optional[float] = _of_clients(
        None,
        help="beta2 of the clients' adam and adamw, by default 0.999; decay of rmsprop,"
        " by default 0.9",
        minimum=0,
        below=1,
        rules=(only_with("client_optimizer", "adam", "adamw", "rmsprop"), _OF_CLIENTS),
    )
    client_epsilon: Optional[float] = _of_clients(
        None,
        help="epsilon in the denominator of the clients' optimiser; by default 1e-7",
        above=0,
        rules=(only_with("client_optimizer", *_OTHERS), _OF_CLIENTS),
    )
    max_gradient_norm: Optional[float] = _of_clients(
        None, help="maximum norm of a client's gradient; 0 disables clipping", minimum=0
    )
    client_weighting: str = _of_server(
        "num_examples",
        help="weights of the clients in the average: num_examples counts the examples"
        " that a client has (with drop_remainder, those of full batches)",
        choices=("num_examples", "uniform"),
        rules=(
            conflicts(
                "aggregator",
                *("dp", "median", "trimmed_mean", "krum"),
                why="takes clients alike",
                then="uniform",
            ),
        ),
    )
    server_optimizer: str = _of_server(
        "sgd",
        help="optimiser of the server; sgd with learning rate 1 is plain averaging",
        choices=("sgd", *_ADAPTIVE),
        rules=(_OF_SERVER,),
    )
    server_learning_rate: float = _of_server(
        1.0,
        help="learning rate of the server optimiser",
        above=0,
        rules=(_OF_SERVER,),
    )
    server_learning_rate_schedule: str = _of_server(
        "constant",
        help="schedule of the server learning rate over rounds",
        choices=_SCHEDULES,
        rules=(_OF_SERVER,),
    )
    server_learning_rate_decay: Optional[float] = _of_server(
        None,
        help="its factor, as learning_rate_decay",
        above=0,
        rules=(only_with("server_learning_rate_schedule", *_DECAYING, example="0.1"),),
    )
    server_learning_rate_milestones: tuple[int, ...] = _of_server(
        (),
        help="its milestones, as learning_rate_milestones",
        minimum=1,
        rules=(only_with("server_learning_rate_schedule", "step", example="50,75"),),
        tags=(ROUND,),
    )
    server_warmup_rounds: int = _of_server(
        0,
        help="as warmup_rounds, of the server learning rate",
        minimum=0,
        rules=(_OF_SERVER,),
        tags=(ROUND,),
    )
    server_momentum: float = _of_server(
        0.0,
        help="momentum of the server's sgd",
        minimum=0,
        below=1,
        rules=(only_with("server_optimizer", "sgd"), _OF_SERVER),
    )
    server_beta1: Optional[float] = _of_server(
        None,
        help="beta1 of adam, yogi and adagrad: decay of the mean of updates; by default"
        " 0.9, of adagrad 0",
        minimum=0,
        below=1,
        rules=(only_with("server_optimizer", *_ADAPTIVE), _OF_SERVER),
    )
    server_beta2: float = _of_server(
        0.99,
        help="beta2 of adam and yogi: decay of the mean of squared updates",
        minimum=0,
        below=1,
        rules=(only_with("server_optimizer", "adam", "yogi"), _OF_SERVER),
    )
    server_epsilon: float = _of_server(
        1e-3,
        help="tau of adam, yogi and adagrad, added to the denominator",
        above=0,
        rules=(only_with("server_optimizer", *_ADAPTIVE), _OF_SERVER),
    )
    averages_all_clients: bool = _of_server(
        False,
        help="whether the mean of every client's latest model is evaluated, too, as"
        " FedDyn and MAN report it",
        rules=(conflicts("process", *catalogue.REFERENCES, is_quiet=True),),
        tags=(ASIDE,),
    )

    def __post_init__(self):
        """Checks the values."""
        check(self)

    def steps_of(self, num_examples: Optional[float]) -> Optional[int]:
        """Returns the steps in a round of a client with so many examples, on average.

        None if neither the number nor `local_steps` is known.
        """
        if self.local_steps is not None or num_examples is None:
            return self.local_steps
        per_epoch = self.batches_of(num_examples)
        if self.drop_remainder:
            per_epoch = max(1, per_epoch)
        return math.ceil(self.local_epochs * per_epoch - 1e-6)

    def batches_of(self, num_examples: Any) -> Any:
        """Returns the batches in an epoch of clients with so many examples."""
        return batches(num_examples, self.batch_size, self.drop_remainder)

    def examples_of(self, num_examples: Any) -> Any:
        """Returns the examples on which clients with so many train in an epoch."""
        return trained(num_examples, self.batch_size, self.drop_remainder)

    def build_methods(
        self, process: str, hyperparameters: Mapping[str, Any]
    ) -> tuple[method_lib.Method, ...]:
        """Makes the methods of a process.

        Args:
          process: A process name.
          hyperparameters: Hyperparameters by flag name; the others have their defaults.

        Returns:
          The methods, and those of `averages_all_clients`, `keep_client_optimizer`.

        Raises:
          UnknownProcessError: If there is no such process.
          ValueError: If a hyperparameter belongs to none of the methods or is out of
            range.
        """
        methods = catalogue.build(process, hyperparameters)
        if self.averages_all_clients:
            methods = (*methods, all_clients.AllClients())
        if self.keep_client_optimizer:
            methods = (*methods, kept_optimizer.KeptOptimizer(settings=self))
        return methods

    @classmethod
    def of(cls, process: str, **changes: Any) -> ProcessSettings:
        """Returns the settings of a process's paper, with the given changes.

        Args:
          process: A process name.
          **changes: Settings that differ from the paper's.

        Returns:
          The settings.

        Raises:
          UnknownProcessError: If there is no such process.
          SettingError: If a value is out of range.
        """
        return of_process(process, changes)


def batches(num_examples: Any, batch_size: int, drop_remainder: bool) -> Any:
    """Returns the batches in an epoch over so many examples: a number, or an array."""
    if drop_remainder:
        return num_examples // batch_size
    return -(-num_examples // batch_size)


def trained(num_examples: Any, batch_size: int, drop_remainder: bool) -> Any:
    """Returns how many of so many examples are in batches that are trained on."""
    return num_examples // batch_size * batch_size if drop_remainder else num_examples


def of_process(
    process: str, given: Mapping[str, Any], beside: Mapping[str, Any] = {}
) -> ProcessSettings:
    """Returns `ProcessSettings.of`; rules may ask for the values `beside`, too."""
    known = settings_of(ProcessSettings)
    # The projector belongs to the model, not to the process.
    paper = catalogue.settings(process, (*given, "projector"))
    values = {each.name: paper.get(each.name, each.default) for each in known}
    values = {**of_source(values, given), **given, **beside}
    settings_lib.settle(known, values, given)
    settle_rates(values, given)
    settings_lib.check_rules(known, values)
    return ProcessSettings(**{each.name: values[each.name] for each in known})


def of_source(values: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a paper's settings without what is for what the given ones replace.

    These are the numbers of another schedule, and those of sgd for another optimiser.

    Raises:
      SettingError: If the learning rate of an optimiser other than sgd is not given.
    """
    found = dict(values)
    for prefix in ("", "server_"):
        name = f"{prefix}learning_rate_schedule"
        if given.get(name, values[name]) != values[name]:
            found[f"{prefix}learning_rate_decay"] = None
            found[f"{prefix}learning_rate_milestones"] = ()
    if (kind := given.get("client_optimizer", "sgd")) != "sgd":
        if not given.keys() & {"client_learning_rate", "client_learning_rates"}:
            why = f"it is missing: papers' are for sgd, not {kind}; give one, as 0.001."
            raise SettingError("client_learning_rate", None, why)
        found["client_weight_decay"] = 0.01 if kind == "adamw" else 0.0
    return found


def depend_on_total(values: Mapping[str, Any]) -> bool:
    """Whether a round's learning rates depend on the number of all rounds."""
    names = ("learning_rate_schedule", "server_learning_rate_schedule")
    return "cosine" in map(values.get, names)


def settle_rates(values: dict[str, Any], given: Mapping[str, Any]) -> None:
    """Makes client learning rates that differ by round a list of one for each.

    Raises:
      SettingError: If they are a function whose results are none, or a list beside
        a function or another rate.
    """
    name = "client_learning_rate"
    if callable(rate := values[name]):
        if listed := given.get("client_learning_rates"):
            why = "leave it out: client_learning_rate is a function of the round."
            raise SettingError("client_learning_rates", listed, why)
        # Copies train at the rate of the round after the last one.
        count = values["total_rounds"] + bool(values.get("finetune_epochs"))
        try:
            values["client_learning_rates"] = tabulated(rate, count)
        except ValueError as error:
            raise SettingError(name, "a function", str(error)) from error
    if rates := values["client_learning_rates"]:
        asked = given.get(name, rates[0])
        if not callable(asked) and asked != rates[0]:
            why = "client_learning_rates has the rate of each round; leave it out."
            raise SettingError(name, asked, why)
        values[name] = rates[0]


def tabulated(rate_fn: Callable[[int], Any], total_rounds: int) -> tuple[float, ...]:
    """Evaluates a learning-rate function for every round.

    >>> from tff_reg.training import process_settings
    >>> process_settings.tabulated(lambda round_num: 0.1 * 0.5**round_num, 3)
    (0.05, 0.025, 0.0125)
    """
    rates: list[float] = []
    for round_num in range(1, total_rounds + 1):
        found = rate_fn(round_num)
        try:
            rates.append(float(found))
        except (TypeError, ValueError):
            rates.append(math.nan)
        if not math.isfinite(rates[-1]) or rates[-1] <= 0:
            raise ValueError(
                f"The function gives the learning rate {found!r} for round {round_num};"
                " it must give a finite number above 0."
            )
    return tuple(rates)
