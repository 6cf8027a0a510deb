"""Rounds in fluke: one client after another in one process, on all cores."""

from __future__ import annotations

import sys
from unittest import mock

import torch

# Rounds need nothing of torchvision, which fluke imports and which cannot be loaded
# beside a PyTorch of another source.
for _name in ("torchvision", "torchvision.models", "torchvision.datasets"):
    sys.modules[_name] = mock.MagicMock()

from fluke.client import Client  # noqa: E402
from fluke.config import OptimizerConfigurator  # noqa: E402
from fluke.data import FastDataLoader  # noqa: E402
from fluke.server import Server  # noqa: E402

from benchmarks.simulators import serving, torch_models  # noqa: E402


def main(path: str) -> None:
    """Answers questions about the case in a file."""
    case = serving.read(path)
    torch.set_num_threads(serving.cores())
    model = torch_models.build(case)
    optimizer = OptimizerConfigurator(
        {"name": torch.optim.SGD, "lr": case.learning_rate, "momentum": case.momentum}
    )

    def client_of(index: int, images: torch.Tensor, labels: torch.Tensor) -> Client:
        loader = FastDataLoader(
            images,
            labels,
            num_labels=torch_models.CLASSES,
            batch_size=case.batch_size,
            skip_singleton=False,
        )
        return Client(
            index,
            loader,
            None,
            optimizer,
            torch.nn.CrossEntropyLoss(),
            local_epochs=1,
            clipping=case.max_gradient_norm or 0,
            # The momentum begins anew in every round.
            persistency=False,
        )

    data = torch_models.tensors(case)
    clients = [client_of(index, *own) for index, own in enumerate(data)]
    server = Server(model, None, clients, weighted=True)
    for client in clients:
        client.set_channel(server.channel)

    def one_round():
        server.broadcast_model(clients)
        for client in clients:
            client.local_update(1)
        models = server.receive_client_models(clients, state_dict=False)
        server.aggregate(clients, models)

    serving.serve(one_round, lambda: torch_models.to_arrays(server.model))


if __name__ == "__main__":
    main(sys.argv[1])
