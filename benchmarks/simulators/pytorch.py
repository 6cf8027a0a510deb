"""Rounds in plain PyTorch, as it is usually written and at its best.

The usual way is a loop over the clients on all cores, with PyTorch's own order of an
image's values. The best way is `channels_last` with one process of one thread for each
core, each with its share of the clients; on a GPU `channels_last`, cuDNN's search for
the fastest kernels, and a loss that `torch.compile` makes one CUDA graph.
"""

from __future__ import annotations

import copy
import multiprocessing
import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch

from benchmarks.simulators import serving, torch_models


class _Clients:
    """Some of a case's clients, which train one after another."""

    def __init__(
        self,
        case: serving.Case,
        which: slice,
        threads: int,
        memory: Any,
        device: str = "cpu",
    ):
        torch.set_num_threads(threads)
        self._case = case
        self._data = [
            (images.to(device).contiguous(memory_format=memory), labels.to(device))
            for images, labels in torch_models.tensors(case)[which]
        ]
        self._model = torch_models.build(case).to(device, memory_format=memory)
        initial = copy.deepcopy(self._model) if case.method == "moon" else None
        self._previous = [initial] * len(self._data)

    def train(self, start: Any) -> list[Any]:
        """Trains from the global model's state `start`; returns the clients' states."""
        states = []
        for index, own in enumerate(self._data):
            self._model.load_state_dict(start)
            torch_models.train(self._case, self._model, *own, self._previous[index])
            states.append(copy.deepcopy(self._model.state_dict()))
            if self._case.method == "moon":
                self._previous[index] = copy.deepcopy(self._model)
        return states


def _answer(connection: Any, path: str, which: slice) -> None:
    """Trains some clients on each state from the connection; runs in a process."""
    clients = _Clients(serving.read(path), which, 1, torch.channels_last)
    while True:
        connection.send(clients.train(connection.recv()))


def _in_processes(path: str, shares: Sequence[slice]) -> Callable[[Any], list[Any]]:
    """Starts a process for each share of the clients; returns a function for all."""
    context = multiprocessing.get_context("spawn")
    connections = []
    for share in shares:
        ours, its = context.Pipe()
        arguments = (its, path, share)
        context.Process(target=_answer, args=arguments, daemon=True).start()
        connections.append(ours)

    def train(start: Any) -> list[Any]:
        for connection in connections:
            connection.send(start)
        return [connection.recv() for connection in connections]

    return train


def _in_a_loop(
    case: serving.Case, device: str, memory: Any
) -> Callable[[Any], list[Any]]:
    """Returns a function that trains all clients in this process, on all cores."""
    clients = _Clients(case, slice(None), serving.cores(), memory, device)
    return lambda start: [clients.train(start)]


def main(path: str, way: str = "", device: str = "cpu") -> None:
    """Answers questions about the case in a file; `way` is "best" or empty."""
    case, cores = serving.read(path), serving.cores()
    torch.set_num_threads(cores)
    model = torch_models.build(case).to(device)
    memory = torch.contiguous_format
    if way and device != "cpu":
        memory = torch.channels_last
        torch.backends.cudnn.benchmark = True
        torch_models.loss = torch.compile(torch_models.loss, mode="reduce-overhead")
    if way and device == "cpu":
        shares = [slice(i, None, cores) for i in range(cores)]
        train = _in_processes(path, shares)
    else:
        shares = [slice(None)]
        train = _in_a_loop(case, device, memory)

    def one_round():
        states, examples = [], []
        for share, own in zip(shares, train(copy.deepcopy(model.state_dict()))):
            states += own
            examples += [len(labels) for labels in case.labels[share]]
        model.load_state_dict(torch_models.mean_states(states, examples))

    serving.serve(one_round, lambda: torch_models.to_arrays(model))


if __name__ == "__main__":
    main(*sys.argv[1:])
