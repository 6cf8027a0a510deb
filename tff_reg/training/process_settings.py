"""The settings of a process, without its methods and their hyperparameters.

This module needs no TensorFlow.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterator, Mapping
from typing import Any, Optional

from tff_reg.methods import all_clients, catalogue, method as method_lib
from tff_reg.settings import SettingError, check, setting, settings_of
from tff_reg.training import kept_optimizer

# Headings in the command line's help.
ROUNDS = "Rounds and clients"
CLIENTS = "Training on a client"
SERVER = "Server"
DATA = "Data and model"
_of_rounds = functools.partial(setting, group=ROUNDS)
_of_clients = functools.partial(setting, group=CLIENTS)
_of_server = functools.partial(setting, group=SERVER)

# Tag of a setting that does not change a run's numbers.
NO_EFFECT_ON_RESULTS = "free"

_ADAPTIVE = ("adam", "yogi", "adagrad")
# Of clients beside sgd.
_OTHERS = ("adam", "adamw", "adagrad", "rmsprop")
_SCHEDULES = ("constant", "exponential", "cosine", "step")


# Settings of a run's client data, which `build` refuses.
_OF_DATA = (
    *("batch_size", "local_epochs", "local_steps"),
    *("drop_remainder", "same_local_steps"),
)
# By an argument of `build`: the settings that it replaces.
_REPLACED = {
    "client_optimizer_fn": (
        "client_optimizer",
        "keep_client_optimizer",
        "client_beta1",
        "client_beta2",
        "client_epsilon",
        "client_learning_rate",
        "client_learning_rates",
        "client_momentum",
        "client_nesterov",
        "client_weight_decay",
    ),
    "server_optimizer_fn": (
        "server_optimizer",
        "server_learning_rate",
        "server_learning_rate_schedule",
        "server_warmup_rounds",
        "server_momentum",
        "server_beta1",
        "server_beta2",
        "server_epsilon",
    ),
    "population": ("num_clients",),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class PopulationSettings:
    """Settings that the partition of the data and the process share."""

    num_clients: int = _of_rounds(
        16, help="number of clients in the partition", minimum=1
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class ProcessSettings(PopulationSettings):
    """The settings of a process; the defaults are a starting point."""

    total_rounds: int = _of_rounds(25, help="number of rounds", minimum=1)
    local_epochs: float = _of_clients(
        5,
        help="epochs over a client's data per round, such as 5 or 0.5: batches are"
        " rounded up",
        above=0,
        maximum=2**31 - 1,
        keeps_whole=True,
    )
    local_steps: Optional[int] = _of_clients(
        None,
        help="steps that each client takes per round, in place of local_epochs",
        minimum=1,
    )
    batch_size: int = _of_clients(50, help="examples per local step", minimum=1)
    drop_remainder: bool = _of_clients(
        False,
        help="whether the shorter last batch of an epoch is left out; a client with"
        " fewer examples than a batch then does not train",
    )
    same_local_steps: bool = _of_clients(
        False,
        help="whether all clients take the number of steps of an average-sized client",
    )
    client_optimizer: str = _of_clients(
        "sgd",
        help="optimiser of the clients; papers' learning rates are for sgd",
        choices=("sgd", *_OTHERS),
    )
    keep_client_optimizer: bool = _of_clients(
        False,
        help="whether a client's optimiser goes on in its next round with its momenta;"
        " otherwise each round begins with a new one",
    )
    client_learning_rate: float = _of_clients(
        0.1,
        help="initial learning rate of the clients' optimiser",
        above=0,
    )
    learning_rate_schedule: str = _of_clients(
        "constant",
        help="schedule of the client learning rate over rounds",
        choices=(*_SCHEDULES, "listed"),
    )
    learning_rate_decay: Optional[float] = _of_clients(
        None,
        help="factor of the exponential schedule per round, of step at each milestone",
        above=0,
        only_with={"learning_rate_schedule": ("exponential", "step")},
    )
    learning_rate_milestones: tuple[int, ...] = _of_clients(
        (),
        help="rounds, such as 50,75, after which the step schedule decays",
        minimum=1,
        only_with={"learning_rate_schedule": ("step",)},
    )
    warmup_rounds: int = _of_clients(
        0,
        help="first rounds in which the client learning rate grows evenly to that of"
        " the schedule",
        minimum=0,
    )
    client_learning_rates: Optional[tuple[float, ...]] = _of_clients(
        None,
        help="learning rates of the listed schedule, one for each round; the last"
        " applies to all later rounds",
        above=0,
        only_with={"learning_rate_schedule": ("listed",)},
    )
    client_momentum: float = _of_clients(
        0.0,
        help="momentum of the clients' SGD",
        minimum=0,
        below=1,
        only_with={"client_optimizer": ("sgd",)},
    )
    client_nesterov: bool = _of_clients(
        False,
        help="whether the client momentum is Nesterov's",
        only_with={"client_optimizer": ("sgd",)},
    )
    client_weight_decay: float = _of_clients(
        0.0,
        help="weight decay of the clients' sgd (L2, added to the clipped gradient) and"
        " adamw (decoupled, times the learning rate; by default 0.01)",
        minimum=0,
        only_with={"client_optimizer": ("sgd", "adamw")},
    )
    client_beta1: Optional[float] = _of_clients(
        None,
        help="beta1 of the clients' adam and adamw; by default 0.9",
        minimum=0,
        below=1,
        only_with={"client_optimizer": ("adam", "adamw")},
    )
    client_beta2: Optional[float] = _of_clients(
        None,
        help="beta2 of the clients' adam and adamw, by default 0.999; decay of rmsprop,"
        " by default 0.9",
        minimum=0,
        below=1,
        only_with={"client_optimizer": ("adam", "adamw", "rmsprop")},
    )
    client_epsilon: Optional[float] = _of_clients(
        None,
        help="epsilon in the denominator of the clients' optimiser; by default 1e-7",
        above=0,
        only_with={"client_optimizer": _OTHERS},
    )
    max_gradient_norm: Optional[float] = _of_clients(
        None, help="maximum norm of a client's gradient; 0 disables clipping", minimum=0
    )
    client_weighting: str = _of_server(
        "num_examples",
        help="weights of the clients in the average: num_examples counts the examples"
        " that a client has (with drop_remainder, those of full batches)",
        choices=("num_examples", "uniform"),
    )
    server_optimizer: str = _of_server(
        "sgd",
        help="optimiser of the server; sgd with learning rate 1 is plain averaging",
        choices=("sgd", *_ADAPTIVE),
    )
    server_learning_rate: float = _of_server(
        1.0, help="learning rate of the server optimiser", above=0
    )
    server_learning_rate_schedule: str = _of_server(
        "constant",
        help="schedule of the server learning rate over rounds",
        choices=_SCHEDULES,
    )
    server_learning_rate_decay: Optional[float] = _of_server(
        None,
        help="its factor, as learning_rate_decay",
        above=0,
        only_with={"server_learning_rate_schedule": ("exponential", "step")},
    )
    server_learning_rate_milestones: tuple[int, ...] = _of_server(
        (),
        help="its milestones, as learning_rate_milestones",
        minimum=1,
        only_with={"server_learning_rate_schedule": ("step",)},
    )
    server_warmup_rounds: int = _of_server(
        0, help="as warmup_rounds, of the server learning rate", minimum=0
    )
    server_momentum: float = _of_server(
        0.0,
        help="momentum of the server's sgd",
        minimum=0,
        below=1,
        only_with={"server_optimizer": ("sgd",)},
    )
    server_beta1: Optional[float] = _of_server(
        None,
        help="beta1 of adam, yogi and adagrad: decay of the mean of updates; by default"
        " 0.9, of adagrad 0",
        minimum=0,
        below=1,
        only_with={"server_optimizer": _ADAPTIVE},
    )
    server_beta2: float = _of_server(
        0.99,
        help="beta2 of adam and yogi: decay of the mean of squared updates",
        minimum=0,
        below=1,
        only_with={"server_optimizer": ("adam", "yogi")},
    )
    server_epsilon: float = _of_server(
        1e-3,
        help="tau of adam, yogi and adagrad, added to the denominator",
        above=0,
        only_with={"server_optimizer": _ADAPTIVE},
    )
    averages_all_clients: bool = _of_server(
        False,
        help="whether the mean of every client's latest model is evaluated, too, as"
        " FedDyn and MAN report it",
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
        batches = num_examples / self.batch_size
        per_epoch = math.ceil(batches)
        if self.drop_remainder:
            per_epoch = max(1, math.floor(batches))
        return math.ceil(self.local_epochs * per_epoch - 1e-6)

    def build_methods(
        self, process: str, strengths: Mapping[str, Any]
    ) -> tuple[method_lib.Method, ...]:
        """Makes the methods of a process.

        Args:
          process: A process name.
          strengths: Hyperparameters by flag name; the others have their defaults.

        Returns:
          The methods, and those of `averages_all_clients`, `keep_client_optimizer`.

        Raises:
          UnknownProcessError: If there is no such process.
          ValueError: If a hyperparameter belongs to none of the methods or is out of
            range.
        """
        methods = catalogue.build(process, strengths)
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
        names = {each.name for each in settings_of(cls)}
        # The projector belongs to the model, not to the process.
        paper = catalogue.settings(process, (*changes, "projector"))
        own = {name: value for name, value in paper.items() if name in names}
        if rates := changes.get("client_learning_rates"):
            own["client_learning_rate"] = rates[0]
        if changes.get("client_momentum") == 0:
            own["client_nesterov"] = False  # As a run's settings.
        own = of_schedules(own, changes) | of_optimizer(changes)
        return cls(**{**own, **changes})


def check_chosen(
    settings: ProcessSettings, chosen: Mapping[str, Any], rest: Mapping[str, Any]
) -> None:
    """Checks that all settings that `training.build` was given have an effect."""
    for each in settings_of(settings):
        if each.name in chosen and (why := each.why_not_beside(vars(settings))):
            raise TypeError(f"{each.name}: {why}")
        if each.name in chosen and each.name in _OF_DATA:
            raise TypeError(
                f"{each.name} is the client data's: batch them, or give client_data="
                "tff_reg.training.WholeClientData(...)."
            )
    for argument, replaced in _REPLACED.items():
        both = [name for name in replaced if name in chosen]
        if both and rest.get(argument) is not None:
            raise TypeError(f"{argument} replaces {both[0]}: give one of both.")
    rates = settings.client_learning_rates
    if rates and settings.client_learning_rate != rates[0]:
        raise TypeError("client_learning_rates has the rate: no client_learning_rate.")
    for name in ("learning_rate_schedule", "server_learning_rate_schedule"):
        is_cosine = getattr(settings, name) == "cosine"
        if is_cosine and "total_rounds" not in chosen:  # Of the paper, perhaps.
            raise TypeError(f"{name}='cosine' needs total_rounds.")
    for name, why in missing_of_schedules(vars(settings)):
        if chosen.keys() & {name, name.replace("decay", "schedule")}:
            raise TypeError(f"{name}: {why}")


def of_optimizer(given: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the defaults of a client optimiser other than sgd, which papers' are for.

    Raises:
      SettingError: If its learning rate is not given.
    """
    kind = given.get("client_optimizer", "sgd")
    if kind == "sgd":
        return {}
    if not given.keys() & {"client_learning_rate", "client_learning_rates"}:
        why = (
            f"it is missing: papers' are for sgd, not {kind}; give one, such as 0.001."
        )
        raise SettingError("client_learning_rate", None, why)
    if "client_weight_decay" in given:
        return {}
    return {"client_weight_decay": 0.01 if kind == "adamw" else 0.0}


def of_schedules(values: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a paper's settings without the numbers of schedules that are replaced."""
    found = dict(values)
    for prefix in ("", "server_"):
        name = f"{prefix}learning_rate_schedule"
        if given.get(name, values.get(name)) != values.get(name):
            found[f"{prefix}learning_rate_decay"] = None
            found[f"{prefix}learning_rate_milestones"] = ()
    return found


def depend_on_total(values: Mapping[str, Any]) -> bool:
    """Whether a round's learning rates depend on the number of all rounds."""
    names = ("learning_rate_schedule", "server_learning_rate_schedule")
    return "cosine" in map(values.get, names)


def missing_of_schedules(values: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yields settings that a schedule lacks, each with what to say."""
    for prefix in ("", "server_"):
        kind = values[f"{prefix}learning_rate_schedule"]
        name = f"{prefix}learning_rate_decay"
        if kind in ("exponential", "step") and values[name] is None:
            example = "0.998" if kind == "exponential" else "0.1"
            yield (
                name,
                f"it is missing; the {kind} schedule needs it, such as {example}.",
            )
        name = f"{prefix}learning_rate_milestones"
        if kind == "step" and not values[name]:
            yield name, "it is missing; the step schedule needs it, such as 50,75."
