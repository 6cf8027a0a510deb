"""FedAdam: Adam at the server.

Sashank J. Reddi, Zachary Charles, Manzil Zaheer, Zachary Garrett, Keith Rush, Jakub
Konecny, Sanjiv Kumar, H. Brendan McMahan. "Adaptive Federated Optimization." ICLR 2021.
https://arxiv.org/abs/2003.00295
"""

from __future__ import annotations

import dataclasses

from tff_reg.methods import method, papers


@dataclasses.dataclass(frozen=True)
class FedAdam(method.Method):
    """The server optimiser Adam."""

    name = "fedadam"
    title = "Adam at the server"
    paper_settings = papers.FEDMLB
    brings = {
        "server_optimizer": "adam",
        "server_learning_rate": 0.01,
        "server_epsilon": 1e-3,
        "client_learning_rate": 0.01,
    }
    claims = (method.SERVER,)
    needs_network = False
