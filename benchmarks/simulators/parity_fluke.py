"""Runs fluke's algorithms, driven by fluke, for `bin/bench parity`."""

from __future__ import annotations

import importlib.metadata
import sys
from collections.abc import Iterator
from typing import Any
from unittest import mock

import torch

# As in `fluke_rounds`.
for _name in ("torchvision", "torchvision.models", "torchvision.datasets"):
    sys.modules[_name] = mock.MagicMock()

from fluke import DDict, FlukeENV  # noqa: E402
from fluke.algorithms import CentralizedFL, PersonalizedFL  # noqa: E402
from fluke.algorithms.fedavgm import FedAVGM  # noqa: E402
from fluke.algorithms.feddyn import FedDyn  # noqa: E402
from fluke.algorithms.fedexp import FedExP  # noqa: E402
from fluke.algorithms.fedlc import FedLC  # noqa: E402
from fluke.algorithms.fednova import FedNova  # noqa: E402
from fluke.algorithms.fedopt import FedOpt  # noqa: E402
from fluke.algorithms.fedper import FedPer  # noqa: E402
from fluke.algorithms.fedprox import FedProx  # noqa: E402
from fluke.algorithms.fedrep import FedRep  # noqa: E402
from fluke.algorithms.fedrs import FedRS  # noqa: E402
from fluke.algorithms.fedsam import FedSAM, SAMOptimizer  # noqa: E402
from fluke.algorithms.moon import MOON  # noqa: E402
from fluke.algorithms.pfedme import PFedMe, PFedMeOptimizer  # noqa: E402
from fluke.algorithms.scaffold import SCAFFOLD  # noqa: E402
from fluke.data import FastDataLoader  # noqa: E402
from fluke.nets import EncoderHeadNet  # noqa: E402

from benchmarks.simulators import formulas, torch_models  # noqa: E402


class _FedRep(FedRep):
    """FedRep for a given network, which fluke's would share among the clients."""

    init_clients = PersonalizedFL.init_clients


class _Kept:
    """An observer that keeps the global weights after each round."""

    def __init__(self, algorithm: CentralizedFL, attribute: str):
        self._server, self._attribute = algorithm.server, attribute
        self.weights: list[formulas.Weights] = []

    def end_round(self, round: int) -> None:  # pylint: disable=redefined-builtin
        """Called by fluke."""
        del round
        model = getattr(self._server, self._attribute)
        self.weights.append(torch_models.linear_arrays(model))


def run(
    problem: formulas.Problem,
    algorithm_class: Any = CentralizedFL,
    *,
    server: dict[str, Any] | None = None,
    optimizer: dict[str, Any] | None = None,
    is_personal: bool = False,
    sent: str = "model",
    **client: Any,
) -> Iterator[formulas.Weights]:
    """Runs an algorithm as fluke does.

    Args:
      problem: The problem.
      algorithm_class: The algorithm.
      server: Settings of the server.
      optimizer: Settings of the clients' optimiser, if it is not SGD.
      is_personal: Whether clients keep the head.
      sent: The server's attribute with what it sends.
      **client: Settings of the clients.
    """
    linear = torch_models.linear_layers(problem.weights)
    model = EncoderHeadNet(torch.nn.Sequential(linear[0], torch.nn.ReLU()), linear[1])
    loaders = [
        FastDataLoader(
            torch.from_numpy(x),
            torch.from_numpy(y).long(),
            num_labels=formulas.CLASSES,
            batch_size=problem.batch_size,
        )
        for x, y in zip(problem.images, problem.labels)
    ]
    count = len(loaders)
    data = mock.Mock()
    data.assign.return_value = ((loaders, [None] * count), None)
    sgd = {
        "name": torch.optim.SGD,
        "lr": problem.learning_rate,
        "momentum": problem.momentum,
    }
    client.setdefault("local_epochs", problem.epochs)
    settings = {
        "model": model.encoder if is_personal else model,
        "client": {
            "optimizer": DDict(**(optimizer or sgd)),
            "scheduler": DDict(name="StepLR", step_size=1, gamma=problem.decay),
            "loss": "CrossEntropyLoss",
            "batch_size": problem.batch_size,
            "clipping": 0,
            **({"model": model} if is_personal else {}),
            **client,
        },
        "server": {"weighted": True, **(server or {})},
    }
    algorithm = algorithm_class(count, data, DDict(**settings))
    kept = _Kept(algorithm, sent)
    algorithm.attach(kept)
    algorithm.run(formulas.ROUNDS, 1.0)
    return iter(kept.weights)


RUNS = {
    "fedavg": run,
    "fedprox": lambda p, mu: run(p, FedProx, mu=mu),
    "fedavgm": lambda p, beta: run(p, FedAVGM, server={"momentum": beta}),
    "adaptive": lambda p, kind, eta, **own: run(
        p, FedOpt, server={"mode": kind, "lr": eta, **own}
    ),
    "fednova": lambda p: run(p, FedNova),
    # The scheduler is forgotten, with the momentum, unless clients are persistent.
    "scaffold": lambda p: run(p, SCAFFOLD, persistency=not p.momentum),
    "feddyn": lambda p, alpha: run(p, FedDyn, alpha=alpha, sent="cld_mdl"),
    "moon": lambda p, mu, tau: run(p, MOON, mu=mu, tau=tau),
    "fedlc": lambda p, tau: run(p, FedLC, tau=tau),
    "fedrs": lambda p, alpha: run(p, FedRS, alpha=alpha, count_as_missing=0),
    "fedsam": lambda p, rho: run(
        p, FedSAM, rho=rho, optimizer={"name": SAMOptimizer, "lr": p.learning_rate}
    ),
    "fedexp": lambda p, epsilon: run(p, FedExP, server={"weighted": False}),
    "fedper": lambda p: run(p, FedPer, is_personal=True),
    "fedrep": lambda p, head_share: run(
        p,
        _FedRep,
        is_personal=True,
        local_epochs=round(p.epochs * head_share),
        tau=round(p.epochs * (1 - head_share)),
    ),
    "pfedme": lambda p, lamda, steps, rate, beta: run(
        p,
        PFedMe,
        optimizer={"name": PFedMeOptimizer, "lr": rate, "lamda": lamda, "mu": 0.0},
        server={"weighted": False, "beta": beta},
        k=steps,
    ),
}


if __name__ == "__main__":
    torch.set_num_threads(1)
    FlukeENV().set_eval_cfg(server=False, locals=False, pre_fit=False, post_fit=False)
    formulas.answer(RUNS, importlib.metadata.version("fluke-fl"))
