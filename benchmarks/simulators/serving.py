"""The questions to the programs that run rounds, and their answers: lines of JSON.

A program is started with the file of a case, and prints `answer null` when it is ready
for its first round. It answers each line of its standard input: "round" with the
seconds of one more round, and `["save", FILE]` by writing the global model's current
weights to a NumPy file.

Needs NumPy and the standard library only.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np


class Case(NamedTuple):
    """The network, data and optimiser of a round.

    Attributes:
      network: 'cnn', 'resnet8', 'resnet18', 'resnet20' or 'resnet56'.
      norm: 'group' (two groups) or 'batch'.
      method: 'fedavg', 'fedalign', 'fedmlb' or 'moon', with the papers'
        hyperparameters.
      batch_size: Examples of a step; a client's last step may have fewer.
      learning_rate: The learning rate of the clients' SGD.
      momentum: The momentum of the clients' SGD, which begins anew in every round.
      max_gradient_norm: The norm to which gradients are clipped, or None.
      weights: The initial trainable weights in this package's order (of a residual
        unit the convolutions, the norms, then the shortcut's); kernels are [height,
        width, in, out] and [in, out].
      images: float32 [clients, examples, height, width, channels].
      labels: int32 [clients, examples].
    """

    network: str
    norm: str
    method: str
    batch_size: int
    learning_rate: float
    momentum: float
    max_gradient_norm: float | None
    weights: Sequence[np.ndarray]
    images: np.ndarray
    labels: np.ndarray


def write(path: str, case: Case) -> None:
    """Writes a case to a file."""
    settings = case._asdict()
    arrays = {name: settings.pop(name) for name in ("images", "labels")}
    weights = {f"weight{i:04}": w for i, w in enumerate(settings.pop("weights"))}
    np.savez(path, settings=json.dumps(settings), **arrays, **weights)


def read(path: str) -> Case:
    """Reads a case from a file of `write`."""
    with np.load(path) as file:
        names = sorted(name for name in file.files if name.startswith("weight"))
        return Case(
            weights=[file[name] for name in names],
            images=file["images"],
            labels=file["labels"],
            **json.loads(str(file["settings"])),
        )


def save(path: str, weights: Sequence[np.ndarray]) -> None:
    """Writes weights, as in `Case.weights`."""
    named: dict[str, Any] = {f"weight{i:04}": w for i, w in enumerate(weights)}
    np.savez(path, **named)


def questions() -> Iterator[list[Any]]:
    """Prints that the program is ready; yields each question as a list."""
    print("answer null", flush=True)
    for line in sys.stdin:
        question = json.loads(line)
        yield question if isinstance(question, list) else [question]


def answer(found: Any) -> None:
    """Answers the last question."""
    print(f"answer {json.dumps(found)}", flush=True)


def serve(
    one_round: Callable[[], Any], weights: Callable[[], Sequence[np.ndarray]]
) -> None:
    """Answers questions until there are no more.

    Args:
      one_round: Runs one more round.
      weights: Returns the global model's weights, as in `Case.weights`.
    """
    for question, *arguments in questions():
        if question == "save":
            save(arguments[0], weights())
            answer(None)
        else:
            began = time.perf_counter()
            one_round()
            answer(time.perf_counter() - began)


def cores() -> int:
    """The number of cores that this process may use."""
    return len(os.sched_getaffinity(0))
