"""Runs Flower's strategies, driven by Flower, for `bin/bench parity`.

Flower's wheel has no client's code: the clients train with `formulas.train`.
"""

from __future__ import annotations

import importlib.metadata
import logging
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import strategy
from flwr.supercore.task_identity import TaskIdentity

from benchmarks.simulators import formulas


def _record(weights: formulas.Weights) -> ArrayRecord:
    arrays = {str(i): Array(np.float32(w)) for i, w in enumerate(weights)}
    return ArrayRecord(arrays)


def _weights(record: ArrayRecord) -> list[np.ndarray]:
    return [record[str(i)].numpy() for i in range(len(record))]


class _Grid:
    """Clients that train at once."""

    def __init__(self, problem: formulas.Problem):
        self._problem = problem

    def get_node_ids(self) -> Sequence[int]:
        """The clients, from 1."""
        return range(1, len(self._problem.labels) + 1)

    def send_and_receive(
        self, messages: Iterable[Message], **options: Any
    ) -> list[Message]:
        """Trains the clients to which the messages go."""
        del options
        replies = []
        for message in messages:
            client = message.metadata.dst_node_id - 1
            start = _weights(message.content["arrays"])
            model, _ = formulas.train(self._problem, client, start)
            examples = {"num-examples": len(self._problem.labels[client])}
            content = {"arrays": _record(model), "metrics": MetricRecord(examples)}
            replies.append(Message(RecordDict(content), reply_to=message))
        return replies


def run(
    problem: formulas.Problem, strategy_class: Any, **settings: Any
) -> Iterator[formulas.Weights]:
    """Runs a strategy as Flower does."""
    kept = []
    strategy_class(fraction_evaluate=0.0, **settings).start(
        _Grid(problem),
        _record(problem.weights),
        formulas.ROUNDS,
        evaluate_fn=lambda number, arrays: kept.append(_weights(arrays)),
    )
    return iter(kept[1:])  # The first is before any round.


def _adaptive(problem, kind, eta, beta1, beta2, tau):
    chosen = getattr(strategy, f"Fed{kind.capitalize()}")
    betas = {} if kind == "adagrad" else {"beta_1": beta1, "beta_2": beta2}
    return run(problem, chosen, eta=eta, tau=tau, **betas)


RUNS = {
    "fedavg": lambda p: run(p, strategy.FedAvg),
    "fedavgm": lambda p, beta: run(p, strategy.FedAvgM, server_momentum=beta),
    "adaptive": _adaptive,
}


if __name__ == "__main__":
    logging.getLogger("flwr").setLevel(logging.ERROR)
    # What messages need, which Flower's run of an app sets.
    TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1
    formulas.answer(RUNS, importlib.metadata.version("flwr"))
