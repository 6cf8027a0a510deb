"""Rounds in plain PyTorch, as it is usually written and at its best.

Usually: a loop over the clients, one after another, on all cores, with PyTorch's own
order of an image's values. At its best: `channels_last`, and as many processes of one
thread as there are cores, each with its share of the clients.
"""

from __future__ import annotations

import copy
import multiprocessing
import sys
from typing import Any

import torch

from benchmarks.simulators import serving, torch_models


class _Clients:
    """Some of a case's clients, which train one after another."""

    def __init__(self, case: serving.Case, which: slice, threads: int, memory: Any):
        torch.set_num_threads(threads)
        self._case = case
        self._data = [
            (images.contiguous(memory_format=memory), labels)
            for images, labels in torch_models.tensors(case)[which]
        ]
        self._model = torch_models.build(case).to(memory_format=memory)
        initial = copy.deepcopy(self._model) if case.method == "moon" else None
        self._previous = [initial] * len(self._data)

    def train(self, start: Any) -> list[Any]:
        """The states that they end with; `start` is that of the global model."""
        states = []
        for index, own in enumerate(self._data):
            self._model.load_state_dict(start)
            torch_models.train(self._case, self._model, *own, self._previous[index])
            states.append(copy.deepcopy(self._model.state_dict()))
            if self._case.method == "moon":
                self._previous[index] = copy.deepcopy(self._model)
        return states


def _answer(connection: Any, path: str, which: slice) -> None:
    """What a process does at its best: trains whenever it gets a state."""
    clients = _Clients(serving.read(path), which, 1, torch.channels_last)
    while True:
        connection.send(clients.train(connection.recv()))


def main(path: str, at_its_best: str = "") -> None:
    """Answers questions about the case in a file."""
    case = serving.read(path)
    torch.set_num_threads(serving.cores())
    model = torch_models.build(case)
    shares = [slice(None)]
    if at_its_best:
        shares = [slice(i, None, serving.cores()) for i in range(serving.cores())]
        context = multiprocessing.get_context("spawn")
        connections = []
        for share in shares:
            ours, its = context.Pipe()
            arguments = (its, path, share)
            context.Process(target=_answer, args=arguments, daemon=True).start()
            connections.append(ours)
    else:
        clients = _Clients(case, shares[0], serving.cores(), torch.contiguous_format)

    def train(start: Any) -> list[list[Any]]:
        if not at_its_best:
            return [clients.train(start)]
        for connection in connections:
            connection.send(start)
        return [connection.recv() for connection in connections]

    def one_round():
        states, examples = [], []
        for share, own in zip(shares, train(copy.deepcopy(model.state_dict()))):
            states += own
            examples += [len(labels) for labels in case.labels[share]]
        model.load_state_dict(torch_models.mean_states(states, examples))

    serving.serve(one_round, lambda: torch_models.to_arrays(model))


if __name__ == "__main__":
    main(*sys.argv[1:])
