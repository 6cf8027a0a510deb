"""Data of simulated clients: partitions, client data, sampling, augmentation.

Importing this package imports neither TensorFlow nor NumPy; the names below are
loaded when they are first used.
"""

from __future__ import annotations

import importlib

_HOMES = {
    "ArrayClientData": "client_data",
    "client_key": "keys",
    "sample_clients": "sampling",
    "sample_clients_bernoulli": "sampling",
    "PARTITIONS": "partitions",
    "PartitionError": "partitions",
    "augmentation": None,
    "client_data": None,
    "keys": None,
    "partitions": None,
    "sampling": None,
}

__all__ = sorted(_HOMES)


def __getattr__(name: str):
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = _HOMES[name]
    module = importlib.import_module(f"{__name__}.{home or name}")
    return getattr(module, name) if home else module


def __dir__() -> list[str]:
    return sorted(set(globals()) | set(__all__))
