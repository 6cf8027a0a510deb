"""The settings of the papers whose experiments these are; the authors' code's besides.

What a paper does not give is as it is by default.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# FedAlign, Section 4 and Table 2; Nesterov, weight decay and the batch size from the
# authors' code.
FEDALIGN: Mapping[str, Any] = {
    "num_clients": 16,
    "clients_per_round": 16,
    "total_rounds": 25,
    "local_epochs": 20,
    "batch_size": 64,
    "partition": "dirichlet_unbalanced",
    "concentration": 0.5,
    "client_learning_rate": 0.01,
    "client_momentum": 0.9,
    "client_nesterov": True,
    "client_weight_decay": 1e-4,
}
# MAN, Section 5; clipping and weight decay from the authors' code.
MAN: Mapping[str, Any] = {
    "num_clients": 100,
    "clients_per_round": 10,
    "total_rounds": 500,
    "local_epochs": 5,
    "batch_size": 50,
    "partition": "dirichlet_balanced",
    "concentration": 0.3,
    "client_learning_rate": 0.1,
    "client_weight_decay": 1e-3,
    "max_gradient_norm": 10.0,
    "learning_rate_schedule": "exponential",
    "learning_rate_decay": 0.998,
}
# FedMLB, Section 5; the clipping norm from the authors' code.
FEDMLB: Mapping[str, Any] = {**MAN, "clients_per_round": 5, "total_rounds": 1000}
# UniVarFL, Section 6 (STL-10; 60 rounds on CIFAR-100 and PACS). It gives no batch size.
UNIVARFL: Mapping[str, Any] = {
    **FEDALIGN,
    "num_clients": 10,
    "clients_per_round": 10,
    "total_rounds": 100,
    "local_epochs": 10,
    "concentration": 0.01,
    "client_nesterov": False,
    "client_weight_decay": 1e-5,
}
# FedUV: batch size and schedule from the authors' code; the rest is UniVarFL's.
FEDUV: Mapping[str, Any] = {
    **UNIVARFL,
    "batch_size": 128,
    "learning_rate_schedule": "cosine",
}
# FedNova: the optimiser of the authors' launch script; the split is FedAlign's.
FEDNOVA: Mapping[str, Any] = {
    **FEDALIGN,
    "client_learning_rate": 0.02,
    "client_nesterov": False,
}
# FedSOL and FedETF: the optimisers of the authors' code; clients as in MAN.
_WITHOUT_CLIPPING = {**MAN, "max_gradient_norm": None}
FEDSOL: Mapping[str, Any] = {
    **_WITHOUT_CLIPPING,
    "client_learning_rate": 0.01,
    "client_momentum": 0.9,
    "client_weight_decay": 1e-5,
    "learning_rate_decay": 0.99,
}
FEDETF: Mapping[str, Any] = {
    **_WITHOUT_CLIPPING,
    "local_epochs": 3,
    "batch_size": 128,
    "client_learning_rate": 0.04,
    "client_momentum": 0.9,
    "client_weight_decay": 5e-4,
}
