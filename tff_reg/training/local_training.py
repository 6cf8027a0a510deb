"""What a client does with its data in a round, before any tensor is made."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Optional

from tff_reg import settings
from tff_reg.lazy import tff
from tff_reg.methods import method as method_lib
from tff_reg.training import data_forms, schedules

_STATEFUL = ("finish", "broadcast", "update_memory", "next_model")


@dataclasses.dataclass(frozen=True)
class Population:
    """What methods know of all clients.

    Attributes:
      num_clients: N, of all clients, in the cohort or not.
      mean_examples: The mean of n, for wt_i; None takes all clients as equally large.
        With it the client data must be in the whole-client form.
      local_steps: K, perhaps a fraction; None for the steps that the client took.
    """

    num_clients: int = settings.setting(help="N", minimum=1)
    mean_examples: Optional[float] = settings.setting(None, help="mean of n", above=0)
    local_steps: Optional[float] = settings.setting(None, help="K", minimum=1)

    def __post_init__(self):
        settings.check(self)


@dataclasses.dataclass(frozen=True)
class LocalTraining:
    """The client's half of a process.

    Attributes:
      optimizer: The client optimiser, whose state is made anew for every client and
        round.
      methods: What is added to federated averaging, in this order.
      max_gradient_norm: The gradient of the whole loss is scaled down to this global
        norm, before the optimiser adds weight decay; None leaves it.
      learning_rate_schedule: Factor on the learning rate by round.
      data_form: The form of the client data.
      population: What the methods know of all clients; needed where one reads the
        number of them.
      debug_eager: Whether hooks run eagerly, for a debugger; see `debugging`.

    Raises:
      IncompatibleMethodsError: If the sum of methods makes no sense.
      ValueError: If a value is out of range, or the population does not go with the
        form of the data.
    """

    optimizer: tff.learning.optimizers.Optimizer
    methods: Sequence[method_lib.Method] = ()
    max_gradient_norm: Optional[float] = None
    learning_rate_schedule: schedules.Schedule = schedules.constant()
    data_form: data_forms.DataForm = data_forms.BatchedData()
    population: Optional[Population] = None
    debug_eager: bool = False

    def __post_init__(self):
        if self.max_gradient_norm is not None and not self.max_gradient_norm > 0:
            raise ValueError(
                "max_gradient_norm must be above 0, or None for no clipping, but is "
                f"{self.max_gradient_norm!r}."
            )
        method_lib.check_sum(self.methods)
        method_lib.check_memories(self.methods)
        has_sizes = isinstance(self.data_form, data_forms.WholeClientData)
        if self.population and self.population.mean_examples and not has_sizes:
            raise ValueError(
                "mean_examples needs to know how large a client is before it trains: "
                "give the client data in the whole-client form, or leave it out."
            )

    @property
    def is_stateful(self) -> bool:
        """Whether the server or clients remember more than the model."""
        return any(
            method.client_memory
            or method.server_memory
            or any(method_lib.does(method, what) for what in _STATEFUL)
            for method in self.methods
        )

    @property
    def clients_remember(self) -> bool:
        """Whether clients remember something from round to round."""
        return any(method.client_memory for method in self.methods)

    @property
    def averaged_rounds(self) -> int:
        """How many global models the AVERAGED one is the mean of; 0 without one.

        Raises:
          ValueError: If methods ask for different numbers.
        """
        averaging = {
            method.name: method.averaged_rounds
            for method in self.methods
            if method.averaged_rounds
        }
        if len(set(averaging.values())) > 1:
            raise ValueError(
                "All methods that read the mean of the last global models must ask for "
                f"the same number of them, but these ask for: {averaging}."
            )
        return max(averaging.values(), default=0)
