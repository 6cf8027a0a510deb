"""Digests of examples and of their split, by which runs compare their data.

They are computed from the arrays in memory, so the location of the files does not
matter. SHA-256 takes about a second for two gigabytes.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from tff_reg.lazy import np

EXAMPLES, SPLIT, TEST_EXAMPLES = "examples", "split", "test_examples"
# Names in `config.json`: of the digest of all examples, and of that of their split.
DATA, DEALT = "digest_of_data", "digest_of_split"


def together(parts: Mapping[str, str]) -> str:
    """Returns one digest of several."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def recorded(parts: Mapping[str, str]) -> dict[str, str]:
    """Returns the digests of a run's examples and of their split, as recorded."""
    examples = {name: value for name, value in parts.items() if name != SPLIT}
    found = {DATA: together(examples)} if examples else {}
    return {**found, DEALT: parts[SPLIT]} if SPLIT in parts else found


def client_ids(count: int) -> list[str]:
    """Returns the default names of `count` clients: client_0000, client_0001, ..."""
    digits = max(4, len(str(count - 1)))
    return [f"client_{row:0{digits}d}" for row in range(count)]


def of_examples(*arrays: Any) -> str:
    """Returns the digest of the types, shapes and values of arrays."""
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(f"{array.dtype.str}{array.shape}".encode())
        digest.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return digest.hexdigest()


def of_split(client_ids: Sequence[str], positions: Sequence[Any]) -> str:
    """Returns the digest of a split of the examples into clients."""
    digest = hashlib.sha256(json.dumps(list(client_ids)).encode("utf-8"))
    for of_client in positions:
        own = np.ascontiguousarray(of_client, "<i8")
        digest.update(len(own).to_bytes(8, "little"))
        digest.update(own.tobytes())
    return digest.hexdigest()
