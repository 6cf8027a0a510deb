"""The settings of the client's half of a process."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Optional

from tff_reg import settings
from tff_reg.lazy import tff
from tff_reg.methods import checks, method as method_lib
from tff_reg.training import data_forms, schedules


@dataclasses.dataclass(frozen=True)
class Population:
    """All clients of a process, whether sampled or not.

    Attributes:
      num_clients: N, the number of all clients.
      mean_examples: The mean number of examples per client, for wt_i; needs client data
        in the whole-client form. None assumes equally large clients.
      local_steps: K, perhaps a fraction; None for the number of steps taken.
    """

    num_clients: int = settings.setting(help="N", minimum=1)
    mean_examples: Optional[float] = settings.setting(None, help="mean of n", above=0)
    local_steps: Optional[float] = settings.setting(None, help="K", above=0)

    def __post_init__(self):
        settings.check(self)


@dataclasses.dataclass(frozen=True)
class LocalTraining:
    """The client's half of a process.

    Attributes:
      optimizer: The client optimiser; every client begins each round with a new state.
      methods: The methods, in the order in which they act.
      max_gradient_norm: Maximum global norm of the gradient of the whole loss, before
        weight decay; None disables clipping.
      learning_rate_schedule: Factor on the learning rate, per round.
      data_form: The form of the client data.
      population: The number and sizes of all clients; needed if a method reads them.
      debug_eager: Whether hooks run eagerly, for a debugger; see `debugging`.
      compile_steps: Whether XLA compiles the steps on full batches.

    Raises:
      IncompatibleMethodsError: If methods conflict.
      ValueError: If a value is out of range, or `mean_examples` or `compile_steps` is
        given without whole-client data.
    """

    optimizer: tff.learning.optimizers.Optimizer
    methods: Sequence[method_lib.Method] = ()
    max_gradient_norm: Optional[float] = None
    learning_rate_schedule: schedules.Schedule = schedules.constant()
    data_form: data_forms.DataForm = data_forms.BatchedData()
    population: Optional[Population] = None
    debug_eager: bool = False
    compile_steps: bool = False

    def __post_init__(self):
        if self.max_gradient_norm is not None and not self.max_gradient_norm > 0:
            raise ValueError(
                "max_gradient_norm must be above 0, or None for no clipping, but is "
                f"{self.max_gradient_norm!r}."
            )
        checks.check_combination(self.methods)
        checks.check_memories(self.methods)
        has_sizes = isinstance(self.data_form, data_forms.WholeClientData)
        if self.population and self.population.mean_examples and not has_sizes:
            raise ValueError(
                "mean_examples needs each client's size before it trains: give the"
                " client data in the whole-client form, or leave mean_examples out."
            )
        if self.compile_steps and (self.debug_eager or not has_sizes):
            raise ValueError(
                "compile_steps needs client data in the whole-client form, and no"
                " debug_eager: leave it out, or see training.WholeClientData."
            )
