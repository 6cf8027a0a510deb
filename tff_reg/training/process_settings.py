"""What a process is built from beside its methods and their strengths.

This module needs no TensorFlow.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Optional

from tff_reg import settings
from tff_reg.methods import catalogue

# Headings of a help.
ROUNDS = "Rounds and clients"
CLIENTS = "Training on a client"
SERVER = "Server"

# Tag: may differ between a run and its continuation without changing its numbers.
FREE = "free"

_ADAPTIVE = ("adam", "yogi", "adagrad")


@dataclasses.dataclass(frozen=True)
class PopulationSettings:
    """What the split of the data and the process have to agree on."""

    num_clients: int = settings.setting(
        16, group=ROUNDS, help="clients that share the data", minimum=1
    )


@dataclasses.dataclass(frozen=True)
class ProcessSettings(PopulationSettings):
    """What a process is built from; the defaults are for who knows no better."""

    total_rounds: int = settings.setting(
        25, group=ROUNDS, help="rounds", minimum=1, tags=(FREE,)
    )
    local_epochs: int = settings.setting(
        5, group=CLIENTS, help="passes over a client's data", minimum=1
    )
    batch_size: int = settings.setting(
        50, group=CLIENTS, help="examples of a step", minimum=1
    )
    same_local_steps: bool = settings.setting(
        False,
        group=CLIENTS,
        help="whether all clients take the steps of one of mean size",
    )
    client_learning_rate: float = settings.setting(
        0.1, group=CLIENTS, help="of SGD, first round", above=0
    )
    learning_rate_schedule: str = settings.setting(
        "constant",
        group=CLIENTS,
        help="how the client learning rate changes from round to round",
        choices=("constant", "exponential", "cosine"),
    )
    learning_rate_decay: float = settings.setting(
        1.0,
        group=CLIENTS,
        help="factor a round of the exponential schedule",
        above=0,
        only_with={"learning_rate_schedule": ("exponential",)},
    )
    client_momentum: float = settings.setting(
        0.0, group=CLIENTS, help="of SGD", minimum=0, below=1
    )
    client_nesterov: bool = settings.setting(
        False, group=CLIENTS, help="whether the momentum is Nesterov's"
    )
    client_weight_decay: float = settings.setting(
        0.0, group=CLIENTS, help="L2, in the gradient after clipping", minimum=0
    )
    max_gradient_norm: Optional[float] = settings.setting(
        None, group=CLIENTS, help="clip gradients there; 0: off", minimum=0
    )
    client_weighting: str = settings.setting(
        "num_examples",
        group=SERVER,
        help="how clients weigh in the average",
        choices=("num_examples", "uniform"),
    )
    server_optimizer: str = settings.setting(
        "sgd",
        group=SERVER,
        help="applied to the average update; sgd with learning rate 1 is averaging",
        choices=("sgd", *_ADAPTIVE),
    )
    server_learning_rate: float = settings.setting(
        1.0, group=SERVER, help="its learning rate", above=0
    )
    server_momentum: float = settings.setting(
        0.0,
        group=SERVER,
        help="of sgd",
        minimum=0,
        below=1,
        only_with={"server_optimizer": ("sgd",)},
    )
    server_epsilon: float = settings.setting(
        1e-3,
        group=SERVER,
        help="of adam, yogi and adagrad",
        above=0,
        only_with={"server_optimizer": _ADAPTIVE},
    )
    averages_all_clients: bool = settings.setting(
        False,
        group=SERVER,
        help="whether the mean of all clients' last models is kept and tested too",
    )

    def __post_init__(self):
        """Checks all of them.

        Raises:
          SettingError: If one cannot be.
        """
        settings.check(self)

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
        names = {each.name for each in settings.settings_of(cls)}
        paper = catalogue.settings(process)
        own = {name: value for name, value in paper.items() if name in names}
        return cls(**{**own, **changes})
