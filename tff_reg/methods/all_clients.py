"""The mean of all clients' last models, which is only remembered and reported.

Clients that never took part count with the model that training began with. As the
papers of FedDyn, FedDC and FedSpeed report it.
"""

from __future__ import annotations

import dataclasses

from tff_reg.lazy import tf
from tff_reg.methods import drift, method

NAME = "all_clients"


@dataclasses.dataclass(frozen=True)
class AllClients(method.Method):
    """Keeps the mean at the server as the memory `NAME`; changes nothing else."""

    name = NAME
    title = "The mean of all clients' last models"
    needs_exact_uploads = True
    needs_network = False
    uploads = (NAME,)

    def initial_client_memory(self, weights: method.Tensors) -> method.Memory:
        return {method.PREVIOUS: list(weights)}

    def initial_server_memory(self, weights: method.Tensors) -> method.Memory:
        return {NAME: list(weights)}

    def finish(self, local: method.Local) -> tuple[method.Memory, method.Memory]:
        last = [tf.identity(w) for w in local.weights]
        before = local.client[method.PREVIOUS]
        moved = [
            tf.cast(local.relative_weight, new.dtype) * (new - old)
            for new, old in zip(last, before)
        ]
        return {method.PREVIOUS: last}, {NAME: moved}

    def update_server(
        self, server: method.Server
    ) -> tuple[method.Memory, method.Tensors]:
        mean = drift.grown(server.memory[NAME], server.uploads[NAME], server)
        return {NAME: mean}, list(server.weights)
