"""The state of a client's optimiser, kept from one of its rounds to the next."""

from __future__ import annotations

import dataclasses
from typing import Any

from tff_reg import lazy
from tff_reg.methods import method

optimizers = lazy.module("tff_reg.training.optimizers")
updater = lazy.module("tff_reg.training.updater")

NAME = "keep_client_optimizer"
# The memory's key; see `memories.keys`.
STATE = f"{NAME}/state"


@dataclasses.dataclass(frozen=True)
class KeptOptimizer(method.Method):
    """Keeps `local.state`, which is here what `Updater.kept` returns."""

    name = NAME
    title = "The client optimiser's state between rounds"
    exclusive = (method.FIRST_STATE,)

    # The `ProcessSettings` that the optimiser is built from.
    settings: Any = dataclasses.field(repr=False, default=None)

    @property
    def client_memory(self) -> method.Declarations:  # pyright: ignore
        return {"state": self._first_state}

    def _first_state(self, weights: Any) -> Any:
        return updater.first_state(optimizers.of_clients(self.settings), weights)

    def begin(self, local: method.Local) -> Any:
        return ()

    def finish(self, local: method.Local) -> method.Finished:
        return method.Finished(memory={"state": local.state})
