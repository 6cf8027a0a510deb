"""The scheme of data that come with clients."""

from __future__ import annotations

from tff_reg.data import keys
from tff_reg.data.partitions import dealing
from tff_reg.lazy import np


def natural(
    labels: np.ndarray,
    num_clients: int,
    *,
    clients: np.ndarray,
    num_owners: int | None,
    seed: int,
) -> list[np.ndarray]:
    """Gives each client its own examples.

    >>> from tff_reg.data import partitions
    >>> partitions.partition("natural", [0, 1, 0], 2, clients=[1, 0, 1], seed=0)
    [array([1]), array([0, 2])]

    Guaranteed: disjoint. If there are more than `num_clients` clients, the seed draws
    which ones take part, in their order; the examples of the others belong to nobody.

    Raises:
      PartitionError: Also if `clients` is None, or has another length than `labels`.
    """
    if clients is None:
        raise dealing.PartitionError(
            "The partition natural needs data with clients; choose another partition."
        )
    owners = dealing.check_labels(clients).astype(np.int64)
    if owners.size != np.size(labels):
        raise dealing.PartitionError(
            f"There are {owners.size} client numbers for {np.size(labels)} examples;"
            " pass one for each example."
        )
    sizes = np.bincount(owners, minlength=num_owners or 0)
    chosen = drawn(sizes.size, num_clients, seed)
    order = np.argsort(owners, kind="stable").astype(np.int64)
    parts = np.split(order, sizes.cumsum()[:-1])
    return [parts[client] for client in chosen]


def drawn(there: int, num_clients: int, seed: int) -> np.ndarray:
    """Returns the numbers of the clients that take part, ascending."""
    num_clients = dealing.check_count("num_clients", num_clients, least=1)
    if num_clients > there:
        raise dealing.PartitionError(
            f"num_clients is {num_clients}, but the data have only {there} clients."
        )
    order = keys.driver_generator("natural", seed).permutation(there)
    return np.sort(order[:num_clients])
