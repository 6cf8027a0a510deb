"""Rounds in a plain loop of PyTorch, one client after another, on all cores."""

from __future__ import annotations

import copy
import sys

import torch

from benchmarks.simulators import serving, torch_models


def main(path: str) -> None:
    """Answers questions about the case in a file."""
    case = serving.read(path)
    torch.set_num_threads(serving.cores())
    model = torch_models.build(case)
    clients = torch_models.tensors(case)
    previous = [copy.deepcopy(model) if case.method == "moon" else None] * len(clients)

    def one_round():
        start = copy.deepcopy(model.state_dict())
        states = []
        for index, (images, labels) in enumerate(clients):
            model.load_state_dict(start)
            torch_models.train(case, model, images, labels, previous[index])
            states.append(copy.deepcopy(model.state_dict()))
            if case.method == "moon":
                previous[index] = copy.deepcopy(model)
        examples = [len(labels) for _, labels in clients]
        model.load_state_dict(torch_models.mean_states(states, examples))

    serving.serve(one_round, lambda: torch_models.to_arrays(model))


if __name__ == "__main__":
    main(sys.argv[1])
