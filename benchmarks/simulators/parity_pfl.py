"""Runs pfl-research's algorithms, driven by pfl, for `bin/bench parity`."""

from __future__ import annotations

import importlib.metadata
import itertools
from collections.abc import Iterator
from typing import Any

import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByDatapoints
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.algorithm.fedprox import FedProx, FedProxParams
from pfl.algorithm.scaffold import SCAFFOLD, SCAFFOLDParams
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.user_state import InMemoryUserStateStorage
from pfl.hyperparam.base import NNEvalHyperParams, NNTrainHyperParams
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel

from benchmarks.simulators import formulas, torch_models

_NEVER = 10**6


class _Kept(TrainingProcessCallback):
    """Keeps the global weights after each round."""

    def __init__(self, network: torch.nn.Module):
        self._network = network
        self.weights: list[formulas.Weights] = []

    def after_central_iteration(
        self, aggregate_metrics, model, *, central_iteration: int
    ):
        self.weights.append(torch_models.linear_arrays(self._network))
        return False, Metrics()


def run(
    problem: formulas.Problem,
    algorithm: Any,
    parameters: Any = NNAlgorithmParams,
    *,
    momentum: float = 0.0,
    uniform: bool = False,
    **settings: Any,
) -> Iterator[formulas.Weights]:
    """Runs an algorithm.

    Args:
      problem: The problem.
      algorithm: The algorithm.
      parameters: The class of its settings.
      momentum: The server's.
      uniform: Whether clients weigh alike.
      **settings: Its own settings.
    """
    first, last = torch_models.linear_layers(problem.weights)
    network = torch.nn.Sequential(first, torch.nn.ReLU(), last)
    cross_entropy = torch.nn.functional.cross_entropy
    # What pfl asks of a module.
    network.loss = lambda x, y, eval=False: cross_entropy(network(x), y)
    network.metrics = lambda x, y, eval=False: {"loss": Weighted(0.0, len(y))}
    clients = [
        (torch.from_numpy(x), torch.from_numpy(y).long())
        for x, y in zip(problem.images, problem.labels)
    ]
    positions = itertools.cycle(range(len(clients)))
    data = FederatedDataset(
        lambda index: Dataset(clients[index], user_id=str(index)),
        lambda: next(positions),
    )
    kept = _Kept(network)
    algorithm.run(
        parameters(
            central_num_iterations=formulas.ROUNDS,
            evaluation_frequency=_NEVER,
            train_cohort_size=len(clients),
            val_cohort_size=0,
            **settings,
        ),
        SimulatedBackend(
            data, data, postprocessors=[] if uniform else [WeightByDatapoints()]
        ),
        PyTorchModel(
            network,
            torch.optim.SGD,
            torch.optim.SGD(network.parameters(), 1.0, momentum=momentum),
        ),
        NNTrainHyperParams(
            local_num_epochs=problem.epochs,
            local_learning_rate=problem.learning_rate,
            local_batch_size=problem.batch_size,
        ),
        NNEvalHyperParams(local_batch_size=problem.batch_size),
        callbacks=[kept],
        send_metrics_to_platform=False,
    )
    return iter(kept.weights)


RUNS = {
    "fedavg": lambda p: run(p, FederatedAveraging()),
    "fedavgm": lambda p, beta: run(p, FederatedAveraging(), momentum=beta),
    "fedprox": lambda p, mu: run(p, FedProx(), FedProxParams, mu=mu),
    "scaffold": lambda p: run(
        p,
        SCAFFOLD(),
        SCAFFOLDParams,
        uniform=True,
        population=len(p.labels),
        use_gradient_as_control_variate=False,
        user_state_storage=InMemoryUserStateStorage(),
    ),
}


if __name__ == "__main__":
    torch.set_num_threads(1)
    formulas.answer(RUNS, importlib.metadata.version("pfl"))
