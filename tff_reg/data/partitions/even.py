"""Schemes that cut into equal parts: of all, of each class, of each domain."""

from __future__ import annotations

from tff_reg.data import keys
from tff_reg.data.partitions import dealing
from tff_reg.lazy import np


def iid(labels: np.ndarray, num_clients: int, *, seed: int) -> list[np.ndarray]:
    """Shuffles the examples and cuts them into equal parts.

    The homogeneous setting of all four papers. Guaranteed: disjoint, complete, sizes
    that differ by at most one (the first N mod num_clients clients have the extra
    one).
    """
    classes, _ = dealing.classes_of(labels)
    num_clients = dealing.check_num_clients(num_clients, classes.size)
    order = keys.driver_generator("iid", seed).permutation(classes.size)
    return dealing.ascending(np.array_split(order, num_clients))


def iid_stratified(
    labels: np.ndarray, num_clients: int, *, seed: int
) -> list[np.ndarray]:
    """Deals each class out evenly, in turns.

    Source: the MAN authors' code, after FedDyn's, for CIFAR-100: with 100 clients each
    has exactly 5 examples of each class.

    Guaranteed: disjoint, complete, sizes that differ by at most one, also class by
    class.
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
    """Each client holds examples of one domain: feature shift.

    The setting of UniVarFL's PACS experiments. The clients are shared out evenly, the
    first num_clients / D of them to the first domain and so on; within a domain the
    examples are shuffled and cut into equal parts.

    Guaranteed: disjoint, complete, sizes within a domain that differ by at most one.

    Raises:
      PartitionError: Also if there are no `domains` or not one an example, or the
        clients cannot be shared out evenly.
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
            "examples; pass one each."
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
