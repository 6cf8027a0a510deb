"""Variates: a client's gradients are corrected by the clients' mean gradient.

On equally large clients that weigh alike it computes what `scaffold` does.
"""

import dataclasses

from tff_reg import methods


@dataclasses.dataclass(frozen=True)
class Variates(methods.Method):
    """Each client remembers its mean gradient, the server the mean of them all."""

    name = "variates"
    exclusive = (methods.DRIFT,)
    client_memory = {"own": methods.zeros}
    server_memory = {"common": methods.sent(methods.zeros)}
    uploads = ("change",)

    def correct(self, local, gradient):
        """The gradient minus the client's own mean, plus the common one."""
        own, common = local.memory["own"], local.server_memory["common"]
        return [g - o + c for g, o, c in zip(gradient, own, common)]

    def finish(self, local):
        """The client's mean gradient of this round, without the correction."""
        new = [total / local.step_size for total in local.uncorrected]
        change = [n - o for n, o in zip(new, local.memory["own"])]
        return methods.Finished(memory={"own": new}, upload={"change": change})

    def update_memory(self, server):
        """The mean over all clients, in this round or not."""
        pairs = zip(server.memory["common"], server.uploads["change"])
        return {"common": [c + u / server.num_clients for c, u in pairs]}
