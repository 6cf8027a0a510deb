"""Schemes that divide all examples, each class or each domain into equal parts."""

from __future__ import annotations

from tff_reg.data import keys
from tff_reg.data.partitions import dealing
from tff_reg.lazy import np


def iid(labels: np.ndarray, num_clients: int, *, seed: int) -> list[np.ndarray]:
    """Shuffles the examples and cuts them into equal parts.

    The homogeneous setting of all four papers.

    >>> from tff_reg.data import partitions
    >>> partitions.iid([0, 0, 1, 1, 2], 2, seed=0)
    [array([1, 3, 4]), array([0, 2])]

    Guaranteed: disjoint, complete, sizes that differ by at most one (the first
    N mod num_clients clients have one example more).
    """
    classes, _ = dealing.classes_of(labels)
    num_clients = dealing.check_num_clients(num_clients, classes.size)
    order = keys.driver_generator("iid", seed).permutation(classes.size)
    return dealing.ascending(np.array_split(order, num_clients))


def iid_stratified(
    labels: np.ndarray, num_clients: int, *, seed: int
) -> list[np.ndarray]:
    """Divides each class evenly among the clients.

    Source: the MAN authors' code, which follows FedDyn's, for CIFAR-100: with 100
    clients, each client has exactly 5 examples of each class.

    >>> from tff_reg.data import partitions
    >>> labels = [0, 0, 0, 0, 1, 1]
    >>> partitions.class_counts(labels, partitions.iid_stratified(labels, 2, seed=0))
    array([[2, 1],
           [2, 1]])

    Guaranteed: disjoint, complete; between clients, the sizes and the counts of each
    class differ by at most one.
    """
    classes, _ = dealing.classes_of(labels)
    num_clients = dealing.check_num_clients(num_clients, classes.size)
    order = keys.driver_generator("iid_stratified", seed).permutation(classes.size)
    order = order[np.argsort(classes[order], kind="stable")]
    return dealing.ascending(
        order[client::num_clients] for client in range(num_clients)
    )


def domain(
    labels: np.ndarray, num_clients: int, *, domains: np.ndarray, seed: int
) -> list[np.ndarray]:
    """Gives each client examples of one domain: feature shift.

    The setting of UniVarFL's PACS experiments. The first num_clients / D clients belong
    to the first of D domains, and so on; within a domain the examples are shuffled and
    cut into equal parts.

    >>> from tff_reg.data import partitions
    >>> partitions.domain([0, 1, 0, 1], 2, domains=[5, 5, 8, 8], seed=0)
    [array([0, 1]), array([2, 3])]

    Guaranteed: disjoint, complete, sizes within a domain that differ by at most one.

    Raises:
      PartitionError: Also if `domains` is None or has another length than `labels`, or
        `num_clients` is not a multiple of the number of domains.
    """
    classes, _ = dealing.classes_of(labels)
    num_clients = dealing.check_num_clients(num_clients, classes.size)
    if domains is None:
        raise dealing.PartitionError(
            "The partition domain needs data with domains; choose another partition."
        )
    numbers_of_domains, domain_sizes = dealing.classes_of(domains)
    if numbers_of_domains.size != classes.size:
        raise dealing.PartitionError(
            f"There are {numbers_of_domains.size} domain numbers for {classes.size} "
            "examples; pass one for each example."
        )
    clients_each, rest = divmod(num_clients, domain_sizes.size)
    if rest:
        raise dealing.PartitionError(
            f"num_clients is {num_clients}, but there are {domain_sizes.size} domains; "
            f"use a multiple of {domain_sizes.size}."
        )
    if domain_sizes.min() < clients_each:
        raise dealing.PartitionError(
            f"A domain has only {domain_sizes.min()} examples for {clients_each} "
            "clients; use fewer clients."
        )
    generator = keys.driver_generator("domain", seed)
    order = generator.permutation(classes.size)
    order = order[np.argsort(numbers_of_domains[order], kind="stable")]
    dealt = []
    for part in np.split(order, domain_sizes.cumsum()[:-1]):
        dealt += np.array_split(part, clients_each)
    return dealing.ascending(dealt)
