"""Rounds in BlazeFL: a pool of processes, one a core, and weights in shared memory."""

from __future__ import annotations

import functools
import multiprocessing
import sys
from typing import Any

import torch
from blazefl import core

from benchmarks.simulators import serving, torch_models

# Read once, before the processes are forked.
_case = functools.cache(serving.read)


class _Clients(core.ProcessPoolClientTrainer[Any, Any, Any]):
    """The clients of a case; a package is a flat tensor of all weights."""

    def __init__(self, path: str, model: torch.nn.Module):
        self.num_parallels = serving.cores()
        self.device = "cpu"
        self.ipc_mode = core.IPCMode.SHARED_MEMORY
        self.stop_event = multiprocessing.Manager().Event()
        self.cache: list[list[torch.Tensor]] = []
        self._path, self._model = path, model

    def get_client_config(self, cid: int) -> tuple[str, int]:
        return self._path, cid

    def prepare_uplink_package_buffer(self) -> list[torch.Tensor]:
        return [torch.zeros_like(core.serialize_model(self._model))]

    @staticmethod
    def worker(config, payload, device, stop_event, *, shm_buffer=None):
        del device, stop_event
        assert shm_buffer is not None
        torch.set_num_threads(1)
        path, client = config
        case = _case(path)
        model = torch_models.build(case)
        core.deserialize_model(model, payload[0])
        torch_models.train(case, model, *torch_models.tensors(case)[client])
        shm_buffer[0].copy_(core.serialize_model(model))
        return core.process_tensors_in_object(shm_buffer, mode="replace")


def main(path: str) -> None:
    """Answers questions about the case in a file."""
    torch.set_num_threads(1)  # Processes that are forked from more may wait for ever.
    case = _case(path)
    model = torch_models.build(case)
    clients = _Clients(path, model)
    examples = [len(labels) for labels in case.labels]

    def one_round():
        clients.cache.clear()
        clients.local_process([core.serialize_model(model)], [*range(len(examples))])
        mean = torch.zeros_like(core.serialize_model(model))
        for (weights,), count in zip(clients.cache, examples):
            mean.add_(weights, alpha=count / sum(examples))
        core.deserialize_model(model, mean)

    serving.serve(one_round, lambda: torch_models.to_arrays(model))


if __name__ == "__main__":
    main(sys.argv[1])
