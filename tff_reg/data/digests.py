"""Digests of examples and of their split: whether two runs have the same data.

Of what is in memory, so that it does not matter where the data were. SHA-256 takes
about a second for two gigabytes.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from tff_reg.lazy import np

# By the names that `config.json` has for them: what they are of, in words.
NAMES: Mapping[str, str] = {
    "digest_of_examples": "training examples",
    "digest_of_split": "clients, or another split of the examples",
    "digest_of_test_examples": "test examples",
}
EXAMPLES, SPLIT, TEST_EXAMPLES = NAMES


def client_ids(count: int) -> list[str]:
    """The names of so many clients, where nobody gives them any."""
    digits = max(4, len(str(count - 1)))
    return [f"client_{row:0{digits}d}" for row in range(count)]


def of_examples(*arrays: Any) -> str:
    """The digest of arrays: of their types, shapes and numbers."""
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(f"{array.dtype.str}{array.shape}".encode())
        digest.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return digest.hexdigest()


def of_split(client_ids: Sequence[str], positions: Sequence[Any]) -> str:
    """The digest of which examples are whose.

    Args:
      client_ids: The clients' names.
      positions: Each one's positions in the training examples.

    Returns:
      The digest.
    """
    digest = hashlib.sha256(json.dumps(list(client_ids)).encode("utf-8"))
    for of_client in positions:
        own = np.ascontiguousarray(of_client, "<i8")
        digest.update(len(own).to_bytes(8, "little"))
        digest.update(own.tobytes())
    return digest.hexdigest()
