"""The settings of papers and of their authors' code: methods' defaults, recipes' bases.

The network and augmentation of a data set, the metrics of a table and dropped short
batches are in `tff_reg.tasks.recipes`. All other settings have their defaults.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any


class Settings(Mapping[str, Any]):
    """Settings by name, with their source.

    Attributes:
      source: The paper or code, as the end of "settings from ...".
    """

    def __init__(self, source: str, settings: Mapping[str, Any]):
        """Stores the source and the settings."""
        self.source = source
        self._settings = dict(settings)

    def __getitem__(self, name: str) -> Any:
        return self._settings[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._settings)

    def __len__(self) -> int:
        return len(self._settings)


# Section 4 and Table 2; Nesterov, weight decay and the batch size from the code.
FEDALIGN = Settings(
    "the FedAlign paper (Mendieta et al., CVPR 2022) and its code",
    {
        "num_clients": 16,
        "clients_per_round": 16,
        "total_rounds": 25,
        "local_epochs": 20,
        "batch_size": 64,
        "partition": "dirichlet_unbalanced",
        "concentration": 0.5,
        "client_learning_rate": 0.01,
        "learning_rate_schedule": "constant",
        "client_momentum": 0.9,
        "client_nesterov": True,
        "client_weight_decay": 1e-4,
    },
)
_HUNDRED_CLIENTS: Mapping[str, Any] = {
    "num_clients": 100,
    "clients_per_round": 10,
    "client_sampling": "fixed",
    "total_rounds": 500,
    "local_epochs": 5,
    "batch_size": 50,
    "partition": "dirichlet_balanced",
    "concentration": 0.3,
    "client_learning_rate": 0.1,
    "learning_rate_schedule": "exponential",
    "learning_rate_decay": 0.998,
    "client_momentum": 0.0,
    "client_weight_decay": 1e-3,
}
# Section 5; clipping, weight decay and client sampling from the code.
MAN = Settings(
    "the MAN paper (Yashwanth et al., WACV 2024) and its code",
    {
        **_HUNDRED_CLIENTS,
        "client_sampling": "independent",
        "max_gradient_norm": 10.0,
    },
)
# Section 5; the clipping norm and the kind of split from the code.
FEDMLB = Settings(
    "the FedMLB paper (Kim et al., ICML 2022) and its code",
    {
        **_HUNDRED_CLIENTS,
        "clients_per_round": 5,
        "total_rounds": 1000,
        "partition": "dirichlet_sequential",
        "max_gradient_norm": 10.0,
    },
)
# Section 5 of the FedMLB paper, for FedAdam.
ADAPTIVE = Settings(FEDMLB.source, {**FEDMLB, "client_learning_rate": 0.01})
# Section 6, STL-10; batch size, schedule and projector from FedUV's code.
UNIVARFL = Settings(
    "the UniVarFL paper (Gupta et al.), and FedUV's code where it is silent",
    {
        "num_clients": 10,
        "clients_per_round": 10,
        "total_rounds": 100,
        "local_epochs": 10,
        "batch_size": 128,
        "partition": "dirichlet_unbalanced",
        "concentration": 0.01,
        "client_learning_rate": 0.01,
        "learning_rate_schedule": "cosine",
        "client_momentum": 0.9,
        "client_nesterov": False,
        "client_weight_decay": 1e-5,
        "projector": "feduv",
    },
)
# The launch script of FL-Simulator.
FL_SIMULATOR = Settings(
    "FL-Simulator's code, by the method's authors",
    {
        **_HUNDRED_CLIENTS,
        "total_rounds": 1000,
        "concentration": 0.6,
        "max_gradient_norm": 10.0,
    },
)
FEDNAR = Settings(
    "FedNAR's scripts (the optimiser) and MAN's paper (the rest)",
    {
        **_HUNDRED_CLIENTS,
        "client_learning_rate": 0.01,
        "client_weight_decay": 0.0,
        "max_gradient_norm": 10.0,
    },
)
FEDEXP = Settings(
    "FedExP's code (the optimiser) and MAN's paper (the rest)",
    {
        **_HUNDRED_CLIENTS,
        "client_learning_rate": 0.01,
        "client_weight_decay": 1e-4,
        "max_gradient_norm": 10.0,
    },
)
FEDGLOSS = Settings(
    "FedGloSS's scripts (the optimiser) and MAN's paper (the rest)",
    {
        **_HUNDRED_CLIENTS,
        "local_epochs": 1,
        "batch_size": 64,
        "client_learning_rate": 0.01,
        "client_weight_decay": 4e-4,
        "learning_rate_schedule": "constant",
    },
)
FEDSWA = Settings(
    "FedSWA's code (the optimiser) and MAN's paper (the rest)",
    {
        **_HUNDRED_CLIENTS,
        "learning_rate_schedule": "cosine",
        "max_gradient_norm": 10.0,
    },
)
FEDDECORR = Settings(
    "FedDecorr's scripts for CIFAR-10, and FedAlign's paper where these are not known",
    {
        **FEDALIGN,
        "num_clients": 10,
        "clients_per_round": 10,
        "total_rounds": 100,
        "local_epochs": 10,
        "concentration": 0.05,
        "client_weight_decay": 1e-5,
    },
)
FEDACG = Settings(
    "FedACG's commands for CIFAR-100",
    {**FEDMLB, "learning_rate_decay": 0.995},
)
FEDNOVA = Settings(
    "FedNova's launch script (the optimiser) and FedAlign's paper (the rest)",
    {**FEDALIGN, "client_learning_rate": 0.02, "client_nesterov": False},
)
FEDSOL = Settings(
    "FedSOL's code (the optimiser) and MAN's paper (the rest)",
    {
        **_HUNDRED_CLIENTS,
        "client_learning_rate": 0.01,
        "client_momentum": 0.9,
        "client_weight_decay": 1e-5,
        "learning_rate_decay": 0.99,
    },
)
# The FedMLB group's; the plain mean, as in the code.
FEDRCL = Settings(
    "FedRCL's code (the optimiser) and the FedMLB paper (the rest)",
    {**FEDMLB, "client_weighting": "uniform"},
)
FEDVLS = Settings(
    "FedVLS's code (the optimiser) and MAN's paper (the rest)",
    {
        **_HUNDRED_CLIENTS,
        "local_epochs": 10,
        "batch_size": 64,
        "client_learning_rate": 0.01,
        "learning_rate_schedule": "constant",
        "client_momentum": 0.9,
        "client_weight_decay": 0.0,
    },
)
FEDETF = Settings(
    "FedETF's code, and MAN's paper for the split",
    {
        "num_clients": 20,
        "clients_per_round": 20,
        "total_rounds": 200,
        "local_epochs": 3,
        "batch_size": 128,
        "partition": "dirichlet_balanced",
        "concentration": 0.3,
        "client_learning_rate": 0.04,
        "learning_rate_schedule": "constant",
        "client_momentum": 0.9,
        "client_weight_decay": 5e-4,
    },
)
