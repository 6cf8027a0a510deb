"""Rounds in Flower's simulation: Ray actors, as many at a time as there are cores."""

from __future__ import annotations

import contextlib
import logging
import sys
import time

import torch
from flwr.client import ClientApp
from flwr.common import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.server import ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

from benchmarks.simulators import serving, torch_models

_MANY_ROUNDS = 10**6


def client_app(path: str) -> ClientApp:
    """What runs in an actor; it keeps the case from one message to the next."""
    app = ClientApp()
    kept: dict[str, serving.Case] = {}

    @app.train()
    def train(message, context):
        torch.set_num_threads(1)
        if path not in kept:
            kept[path] = serving.read(path)
        case = kept[path]
        model = torch_models.build(case)
        model.load_state_dict(message.content["arrays"].to_torch_state_dict())
        index = int(context.node_config["partition-id"])
        images, labels = torch_models.tensors(
            case._replace(
                images=case.images[index : index + 1],
                labels=case.labels[index : index + 1],
            )
        )[0]
        torch_models.train(case, model, images, labels)
        content = RecordDict(
            {
                "arrays": ArrayRecord(model.state_dict()),
                "metrics": MetricRecord({"num-examples": len(labels)}),
            }
        )
        return Message(content=content, reply_to=message)

    return app


class _Asked(FedAvg):
    """FedAvg that begins a round when it is asked to."""

    def __init__(self, model: torch.nn.Module, clients: int):
        super().__init__(fraction_evaluate=0.0, min_available_nodes=clients)
        self._questions = serving.questions()
        self._model = model
        self._began: float | None = None

    def aggregate_train(self, server_round, replies):
        replies = list(replies)
        failed = [reply.error.reason for reply in replies if reply.has_error()]
        if failed or len(replies) != self.min_available_nodes:
            raise RuntimeError(f"{len(replies)} clients replied; {failed}")
        return super().aggregate_train(server_round, replies)

    def configure_train(self, server_round, arrays, config, grid):
        if self._began is not None:
            serving.answer(time.perf_counter() - self._began)
        for question, *arguments in self._questions:
            if question == "round":
                self._began = time.perf_counter()
                return super().configure_train(server_round, arrays, config, grid)
            self._model.load_state_dict(arrays.to_torch_state_dict())
            serving.save(arguments[0], torch_models.to_arrays(self._model))
            serving.answer(None)
        raise EOFError


def main(path: str) -> None:
    """Answers questions about the case in a file."""
    case = serving.read(path)
    logging.getLogger("flwr").setLevel(logging.ERROR)
    model = torch_models.build(case)
    server = ServerApp()

    @server.main()
    def serve(grid, context):
        del context
        with contextlib.suppress(EOFError):
            _Asked(model, len(case.images)).start(
                grid, ArrayRecord(model.state_dict()), _MANY_ROUNDS
            )

    run_simulation(
        server_app=server,
        client_app=client_app(path),
        num_supernodes=len(case.images),
        backend_config={"client_resources": {"num_cpus": 1, "num_gpus": 0.0}},
    )


if __name__ == "__main__":
    main(sys.argv[1])
