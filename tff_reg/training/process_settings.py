"""What a process is built from beside its methods and their strengths.

This module needs no TensorFlow.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any, Optional

from tff_reg.methods import all_clients, catalogue, method as method_lib
from tff_reg.settings import check, setting, settings_of

# Headings of a help.
ROUNDS = "Rounds and clients"
CLIENTS = "Training on a client"
SERVER = "Server"
_of_rounds = functools.partial(setting, group=ROUNDS)
_of_clients = functools.partial(setting, group=CLIENTS)
_of_server = functools.partial(setting, group=SERVER)

# Tag: a run's numbers do not depend on it.
FREE = "free"
# What `aggregators.build_model_aggregator` builds.
AGGREGATORS = ("mean", "robust", "dp", "secure", "compressed")

# Of what `aggregator=dp` has, but for none at all: float32 loses less beside an update.
LEAST_NOISE = 1e-6

_ADAPTIVE = ("adam", "yogi", "adagrad")


@dataclasses.dataclass(frozen=True)
class PopulationSettings:
    """What the split of the data and the process have to agree on."""

    num_clients: int = _of_rounds(16, help="clients that share the data", minimum=1)


@dataclasses.dataclass(frozen=True)
class ProcessSettings(PopulationSettings):
    """What a process is built from; the defaults are for who knows no better."""

    total_rounds: int = _of_rounds(25, help="rounds", minimum=1)
    local_epochs: int = _of_clients(5, help="passes over a client's data", minimum=1)
    batch_size: int = _of_clients(50, help="examples of a step", minimum=1)
    drop_remainder: bool = _of_clients(
        False,
        help="whether the shorter last batch of a pass is left out; a client with fewer"
        " examples than a batch then does not train",
    )
    same_local_steps: bool = _of_clients(
        False, help="whether all clients take the steps of one of mean size"
    )
    client_learning_rate: float = _of_clients(0.1, help="of SGD, first round", above=0)
    learning_rate_schedule: str = _of_clients(
        "constant",
        help="how the client learning rate changes from round to round",
        choices=("constant", "exponential", "cosine"),
    )
    learning_rate_decay: float = _of_clients(
        1.0,
        help="factor a round of the exponential schedule",
        above=0,
        only_with={"learning_rate_schedule": ("exponential",)},
    )
    client_momentum: float = _of_clients(0.0, help="of SGD", minimum=0, below=1)
    client_nesterov: bool = _of_clients(
        False, help="whether the momentum is Nesterov's"
    )
    client_weight_decay: float = _of_clients(
        0.0, help="L2, in the gradient after clipping", minimum=0
    )
    max_gradient_norm: Optional[float] = _of_clients(
        None, help="clip gradients there; 0: off", minimum=0
    )
    client_weighting: str = _of_server(
        "num_examples",
        help="how clients weigh in the average",
        choices=("num_examples", "uniform"),
    )
    server_optimizer: str = _of_server(
        "sgd",
        help="applied to the average update; sgd with learning rate 1 is averaging",
        choices=("sgd", *_ADAPTIVE),
    )
    server_learning_rate: float = _of_server(1.0, help="its learning rate", above=0)
    server_momentum: float = _of_server(
        0.0, help="of sgd", minimum=0, below=1, only_with={"server_optimizer": ("sgd",)}
    )
    server_beta1: float = _of_server(
        0.9,
        help="beta1 of adam, yogi and adagrad, the momentum of the mean update",
        minimum=0,
        below=1,
        only_with={"server_optimizer": _ADAPTIVE},
    )
    server_beta2: float = _of_server(
        0.99,
        help="beta2 of adam and yogi, of the squares",
        minimum=0,
        below=1,
        only_with={"server_optimizer": ("adam", "yogi")},
    )
    server_epsilon: float = _of_server(
        1e-3,
        help="tau of adam, yogi and adagrad",
        above=0,
        only_with={"server_optimizer": _ADAPTIVE},
    )
    averages_all_clients: bool = _of_server(
        False,
        help="whether the mean of all clients' last models is kept and tested too",
    )

    def __post_init__(self):
        """Checks all of them.

        Raises:
          SettingError: If one cannot be.
        """
        check(self)

    def build_methods(
        self, process: str, strengths: Mapping[str, Any]
    ) -> tuple[method_lib.Method, ...]:
        """Makes all that is added to federated averaging.

        Args:
          process: A process name.
          strengths: Strengths by flag name; the others have their defaults.

        Returns:
          The methods of the sum, and what else the settings ask for, the last.

        Raises:
          UnknownProcessError: If the name is not one.
          ValueError: If a strength belongs to no method of the sum or is out of range.
        """
        methods = catalogue.build(process, strengths)
        if self.averages_all_clients:
            methods = (*methods, all_clients.AllClients())
        return methods

    @classmethod
    def of(cls, process: str, **changes: Any) -> ProcessSettings:
        """Those of a process's paper.

        Args:
          process: A process name.
          **changes: What is to be otherwise.

        Returns:
          The settings.

        Raises:
          UnknownProcessError: If the name is not one.
          SettingError: If a value cannot be.
        """
        names = {each.name for each in settings_of(cls)}
        paper = catalogue.settings(process)
        own = {name: value for name, value in paper.items() if name in names}
        return cls(**{**own, **changes})
