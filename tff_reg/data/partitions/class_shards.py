"""The schemes that give each client a fixed number of classes."""

from __future__ import annotations

import heapq

from tff_reg.data import keys
from tff_reg.data.partitions import dealing, dirichlet
from tff_reg.lazy import np

# Random swaps of classes between clients: the number per shard, and the maximum.
_SWAPS_PER_SHARD = 10
_MOST_SWAPS = 50_000


def shards(
    labels: np.ndarray, num_clients: int, *, classes_per_client: int, seed: int
) -> list[np.ndarray]:
    """Gives each client examples of exactly `classes_per_client` classes.

    Source: the "pathological" split of H. B. McMahan et al., "Communication-Efficient
    Learning of Deep Networks from Decentralized Data", AISTATS 2017, Section 3: sort
    by label, cut into num_clients * k shards, give each client k shards.

    In the paper a shard can hold two classes, and a client can get two shards of one
    class. Here every shard holds one class, and a client's k shards hold k different
    classes. Classes are cut so that the largest shard is as small as possible: with
    equally large classes all shards have the same size, as in the paper. Random swaps
    mix the clients' classes.

    >>> from tff_reg.data import partitions
    >>> labels = [0, 0, 1, 1, 2, 2]
    >>> dealt = partitions.shards(labels, 3, classes_per_client=2, seed=0)
    >>> (partitions.class_counts(labels, dealt) > 0).sum(axis=1)
    array([2, 2, 2])

    Guaranteed: disjoint, complete, exactly `classes_per_client` classes each.

    Raises:
      PartitionError: Also if the clients together cannot hold all classes, or there are
        fewer examples than shards.
    """
    classes, class_sizes, holds, generator = _held(
        "shards", labels, num_clients, classes_per_client, seed
    )
    shares = holds.sum(axis=0)
    counts = holds * (class_sizes // shares)
    # In a random order of clients, the first holders of a class get its remainder.
    order = generator.permutation(len(holds))
    rank = holds[order].cumsum(axis=0)
    counts[order] += holds[order] & (rank <= class_sizes % shares)
    return dealing.deal(classes, counts, generator)


def shards_dirichlet(
    labels: np.ndarray,
    num_clients: int,
    *,
    classes_per_client: int,
    concentration: float,
    seed: int,
) -> list[np.ndarray]:
    """Gives each client a number of classes, and Dirichlet shares of their examples.

    The classes are chosen as by `shards`. Each class is divided among its holders by a
    draw from a symmetric Dirichlet, as in A. Shamsian et al., "Personalized Federated
    Learning using Hypernetworks" (pFedHN), ICML 2021, Section 5, whose shares are
    normalised uniform numbers.

    >>> from tff_reg.data import partitions
    >>> dealt = partitions.shards_dirichlet(
    ...     [0, 1] * 50, 4, classes_per_client=1, concentration=0.5, seed=0)
    >>> [len(positions) for positions in dealt]
    [43, 7, 1, 49]

    Guaranteed: disjoint, complete, exactly `classes_per_client` classes each.

    Raises:
      PartitionError: As `shards`.
    """
    classes, class_sizes, holds, generator = _held(
        "shards_dirichlet", labels, num_clients, classes_per_client, seed
    )
    dirichlet.checked(classes, num_clients, concentration)
    counts = holds.astype(np.int64)
    for column, size in zip(counts.T, class_sizes):
        own = np.flatnonzero(column)
        logs = dirichlet.log_dirichlet(generator, concentration, 1, own.size)
        cuts = dirichlet.cumulated_counts(np.exp(logs - logs.max()), size - own.size)
        column[own] += np.diff(cuts, prepend=0)
    return dealing.deal(classes, counts, generator)


def _held(
    scheme: str, labels: np.ndarray, num_clients: int, per_client: int, seed: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.random.Generator]:
    """Draws the classes of each client, bool [clients, classes]."""
    classes, class_sizes = dealing.classes_of(labels)
    num_clients = dealing.check_num_clients(num_clients, classes.size)
    per_client = dealing.check_count("classes_per_client", per_client, least=1)
    if per_client > class_sizes.size:
        raise dealing.PartitionError(
            f"classes_per_client is {per_client}, but there are only "
            f"{class_sizes.size} classes; use at most {class_sizes.size}."
        )
    if num_clients * per_client < class_sizes.size:
        raise dealing.PartitionError(
            f"{num_clients} clients with {per_client} classes each cannot hold all "
            f"{class_sizes.size} classes; use more clients or more classes a client."
        )
    shares = _shards_of_classes(class_sizes, num_clients, per_client)
    generator = keys.driver_generator(scheme, seed)
    holds = _spread_shards(shares, num_clients, per_client, generator)
    return classes, class_sizes, holds, generator


def _shards_of_classes(
    class_sizes: np.ndarray, num_clients: int, classes_per_client: int
) -> np.ndarray:
    """Returns the number of shards of each class: int64 [classes].

    Repeatedly, the class with the largest shards is cut into one more shard, as long
    as there are clients to hold the shard and examples for it.
    """
    shares = np.ones(class_sizes.size, dtype=np.int64)
    limits = np.minimum(class_sizes, num_clients)
    heap = [(-size, c) for c, size in enumerate(class_sizes) if limits[c] > 1]
    heapq.heapify(heap)
    for _ in range(num_clients * classes_per_client - class_sizes.size):
        if not heap:
            raise dealing.PartitionError(
                f"{class_sizes.sum()} examples are too few for {num_clients} clients "
                f"with {classes_per_client} classes each; use fewer clients or fewer "
                "classes a client."
            )
        _, c = heapq.heappop(heap)
        shares[c] += 1
        if shares[c] < limits[c]:
            heapq.heappush(heap, (-class_sizes[c] / shares[c], c))
    return shares


def _spread_shards(
    shares: np.ndarray,
    num_clients: int,
    classes_per_client: int,
    generator: np.random.Generator,
) -> np.ndarray:
    """Returns the classes of each client: bool [clients, classes] with given sums.

    A class goes to the clients that still need most classes: by the theorem of Havel
    and Hakimi this always succeeds. Then pairs of clients swap classes at random, which
    keeps both sums.
    """
    holds = np.zeros((num_clients, shares.size), dtype=bool)
    needs = np.full(num_clients, classes_per_client)
    for column in generator.permutation(shares.size):
        ties = generator.permutation(num_clients)
        takers = ties[np.argsort(-needs[ties], kind="stable")][: shares[column]]
        holds[takers, column] = True
        needs[takers] -= 1
    swaps = min(_SWAPS_PER_SHARD * int(shares.sum()), _MOST_SWAPS)
    pairs = generator.integers(num_clients, size=(swaps, 2))
    picks = generator.random((swaps, 2))
    for (one, other), (mine, yours) in zip(pairs, picks):
        own = np.flatnonzero(holds[one] & ~holds[other])
        others = np.flatnonzero(holds[other] & ~holds[one])
        if own.size:  # Then `others` has the same size.
            given = own[int(mine * own.size)], others[int(yours * others.size)]
            holds[one, given] = False, True
            holds[other, given] = True, False
    return holds
