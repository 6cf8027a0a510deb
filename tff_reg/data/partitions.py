"""How a data set's examples are dealt out to clients.

A partition is a list with one int64 array a client: the positions of that client's
examples, in ascending order. Every scheme here is a pure function from labels to a
partition. No two clients ever share an example.

Three papers say "Dirichlet(alpha)" and mean three different things, so each scheme
has its own name:

| name                 | the Dirichlet runs over       | sizes      | nobody gets   |
|----------------------|-------------------------------|------------|---------------|
| dirichlet_unbalanced | clients, once for each class  | vary       | nothing       |
| dirichlet_balanced   | classes, once for each client | equal      | N mod clients |
| dirichlet_sequential | classes, once for each client | equal      | N mod clients |
| quantity             | clients, once                 | vary       | nothing       |
| iid                  | -                             | within one | nothing       |
| iid_stratified       | -                             | within one | nothing       |
| shards               | -                             | near equal | nothing       |
| domain               | -                             | vary       | nothing       |
| split_file           | -                             | as written | as written    |

`PARTITIONS` has them by name with what each needs; `partition` calls one by name.

Cost, measured on one core of a 2-core x86 machine: 50,000 labels for 500 clients take
8 ms (`iid`), 11 to 35 ms (`dirichlet_unbalanced`, where the first draws succeed) and
23 to 77 ms (`dirichlet_balanced`) with 10 to 200 classes. These two first draw only the
table of *how many* examples of each class a client gets, and then deal the indices
once; taking examples one at a time would be 50,000 Python steps. `dirichlet_sequential`
compares all examples that are left for each client, which takes 0.3 s.
"""

from __future__ import annotations

import ast
import dataclasses
import heapq
import math
import numbers
import operator
import os
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from tff_reg.data import keys
from tff_reg.lazy import np

DEFAULT_MINIMUM_EXAMPLES = 10
DEFAULT_MAX_DRAWS = 1000

# Swaps that mix who holds which classes in `shards`, for each shard and at most.
_SWAPS_PER_SHARD = 10
_MOST_SWAPS = 50_000

# Concentrations beyond these are drawn as these: nothing that can be seen in double
# precision changes any more, and the gamma variates stay finite.
_SMALLEST_CONCENTRATION = 1e-12
_LARGEST_CONCENTRATION = 1e12


class PartitionError(ValueError):
    """A partition that cannot be made from these labels and numbers."""


class UnknownPartitionError(PartitionError):
    """A name that is not in `PARTITIONS`."""


def dirichlet_unbalanced(
    labels: np.ndarray,
    num_clients: int,
    *,
    concentration: float,
    seed: int,
    minimum_examples: int = DEFAULT_MINIMUM_EXAMPLES,
    max_draws: int = DEFAULT_MAX_DRAWS,
) -> list[np.ndarray]:
    """The FedML split that FedAlign uses: each class is spread over the clients.

    Source: M. Mendieta et al., "Local Learning Matters: Rethinking Data
    Heterogeneity in Federated Learning" (FedAlign), CVPR 2022, Section 3.1, as its
    code does it; the rule is FedML's (C. He et al., arXiv:2007.13518), after
    H. Wang et al., "Federated Learning with Matched Averaging", ICLR 2020.

    For each class in ascending order, proportions over the **clients** are drawn
    from a symmetric Dirichlet; clients that already hold N / num_clients examples
    or more are left out and the rest renormalised (the balancing rule; it does not
    cut, so a client can end above the mean); the class's examples, shuffled, are cut
    at the rounded-down cumulated proportions. If a client ends with fewer than
    `minimum_examples`, everything is drawn again.

    Guaranteed: disjoint, complete (every example has a client), every client has at
    least `minimum_examples`. Not guaranteed: that a client sees every class, or
    equal sizes.

    Args:
      labels: [N] whole numbers >= 0 of any dtype.
      num_clients: At least 1.
      concentration: alpha of Dir(alpha), above 0 and finite. Large is close to IID,
        close to 0 gives each class to few clients.
      seed: The same seed gives the same partition.
      minimum_examples: 10 in the authors' code; 0 accepts empty clients.
      max_draws: How often to try before giving up.

    Returns:
      `num_clients` ascending int64 arrays of positions in `labels`.

    Raises:
      PartitionError: If the labels are empty or no class numbers, a number is out of
        range, there are not enough examples, or `max_draws` draws all left some
        client short.
    """
    classes, class_sizes = _classes(labels)
    num_clients = _check_num_clients(num_clients, classes.size)
    concentration = _check_concentration(concentration)
    minimum_examples = _check_minimum(minimum_examples, num_clients, classes.size)
    max_draws = _check_count("max_draws", max_draws, least=1)
    generator = keys.driver_generator("dirichlet_unbalanced", seed)
    most = 0
    for _ in range(max_draws):
        counts = _spread_classes(class_sizes, num_clients, concentration, generator)
        least = int(counts.sum(axis=1).min())
        if least >= minimum_examples:
            return _deal(classes, counts, generator)
        most = max(most, least)
    raise _draws_failed(
        max_draws,
        concentration,
        num_clients,
        minimum_examples,
        most,
        "dirichlet_balanced",
    )


def dirichlet_balanced(
    labels: np.ndarray, num_clients: int, *, concentration: float, seed: int
) -> list[np.ndarray]:
    """The FedDyn split that MAN uses: each client has a mix of classes.

    Source: D. A. E. Acar et al., "Federated Learning Based on Dynamic
    Regularization" (FedDyn), ICLR 2021, as its code does it; the MAN paper, Section 4,
    uses the same. (FedMLB's kind is `dirichlet_sequential`.)

    Each client draws proportions over the **classes** from a symmetric Dirichlet.
    Then, one at a time, a client that is not full yet is picked uniformly and takes
    one example of a class drawn from its proportions, without replacement. When a
    class has run out, the proportions are renormalised over the classes that are
    left (what the code reaches by drawing again), so the clients that fill up last
    can be far from their proportions when `concentration` is small.

    The draws are those of the one-at-a-time procedure, but are made for all clients
    at once: the order of turns from exponential waiting times, and the classes again
    only for turns after a class ran out.

    Guaranteed: disjoint, every client has exactly floor(N / num_clients) examples.
    The N mod num_clients examples that are left over, a random choice, belong to
    nobody (as in the code).

    Args:
      labels: [N] whole numbers >= 0 of any dtype.
      num_clients: From 1 to N.
      concentration: delta or alpha of Dir(alpha), above 0 and finite. Large is close
        to IID, close to 0 gives each client one class while the supply lasts.
      seed: The same seed gives the same partition.

    Returns:
      `num_clients` ascending int64 arrays of positions in `labels`.

    Raises:
      PartitionError: If the labels are empty or no class numbers, or a number is out
        of range.
    """
    classes, class_sizes, log_proportions, generator = _draw_mixes(
        "dirichlet_balanced", labels, num_clients, concentration, seed
    )
    counts = _take_turns(
        log_proportions, class_sizes, classes.size // num_clients, generator
    )
    return _deal(classes, counts, generator)


def dirichlet_sequential(
    labels: np.ndarray, num_clients: int, *, concentration: float, seed: int
) -> list[np.ndarray]:
    """The FedMLB split: each client has a mix of classes, one client after the other.

    Source: J. Kim et al., "Multi-Level Branched Regularization for Federated Learning"
    (FedMLB), ICML 2022, Section 5.1, as its code does it. The authors' own splits are
    files (`split_file`).

    Each client draws proportions over the **classes** from a symmetric Dirichlet. The
    first client takes all its examples at once, without replacement, each example with
    a weight that is its class's proportion; then the second of what is left, and so
    on. A class counts by its proportion times the number of its examples that are
    left, and the last clients get what nobody took.

    The draws are those of weighted sampling without replacement: the examples with the
    smallest exponential waiting times at rates equal to the weights (P. Efraimidis,
    P. Spirakis, "Weighted random sampling with a reservoir", 2006).

    Guaranteed: disjoint, every client has exactly floor(N / num_clients) examples.
    The N mod num_clients examples that are left over belong to nobody.

    Args:
      labels: [N] whole numbers >= 0 of any dtype.
      num_clients: From 1 to N.
      concentration: alpha of Dir(alpha), above 0 and finite.
      seed: The same seed gives the same partition.

    Returns:
      `num_clients` ascending int64 arrays of positions in `labels`.

    Raises:
      PartitionError: If the labels are empty or no class numbers, or a number is out
        of range.
    """
    classes, _, log_proportions, generator = _draw_mixes(
        "dirichlet_sequential", labels, num_clients, concentration, seed
    )
    client_size = classes.size // num_clients
    left, dealt = np.arange(classes.size), []
    for of_client in log_proportions:
        # Logarithms: no proportion is too small to be compared.
        waiting = np.log(generator.standard_exponential(left.size))
        waiting -= of_client[classes[left]]
        chosen = np.argpartition(waiting, client_size - 1)[:client_size]
        dealt.append(np.sort(left[chosen]).astype(np.int64))
        left = np.delete(left, chosen)
    return dealt


def iid(labels: np.ndarray, num_clients: int, *, seed: int) -> list[np.ndarray]:
    """Shuffles the examples and cuts them into equal parts.

    The homogeneous setting of all four papers. Guaranteed: disjoint, complete, sizes
    that differ by at most one (the first N mod num_clients clients have the extra
    one).

    Args:
      labels: [N] whole numbers >= 0 of any dtype; only N matters.
      num_clients: From 1 to N.
      seed: The same seed gives the same partition.

    Returns:
      `num_clients` ascending int64 arrays of positions in `labels`.

    Raises:
      PartitionError: If the labels are empty or no class numbers, or `num_clients`
        is out of range.
    """
    classes, _ = _classes(labels)
    num_clients = _check_num_clients(num_clients, classes.size)
    order = keys.driver_generator("iid", seed).permutation(classes.size)
    return [
        np.sort(part).astype(np.int64) for part in np.array_split(order, num_clients)
    ]


def iid_stratified(
    labels: np.ndarray, num_clients: int, *, seed: int
) -> list[np.ndarray]:
    """Deals each class out evenly, in turns.

    Source: the MAN authors' code, after FedDyn's, for CIFAR-100: with 100 clients each
    has exactly 5 examples of each class.

    Guaranteed: disjoint, complete, sizes that differ by at most one, also class by
    class.

    Args:
      labels: [N] whole numbers >= 0 of any dtype.
      num_clients: From 1 to N.
      seed: The same seed gives the same partition.

    Returns:
      `num_clients` ascending int64 arrays of positions in `labels`.

    Raises:
      PartitionError: If the labels are empty or no class numbers, or `num_clients`
        is out of range.
    """
    classes, _ = _classes(labels)
    num_clients = _check_num_clients(num_clients, classes.size)
    order = keys.driver_generator("iid_stratified", seed).permutation(classes.size)
    order = order[np.argsort(classes[order], kind="stable")]
    return [
        np.sort(order[client::num_clients]).astype(np.int64)
        for client in range(num_clients)
    ]


def quantity(
    labels: np.ndarray,
    num_clients: int,
    *,
    concentration: float,
    seed: int,
    minimum_examples: int = DEFAULT_MINIMUM_EXAMPLES,
    max_draws: int = DEFAULT_MAX_DRAWS,
) -> list[np.ndarray]:
    """Clients of very different sizes with the same mix of classes.

    Source: "quantity skew" of Q. Li et al., "Federated Learning on Non-IID Data
    Silos: An Experimental Study", ICDE 2022, Section IV-C.

    The clients' shares of the examples are one draw of a symmetric Dirichlet; the
    examples, shuffled, are cut at the rounded-down cumulated shares. If a client ends
    with fewer than `minimum_examples`, the shares are drawn again.

    Guaranteed: disjoint, complete, every client has at least `minimum_examples`.

    Args:
      labels: [N] whole numbers >= 0 of any dtype; only N matters.
      num_clients: At least 1.
      concentration: beta of Dir(beta), above 0 and finite. Large gives equal sizes.
      seed: The same seed gives the same partition.
      minimum_examples: 0 accepts empty clients.
      max_draws: How often to try before giving up.

    Returns:
      `num_clients` ascending int64 arrays of positions in `labels`.

    Raises:
      PartitionError: As `dirichlet_unbalanced`.
    """
    classes, _ = _classes(labels)
    num_clients = _check_num_clients(num_clients, classes.size)
    concentration = _check_concentration(concentration)
    minimum_examples = _check_minimum(minimum_examples, num_clients, classes.size)
    max_draws = _check_count("max_draws", max_draws, least=1)
    generator = keys.driver_generator("quantity", seed)
    most = 0
    for _ in range(max_draws):
        logs = _log_dirichlet(generator, concentration, 1, num_clients)[0]
        ends = _cumulated_counts(np.exp(logs - logs.max()), classes.size)
        least = int(np.diff(ends, prepend=0).min())
        if least >= minimum_examples:
            order = generator.permutation(classes.size)
            return [
                np.sort(part).astype(np.int64) for part in np.split(order, ends[:-1])
            ]
        most = max(most, least)
    raise _draws_failed(
        max_draws, concentration, num_clients, minimum_examples, most, "iid"
    )


def shards(
    labels: np.ndarray, num_clients: int, *, classes_per_client: int, seed: int
) -> list[np.ndarray]:
    """Each client holds examples of exactly so many classes.

    Source: the "pathological" split of H. B. McMahan et al., "Communication-Efficient
    Learning of Deep Networks from Decentralized Data", AISTATS 2017, Section 3: sort
    by label, cut into num_clients * k shards, deal each client k.

    There the shards are cut across the sorted labels, so one can hold two classes,
    and a client may be dealt two shards of one class. Here every shard is of one
    class and a client's k shards are of k different classes. Classes are cut so that
    the largest shard is as small as it can be: with equally large classes all shards
    have the same size, as in the paper. Who holds which classes is mixed by random
    swaps.

    Guaranteed: disjoint, complete, exactly `classes_per_client` classes each.

    Args:
      labels: [N] whole numbers >= 0 of any dtype.
      num_clients: At least 1.
      classes_per_client: k, from 1 to the number of classes.
      seed: The same seed gives the same partition.

    Returns:
      `num_clients` ascending int64 arrays of positions in `labels`.

    Raises:
      PartitionError: If the labels are empty or no class numbers, a number is out of
        range, the clients together cannot hold all classes, or there are too few
        examples for so many shards.
    """
    classes, class_sizes = _classes(labels)
    num_clients = _check_num_clients(num_clients, classes.size)
    per_client = _check_count("classes_per_client", classes_per_client, least=1)
    if per_client > class_sizes.size:
        raise PartitionError(
            f"classes_per_client is {per_client}, but there are only "
            f"{class_sizes.size} classes; use at most {class_sizes.size}."
        )
    if num_clients * per_client < class_sizes.size:
        raise PartitionError(
            f"{num_clients} clients with {per_client} classes each cannot hold all "
            f"{class_sizes.size} classes; use more clients or more classes a client."
        )
    shares = _shards_of_classes(class_sizes, num_clients, per_client)
    generator = keys.driver_generator("shards", seed)
    holds = _spread_shards(shares, num_clients, per_client, generator)
    counts = holds * (class_sizes // shares)
    # The first of a class's holders, in a random order of clients, get what is left.
    order = generator.permutation(num_clients)
    rank = holds[order].cumsum(axis=0)
    counts[order] += holds[order] & (rank <= class_sizes % shares)
    return _deal(classes, counts, generator)


def domain(
    labels: np.ndarray, num_clients: int, *, domains: np.ndarray, seed: int
) -> list[np.ndarray]:
    """Each client holds examples of one domain: feature shift.

    The setting of UniVarFL's PACS experiments. The clients are shared out evenly, the
    first num_clients / D of them to the first domain and so on; within a domain the
    examples are shuffled and cut into equal parts.

    Guaranteed: disjoint, complete, sizes within a domain that differ by at most one.

    Args:
      labels: [N] whole numbers >= 0 of any dtype; only N matters.
      num_clients: A multiple of the number of domains.
      domains: [N] whole numbers >= 0, each example's domain.
      seed: The same seed gives the same partition.

    Returns:
      `num_clients` ascending int64 arrays of positions in `labels`.

    Raises:
      PartitionError: If the labels are empty or no class numbers, there are no
        domains or not one an example, or the clients cannot be shared out evenly.
    """
    classes, _ = _classes(labels)
    num_clients = _check_num_clients(num_clients, classes.size)
    if domains is None:
        raise PartitionError(
            "The partition domain needs data with domains; choose another partition."
        )
    numbers_of_domains, domain_sizes = _classes(domains)
    if numbers_of_domains.size != classes.size:
        raise PartitionError(
            f"There are {numbers_of_domains.size} domain numbers for {classes.size} "
            "examples; pass one each."
        )
    clients_each, rest = divmod(num_clients, domain_sizes.size)
    if rest:
        raise PartitionError(
            f"num_clients is {num_clients}, but there are {domain_sizes.size} domains; "
            f"use a multiple of {domain_sizes.size}."
        )
    if domain_sizes.min() < clients_each:
        raise PartitionError(
            f"A domain has only {domain_sizes.min()} examples for {clients_each} "
            "clients; use fewer clients."
        )
    generator = keys.driver_generator("domain", seed)
    order = generator.permutation(classes.size)
    order = order[np.argsort(numbers_of_domains[order], kind="stable")]
    dealt = []
    for part in np.split(order, domain_sizes.cumsum()[:-1]):
        dealt += np.array_split(part, clients_each)
    return [np.sort(part).astype(np.int64) for part in dealt]


def split_file(
    labels: np.ndarray,
    num_clients: int,
    *,
    split_file: str | os.PathLike,
    seed: int | None = None,
) -> list[np.ndarray]:
    """Deals out examples as a file says; draws nothing.

    The format is that of the `client_data` files of the FedMLB authors' repository:
    one Python dict from client numbers to lists (or sets, or tuples) of positions,
    such as `{0: [3, 17], 1: [5]}`. It is read as a literal and never executed.

    Guaranteed: disjoint. Examples that the file leaves out belong to nobody.

    Args:
      labels: [N] whole numbers >= 0 of any dtype; only N matters.
      num_clients: As many as the file has.
      split_file: The file's path.
      seed: Not used.

    Returns:
      One ascending int64 array of positions in `labels` a client, in the order of the
      clients' numbers.

    Raises:
      PartitionError: If the file cannot be read, is something else, has another
        number of clients, or a position that is taken twice or beyond the labels.
    """
    del seed
    size = _check_labels(labels).size
    num_clients = _check_num_clients(num_clients, size)
    clients = _read_split_file(split_file)
    if len(clients) != num_clients:
        raise PartitionError(
            f"The split file {split_file} has {len(clients)} clients, but num_clients "
            f"is {num_clients}; use num_clients={len(clients)}."
        )
    dealt = [np.sort(np.array([*clients[one]], np.int64)) for one in sorted(clients)]
    together = np.sort(np.concatenate(dealt))
    if together.size and not 0 <= together[0] <= together[-1] < size:
        raise PartitionError(
            f"The split file {split_file} has positions from {together[0]} to "
            f"{together[-1]}, but there are {size} examples; it belongs to other data."
        )
    twice = together[1:][np.diff(together) == 0]
    if twice.size:
        raise PartitionError(
            f"The split file {split_file} deals out the example {twice[0]} twice; each "
            "may belong to one client."
        )
    return dealt


def _read_split_file(path: str | os.PathLike) -> dict:
    """The dict in a split file: whole numbers to collections of whole numbers."""
    try:
        with open(path, encoding="utf-8") as file:
            clients = ast.literal_eval(file.read().strip())
    except OSError as error:
        raise PartitionError(
            f"The split file {path} cannot be read ({error.strerror})."
        ) from error
    # What literal_eval says of malformed, binary or endlessly nested text.
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError) as error:
        raise PartitionError(
            f"The split file {path} is not a Python dict of lists such as "
            "{0: [3, 17], 1: [5]}."
        ) from error
    if (
        not isinstance(clients, dict)
        or not clients
        or not all(type(number) is int for number in clients)
        or not all(isinstance(own, (list, set, tuple)) for own in clients.values())
        or not all(type(one) is int for own in clients.values() for one in own)
    ):
        raise PartitionError(
            f"The split file {path} must hold one dict from client numbers to lists of "
            "positions, such as {0: [3, 17], 1: [5]}."
        )
    if max((abs(one) for own in clients.values() for one in own), default=0) >= 2**63:
        raise PartitionError(f"The split file {path} has positions beyond 64 bits.")
    return clients


@dataclasses.dataclass(frozen=True)
class PartitionScheme:
    """What a caller, or a flag, needs to know about a scheme."""

    # As given to `partition` and to --partition.
    name: str
    # The function itself.
    function: Callable[..., list]
    # What it requires beside the number of clients and the seed: keyword arguments.
    needs: tuple[str, ...]
    # Whether it takes `minimum_examples`.
    uses_minimum_examples: bool
    # Whether every example ends with a client, whatever the numbers.
    complete: bool
    # Whether all clients have the same number of examples.
    equal_sizes: bool
    # One line for --help.
    summary: str


PARTITIONS: Mapping[str, PartitionScheme] = MappingProxyType(
    {
        scheme.name: scheme
        for scheme in (
            PartitionScheme(
                name="dirichlet_unbalanced",
                function=dirichlet_unbalanced,
                needs=("concentration",),
                uses_minimum_examples=True,
                complete=True,
                equal_sizes=False,
                summary=(
                    "FedAlign, FedML: each class spread over the clients by "
                    "Dir(concentration), at least 10 examples a client"
                ),
            ),
            PartitionScheme(
                name="dirichlet_balanced",
                function=dirichlet_balanced,
                needs=("concentration",),
                uses_minimum_examples=False,
                complete=False,
                equal_sizes=True,
                summary=(
                    "FedDyn, MAN: each client a mix of classes by "
                    "Dir(concentration), equal sizes, dealt in turns"
                ),
            ),
            PartitionScheme(
                name="dirichlet_sequential",
                function=dirichlet_sequential,
                needs=("concentration",),
                uses_minimum_examples=False,
                complete=False,
                equal_sizes=True,
                summary=(
                    "FedMLB: each client a mix of classes by Dir(concentration), equal "
                    "sizes, one client after the other"
                ),
            ),
            PartitionScheme(
                name="iid",
                function=iid,
                needs=(),
                uses_minimum_examples=False,
                complete=True,
                equal_sizes=False,
                summary="shuffled and cut into equal parts",
            ),
            PartitionScheme(
                name="iid_stratified",
                function=iid_stratified,
                needs=(),
                uses_minimum_examples=False,
                complete=True,
                equal_sizes=False,
                summary="MAN on CIFAR-100: equal parts of each class",
            ),
            PartitionScheme(
                name="shards",
                function=shards,
                needs=("classes_per_client",),
                uses_minimum_examples=False,
                complete=True,
                equal_sizes=False,
                summary="McMahan et al.: exactly classes_per_client classes a client",
            ),
            PartitionScheme(
                name="quantity",
                function=quantity,
                needs=("concentration",),
                uses_minimum_examples=True,
                complete=True,
                equal_sizes=False,
                summary="the same mix of classes, sizes by Dir(concentration)",
            ),
            PartitionScheme(
                name="domain",
                function=domain,
                needs=("domains",),
                uses_minimum_examples=False,
                complete=True,
                equal_sizes=False,
                summary="UniVarFL: one domain a client, for data that have domains",
            ),
            PartitionScheme(
                name="split_file",
                function=split_file,
                needs=("split_file",),
                uses_minimum_examples=False,
                complete=False,
                equal_sizes=False,
                summary="as FedMLB's client_data files: a dict of lists of positions",
            ),
        )
    }
)


def names() -> tuple[str, ...]:
    """The names of all schemes."""
    return tuple(PARTITIONS)


def partition(
    name: str,
    labels: np.ndarray,
    num_clients: int,
    *,
    seed: int,
    concentration: float | None = None,
    classes_per_client: int | None = None,
    domains: np.ndarray | None = None,
    split_file: str | os.PathLike | None = None,
) -> list[np.ndarray]:
    """Deals out examples by a scheme's name.

    What the scheme does not need (`PartitionScheme.needs`) is ignored.

    Args:
      name: One of `names()`.
      labels: [N] whole numbers >= 0 of any dtype.
      num_clients: How many clients.
      seed: The same seed gives the same partition.
      concentration: Of the Dirichlet schemes and of `quantity`.
      classes_per_client: Of `shards`.
      domains: [N] whole numbers, each example's domain, for `domain`.
      split_file: The path, for `split_file`.

    Returns:
      `num_clients` ascending int64 arrays of positions in `labels`.

    Raises:
      UnknownPartitionError: If there is no scheme of that name.
      PartitionError: As the scheme's own function says.
    """
    if name not in PARTITIONS:
        raise UnknownPartitionError(
            f"There is no partition named {name!r}; use one of {', '.join(names())}."
        )
    scheme = PARTITIONS[name]
    offered = {
        "concentration": concentration,
        "classes_per_client": classes_per_client,
        "domains": domains,
        "split_file": split_file,
    }
    needed = {argument: offered[argument] for argument in scheme.needs}
    return scheme.function(labels, num_clients, seed=seed, **needed)


def class_counts(
    labels: np.ndarray,
    partition: Sequence[np.ndarray],
    num_classes: int | None = None,
) -> np.ndarray:
    """The table of who holds what.

    Args:
      labels: [N] whole numbers >= 0 of any dtype.
      partition: One array of positions a client.
      num_classes: The table's width; None takes the largest label plus one.

    Returns:
      int64 [clients, num_classes], the number of examples of each class.

    Raises:
      PartitionError: If the labels are empty or no class numbers, or one of them is
        `num_classes` or above.
    """
    values = _check_labels(labels).astype(np.int64)
    if num_classes is None:
        num_classes = int(values.max()) + 1
    elif values.max() >= num_classes:
        raise PartitionError(
            f"There is a label {values.max()} but num_classes is {num_classes}; "
            f"use num_classes={values.max() + 1} or more."
        )
    table = np.zeros((len(partition), num_classes), dtype=np.int64)
    for row, positions in zip(table, partition):
        row += np.bincount(
            values[np.asarray(positions, dtype=np.int64)], minlength=num_classes
        )
    return table


# ------------------------------------------------------------------- checks


def _check_labels(labels: np.ndarray) -> np.ndarray:
    """`labels` as a checked 1-D array of its own dtype."""
    values = np.asarray(labels)
    if values.ndim != 1:
        raise PartitionError(
            f"Labels must be one number an example, but have shape {values.shape}; "
            "pass a 1-D array of class numbers."
        )
    if not values.size:
        raise PartitionError("There are no labels to partition; pass at least one.")
    if values.dtype.kind not in "iufb":
        raise PartitionError(
            f"Labels must be class numbers, but have dtype {values.dtype}; convert "
            "them to integers first."
        )
    if values.dtype.kind == "f" and not (
        np.isfinite(values).all() and (values == np.floor(values)).all()
    ):
        raise PartitionError(
            "Labels must be whole numbers, but some are NaN, infinite or fractional; "
            "clean them first."
        )
    if values.min() < 0:
        raise PartitionError(
            f"Labels must be 0 or above, but one is {values.min()}; leave unlabelled "
            "examples out."
        )
    return values


def _classes(labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Each example's class, numbered among those present, and the classes' sizes."""
    _, classes, sizes = np.unique(
        _check_labels(labels), return_inverse=True, return_counts=True
    )
    return classes, sizes


def _check_count(name: str, value: int, *, least: int) -> int:
    try:
        value = operator.index(value)
    except TypeError:
        raise PartitionError(
            f"{name} is {value!r}; give a whole number of at least {least}."
        ) from None
    if value < least:
        raise PartitionError(f"{name} is {value}; it must be at least {least}.")
    return value


def _check_num_clients(num_clients: int, num_examples: int) -> int:
    num_clients = _check_count("num_clients", num_clients, least=1)
    if num_clients > num_examples:
        raise PartitionError(
            f"{num_examples} examples cannot be dealt to {num_clients} clients; use "
            f"at most {num_examples} clients."
        )
    return num_clients


def _check_minimum(minimum_examples: int, num_clients: int, num_examples: int) -> int:
    minimum_examples = _check_count("minimum_examples", minimum_examples, least=0)
    if minimum_examples * num_clients > num_examples:
        raise PartitionError(
            f"{num_examples} examples cannot give {num_clients} clients "
            f"{minimum_examples} each; use at most "
            f"{num_examples // minimum_examples} clients or lower minimum_examples."
        )
    return minimum_examples


def _draws_failed(
    draws: int,
    concentration: float,
    num_clients: int,
    minimum_examples: int,
    most: int,
    instead: str,
) -> PartitionError:
    return PartitionError(
        f"None of {draws} draws of Dir({concentration:g}) gave each of "
        f"{num_clients} clients {minimum_examples} examples (the best left one with "
        f"{most}); use fewer clients, a larger concentration, a smaller "
        f"minimum_examples, or {instead}."
    )


def _check_concentration(concentration: float) -> float:
    if (
        not isinstance(concentration, numbers.Real)
        or not math.isfinite(concentration)
        or concentration <= 0
    ):
        raise PartitionError(
            f"concentration is {concentration!r}; it must be a finite number above 0 "
            "(for equal class mixes use the iid partition)."
        )
    return float(concentration)


# ------------------------------------------------------------- count tables


def _draw_mixes(
    scheme: str, labels: np.ndarray, num_clients: int, concentration: float, seed: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.random.Generator]:
    """Each client's proportions over the classes.

    Returns:
      What `_classes` gives, logarithms [num_clients, classes], and the generator.
    """
    classes, class_sizes = _classes(labels)
    num_clients = _check_num_clients(num_clients, classes.size)
    concentration = _check_concentration(concentration)
    generator = keys.driver_generator(scheme, seed)
    log_proportions = _log_dirichlet(
        generator, concentration, num_clients, class_sizes.size
    )
    return classes, class_sizes, log_proportions, generator


def _log_dirichlet(
    generator: np.random.Generator, concentration: float, rows: int, columns: int
) -> np.ndarray:
    """Logarithms of symmetric Dirichlet draws, up to a constant a row.

    Gamma(a) is distributed as Gamma(a + 1) * U**(1/a). Kept as logarithms, no
    proportion underflows to zero however small the concentration is, so what is left
    after some entries are struck out can always be normalised.

    Returns:
      float64 [rows, columns], finite.
    """
    concentration = min(
        max(concentration, _SMALLEST_CONCENTRATION), _LARGEST_CONCENTRATION
    )
    shape = (rows, columns)
    uniform = 1.0 - generator.random(shape)
    gamma = generator.standard_gamma(concentration + 1.0, shape)
    return np.log(gamma) + np.log(uniform) / concentration


def _cumulated_counts(weights: np.ndarray, size: int) -> np.ndarray:
    """Where to cut `size` examples in proportion to weights: int64, ends with size."""
    cumulated = weights.cumsum()
    return (cumulated / cumulated[-1] * size).astype(np.int64)


def _spread_classes(
    class_sizes: np.ndarray,
    num_clients: int,
    concentration: float,
    generator: np.random.Generator,
) -> np.ndarray:
    """One draw of the FedML rule: int64 [clients, classes] counts."""
    log_proportions = _log_dirichlet(
        generator, concentration, class_sizes.size, num_clients
    )
    mean_size = class_sizes.sum() / num_clients
    held = np.zeros(num_clients, dtype=np.int64)
    counts = np.empty((num_clients, class_sizes.size), dtype=np.int64)
    for column, (size, row) in enumerate(zip(class_sizes, log_proportions)):
        # Somebody is always below the mean while a class is still to be spread.
        below = held < mean_size
        weights = np.where(below, np.exp(row - row[below].max()), 0.0)
        counts[:, column] = np.diff(_cumulated_counts(weights, size), prepend=0)
        held += counts[:, column]
    return counts


def _shards_of_classes(
    class_sizes: np.ndarray, num_clients: int, classes_per_client: int
) -> np.ndarray:
    """Into how many shards each class is cut: int64 [classes].

    One after the other the class with the largest shards is cut into one more, as
    long as there are clients that could hold it and examples to put into it.
    """
    shares = np.ones(class_sizes.size, dtype=np.int64)
    limits = np.minimum(class_sizes, num_clients)
    heap = [(-size, c) for c, size in enumerate(class_sizes) if limits[c] > 1]
    heapq.heapify(heap)
    for _ in range(num_clients * classes_per_client - class_sizes.size):
        if not heap:
            raise PartitionError(
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
    """Who holds which classes: bool [clients, classes] with given sums.

    A class goes to those clients that still need most: by the theorem of Havel and
    Hakimi this never gets stuck. Then pairs of clients swap classes at random, which
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
        if own.size:  # Then the other one, with as many classes, has as many.
            given = own[int(mine * own.size)], others[int(yours * others.size)]
            holds[one, given] = False, True
            holds[other, given] = True, False
    return holds


def _draw_classes(
    log_proportions: np.ndarray, clients: np.ndarray, generator: np.random.Generator
) -> np.ndarray:
    """One class for each entry of `clients`, from that client's proportions.

    Args:
      log_proportions: float64 [clients, classes], -inf for closed classes.
      clients: int [turns].
      generator: Where the numbers come from.

    Returns:
      int64 [turns].
    """
    drawing, rows = np.unique(clients, return_inverse=True)
    logs = log_proportions[drawing]
    cumulated = np.exp(logs - logs.max(axis=1, keepdims=True)).cumsum(axis=1)
    cumulated /= cumulated[:, -1:]
    # All rows' inverse distribution functions in one sorted array: row r in (r, r+1].
    # A closed class has no width, and side="right" steps over it.
    columns = logs.shape[1]
    steps = (cumulated + np.arange(drawing.size)[:, None]).ravel()
    found = np.searchsorted(steps, rows + generator.random(rows.size), side="right")
    # Rounding up to r + 1 would step past the row's last class with any width.
    last = columns - 1 - np.argmax(np.isfinite(logs)[:, ::-1], axis=1)
    return np.minimum(found - rows * columns, last[rows])


def _take_turns(
    log_proportions: np.ndarray,
    class_sizes: np.ndarray,
    client_size: int,
    generator: np.random.Generator,
) -> np.ndarray:
    """One draw of the FedDyn rule: int64 [clients, classes] counts.

    "Pick uniformly among the clients that are not full" is the order of arrivals of
    independent Poisson processes of one rate, each stopped after `client_size`
    arrivals. Turns up to the first one that asks for a class that has run out stand
    as they are. From there on, a turn that drew another class drew it from the
    renormalised proportions (that is what conditioning means), so that only turns
    that drew the exhausted class are drawn again. Each repetition closes a class.
    """
    num_clients, num_classes = log_proportions.shape
    arrivals = generator.standard_exponential((num_clients, client_size)).cumsum(axis=1)
    clients = np.argsort(arrivals, axis=None, kind="stable") // client_size
    log_open = log_proportions.copy()
    drawn = _draw_classes(log_open, clients, generator)
    narrow = np.min_scalar_type(num_classes)
    while True:
        totals = np.bincount(drawn, minlength=num_classes)
        over = np.flatnonzero(totals > class_sizes)
        if not over.size:
            break
        # NumPy sorts integers of up to 16 bits in linear time.
        by_class = np.argsort(drawn.astype(narrow), kind="stable")
        starts = totals.cumsum() - totals
        first_refused = by_class[starts[over] + class_sizes[over]]
        closing = over[np.argmin(first_refused)]
        start, end = starts[closing], starts[closing] + totals[closing]
        again = by_class[start + class_sizes[closing] : end]
        log_open[:, closing] = -np.inf
        drawn[again] = _draw_classes(log_open, clients[again], generator)
    return np.bincount(
        clients * num_classes + drawn, minlength=num_clients * num_classes
    ).reshape(num_clients, num_classes)


def _deal(
    classes: np.ndarray, counts: np.ndarray, generator: np.random.Generator
) -> list[np.ndarray]:
    """Random examples according to a table of counts.

    Args:
      classes: int [N], each example's class.
      counts: int64 [clients, classes]; the rest of a class stays undealt.
      generator: Where the numbers come from.

    Returns:
      One ascending int64 array of positions a client.
    """
    num_clients = counts.shape[0]
    nobody = num_clients
    owners = np.full(classes.size, nobody, dtype=np.int64)
    shuffled = generator.permutation(classes.size)
    # Ascending by class, shuffled within it.
    shuffled = shuffled[np.argsort(classes[shuffled], kind="stable")]
    start = 0
    for size, column in zip(np.bincount(classes), counts.T):
        receivers = np.repeat(np.arange(num_clients), column)
        owners[shuffled[start : start + receivers.size]] = receivers
        start += size
    positions = np.argsort(owners, kind="stable").astype(np.int64)
    ends = counts.sum(axis=1).cumsum()
    # The last part is what nobody got.
    return np.split(positions, ends)[:-1]
