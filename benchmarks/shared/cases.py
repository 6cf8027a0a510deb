"""Makes the cases that the programs of `benchmarks.simulators` run."""

from __future__ import annotations

import collections
import os
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

from benchmarks.shared import asking
from tff_reg import lazy
from tff_reg.lazy import np, tf

serving = lazy.module("benchmarks.simulators.serving")


class Size(NamedTuple):
    """The network, data and method of a case.

    Attributes:
      network: Its name here.
      norm: 'group' or 'batch'.
      image: (height, width, channels).
      clients: The number of clients.
      examples: The number of examples of each client.
      batch_size: Examples of a step.
      method: 'fedavg', 'fedalign', 'fedmlb' or 'moon'.
    """

    network: str
    norm: str
    image: tuple[int, int, int]
    clients: int
    examples: int
    batch_size: int
    method: str = "fedavg"


def own_program(path: str, kind: str, parallel: int = 1) -> list[str]:
    """The command of this package's program.

    Args:
      path: The case's file.
      kind: The runtime, or 'weights'.
      parallel: Clients at a time.
    """
    module = "benchmarks.simulators.own"
    return [sys.executable, "-m", module, path, kind, str(parallel)]


def write(path: str, size: Size) -> None:
    """Writes a case: random images and labels, and this package's initial weights."""
    rng = np.random.default_rng(0)
    images = rng.normal(size=(size.clients, size.examples, *size.image))
    case = serving.Case(
        network=size.network,
        norm=size.norm,
        method=size.method,
        batch_size=size.batch_size,
        learning_rate=0.01,
        momentum=0.9,
        max_gradient_norm=10.0 if size.method == "fedalign" else None,
        weights=[],
        images=images.astype(np.float32),
        labels=rng.integers(0, 10, (size.clients, size.examples)).astype(np.int32),
    )
    serving.write(path, case)
    with asking.Program(own_program(path, "weights")) as own:
        weights = weights_of(own, os.path.dirname(path))
    serving.write(path, case._replace(weights=weights))


def weights_of(program: asking.Program, folder: str) -> list[np.ndarray]:
    """Asks a program for its weights, through a file in `folder`."""
    path = os.path.join(folder, "weights.npz")
    program.ask("save", path)
    return read_weights(path)


def read_weights(path: str) -> list[np.ndarray]:
    """Reads the weights from the file of a case, or from a file of weights."""
    with np.load(path) as file:
        names = sorted(name for name in file.files if name.startswith("weight"))
        return [file[name] for name in names]


def random_client(
    image_shape: Sequence[int], num_classes: int, count: int, turn: int
) -> Any:
    """The data of a client with random examples, in the whole-client form.

    Args:
      image_shape: (height, width, channels).
      num_classes: The labels are below it.
      count: The number of examples; may be 0.
      turn: A number; each has other examples and another key.

    Returns:
      A `tf.data.Dataset` of one element.
    """
    generator = np.random.default_rng(turn)
    arrays = collections.OrderedDict(
        x=generator.normal(size=(count, *image_shape)).astype(np.float32),
        y=generator.integers(0, num_classes, count).astype(np.int32),
        key=np.array([0, turn], np.int64),
    )
    return tf.data.Dataset.from_tensors(arrays)
