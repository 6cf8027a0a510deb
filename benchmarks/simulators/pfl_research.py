"""Rounds in pfl-research: one client after another in one process, on all cores.

Running statistics of BatchNorm are not sent: pfl averages trainable weights only.
"""

from __future__ import annotations

import contextlib
import itertools
import sys
import time

import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByDatapoints
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.hyperparam.base import NNEvalHyperParams, NNTrainHyperParams
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
from torch.nn import functional

from benchmarks.simulators import serving, torch_models

_MANY_ROUNDS = 10**6


class _Asked(TrainingProcessCallback):
    """Lets a round begin when it is asked for."""

    def __init__(self, model: torch.nn.Module):
        self._model = model
        self._questions = serving.questions()
        self._began = 0.0

    def on_train_begin(self, *, model):
        return self._wait()

    def after_central_iteration(
        self, aggregate_metrics, model, *, central_iteration: int
    ):
        serving.answer(time.perf_counter() - self._began)
        return False, self._wait()

    def _wait(self):
        for question, *arguments in self._questions:
            if question == "round":
                self._began = time.perf_counter()
                return Metrics()
            serving.save(arguments[0], torch_models.to_arrays(self._model))
            serving.answer(None)
        raise EOFError


def main(path: str) -> None:
    """Answers questions about the case in a file."""
    case = serving.read(path)
    torch.set_num_threads(serving.cores())
    module = torch_models.build(case)

    def loss(x, y, eval=False):
        module.train(not eval)
        return functional.cross_entropy(module(x), y)

    # What pfl asks of a module.
    module.loss = loss
    module.metrics = lambda x, y, eval=False: {"loss": Weighted(0.0, len(y))}
    model = PyTorchModel(
        module,
        lambda parameters, lr: torch.optim.SGD(parameters, lr, momentum=case.momentum),
        torch.optim.SGD(module.parameters(), 1.0),
    )
    clients = torch_models.tensors(case)
    positions = itertools.cycle(range(len(clients)))
    data = FederatedDataset(
        lambda index: Dataset(clients[index], user_id=str(index)),
        lambda: next(positions),
    )
    backend = SimulatedBackend(data, data, postprocessors=[WeightByDatapoints()])
    parameters = NNAlgorithmParams(
        central_num_iterations=_MANY_ROUNDS,
        evaluation_frequency=_MANY_ROUNDS,
        train_cohort_size=len(clients),
        val_cohort_size=0,
    )
    training = NNTrainHyperParams(
        local_num_epochs=1,
        local_learning_rate=case.learning_rate,
        local_batch_size=case.batch_size,
        local_max_grad_norm=case.max_gradient_norm,
    )
    with contextlib.suppress(EOFError):
        FederatedAveraging().run(
            parameters,
            backend,
            model,
            training,
            NNEvalHyperParams(local_batch_size=case.batch_size),
            callbacks=[_Asked(module)],
            send_metrics_to_platform=False,
        )


if __name__ == "__main__":
    main(sys.argv[1])
