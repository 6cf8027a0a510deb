"""The mean of every client's latest model, as FedDyn, FedDC and FedSpeed report it.

Clients weigh by the numbers of examples that they have; equally with uniform weighting,
and where the population's mean number is unknown. With `drop_remainder` the server's
mean weighs by the examples of full batches alone. Clients that never took part count
with the initial model.
"""

from __future__ import annotations

import dataclasses

from tff_reg.lazy import tf
from tff_reg.methods import drift, memories, method

NAME = "all_clients"
# The memory's key; see `memories.keys`.
MEAN = f"{NAME}/mean"


@dataclasses.dataclass(frozen=True)
class AllClients(method.Method):
    """Keeps the mean at the server as the memory `MEAN`; training does not change."""

    name = NAME
    title = "Mean of every client's latest model"
    needs = (method.EXACT_UPLOADS,)
    client_memory = {method.PREVIOUS: memories.shared(memories.initial_weights)}
    server_memory = {"mean": memories.initial_weights}
    uploads = ("change",)

    def finish(self, local: method.Local) -> method.Finished:
        last = [tf.identity(w) for w in local.weights]
        before = local.memory[method.PREVIOUS]
        moved = [
            tf.cast(local.relative_weight, new.dtype) * (new - old)
            for new, old in zip(last, before)
        ]
        return method.Finished(memory={method.PREVIOUS: last}, upload={"change": moved})

    def update_memory(self, server: method.Server) -> method.Memory:
        mean, change = server.memory["mean"], server.uploads["change"]
        return {"mean": drift.grown(mean, change, server)}
