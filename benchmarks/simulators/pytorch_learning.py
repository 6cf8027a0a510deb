"""Trains with a method in plain PyTorch, for many rounds, and prints its accuracies.

The program's argument is a file that `benchmarks.learning` writes. The last line that
it prints is JSON: the test accuracy after each round.
"""

from __future__ import annotations

import copy
import json
import sys

import numpy as np
import torch
from torch.nn import functional

from benchmarks.simulators import serving, torch_models

_GRADAUG_STRENGTH, _GRADAUG_MINIMUM_WIDTH, _GRADAUG_SUBNETWORKS = 1.75, 0.8, 2
_GRADAUG_RESOLUTIONS = (1.0, 0.875, 0.75, 0.625)


def _divergence(target, logits):
    """KL of predictions, mean over the batch."""
    return functional.kl_div(
        functional.log_softmax(logits, 1),
        functional.log_softmax(target, 1),
        reduction="batchmean",
        log_target=True,
    )


def _blocks(model):
    def stem(x):
        return functional.relu(model.stem_norm(model.stem(x)))

    def stage(index):
        return lambda x: model.run_stage(index, x)

    return [stem, *map(stage, range(3)), lambda x: model.linear(x.mean((2, 3)))]


def _fedmlb(model, received, x, y):
    blocks, theirs = _blocks(model), _blocks(received)
    outputs = []
    for block in blocks:
        x = block(x)
        outputs.append(x)
    *features, logits = outputs
    paths = []
    for index, feature in enumerate(features, start=1):
        for block in theirs[index:]:
            feature = block(feature)
        paths.append(feature)
    loss = functional.cross_entropy(logits, y)
    for path in paths:
        both = functional.cross_entropy(path, y) + _divergence(path, logits)
        loss = loss + both / len(paths)
    return loss


def _gradaug(model, x, y):
    logits = model(x)
    loss = functional.cross_entropy(logits, y)
    widths = [_GRADAUG_MINIMUM_WIDTH]
    while len(widths) < _GRADAUG_SUBNETWORKS:
        rest = 1 - _GRADAUG_MINIMUM_WIDTH
        widths.append(_GRADAUG_MINIMUM_WIDTH + rest * torch.rand(()).item())
    for width in widths:
        fraction = _GRADAUG_RESOLUTIONS[torch.randint(4, ()).item()]
        size = [round(side * fraction) for side in x.shape[2:]]
        small = functional.interpolate(x, size, mode="bilinear", align_corners=True)
        narrow = model.at_width(small, width)
        loss = loss + _GRADAUG_STRENGTH * _divergence(logits.detach(), narrow)
    return loss


def _accuracy(model, images, labels) -> float:
    model.eval()
    with torch.no_grad():
        return (model(images).argmax(1) == labels).float().mean().item()


def main(path: str) -> None:
    """Trains as a file says."""
    with np.load(path) as file:
        settings = json.loads(str(file["settings"]))
        images = [file[f"images{i}"] for i in range(settings["clients"])]
        labels = [file[f"labels{i}"] for i in range(settings["clients"])]
        test = file["test_images"], file["test_labels"]
        names = sorted(name for name in file.files if name.startswith("weight"))
        weights = [file[name] for name in names]
    case = serving.Case(
        network=settings["network"],
        norm=settings["norm"],
        method=settings["method"],
        batch_size=settings["batch_size"],
        learning_rate=settings["learning_rate"],
        momentum=settings["momentum"],
        max_gradient_norm=settings["max_gradient_norm"],
        weights=weights,
        images=images[0][np.newaxis],
        labels=labels[0][np.newaxis],
    )
    torch.set_num_threads(1)
    model = torch_models.build(case)
    clients = list(zip(map(_tensor, images), map(_tensor, labels)))
    test_images, test_labels = map(_tensor, test)
    previous = [copy.deepcopy(model) for _ in clients]
    accuracies = []
    for round_num in range(settings["rounds"]):
        start = copy.deepcopy(model.state_dict())
        received = copy.deepcopy(model).train()
        states = []
        for index, (x, y) in enumerate(clients):
            torch.manual_seed(10**6 * settings["seed"] + 10**3 * round_num + index)
            model.load_state_dict(start)
            model.train()
            optimizer = torch.optim.SGD(
                model.parameters(),
                case.learning_rate,
                momentum=case.momentum,
                nesterov=True,
                weight_decay=settings["weight_decay"],
            )
            for _ in range(settings["epochs"]):
                order = torch.randperm(len(y))
                for batch in order.split(case.batch_size):
                    others = received, previous[index]
                    loss = _loss(case, model, x[batch], y[batch], *others)
                    torch_models.step(case, model, optimizer, loss)
            states.append(copy.deepcopy(model.state_dict()))
            previous[index] = copy.deepcopy(model)
        sizes = [len(y) for _, y in clients]
        model.load_state_dict(torch_models.mean_states(states, sizes))
        accuracies.append(_accuracy(model, test_images, test_labels))
    print(json.dumps(accuracies))


def _loss(case, model, x, y, received, previous):
    if case.method == "fedmlb":
        return _fedmlb(model, received, x, y)
    if case.method == "gradaug":
        return _gradaug(model, x, y)
    return torch_models.loss(case, model, x, y, received, previous)


def _tensor(array):
    if array.ndim == 4:
        array = array.transpose(0, 3, 1, 2).copy()
        return torch.from_numpy(array)
    return torch.from_numpy(array.astype(np.int64))


if __name__ == "__main__":
    main(sys.argv[1])
