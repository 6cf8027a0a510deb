"""Schemes that partition a data set's examples across clients.

A partition is a list with one int64 array for each client: the positions of its
examples, in ascending order. Every scheme is a pure function from labels to a
partition. No two clients share an example.

All schemes take the labels, the number of clients and a seed, and other arguments by
keyword; `partition` documents the arguments, results and errors. Two schemes repeat the
draw, up to `max_draws` times, until each client has `minimum_examples` (10 in
FedAlign's code; 0 accepts empty clients).

Three papers say "Dirichlet(alpha)" for three different schemes, so each has its own
name. The last column is the number of examples that no client has:

| name                 | the Dirichlet runs over       | sizes      | no client has |
|----------------------|-------------------------------|------------|---------------|
| dirichlet_unbalanced | clients, once for each class  | vary       | nothing       |
| dirichlet_balanced   | classes, once for each client | equal      | N mod clients |
| dirichlet_sequential | classes, once for each client | equal      | N mod clients |
| quantity             | clients, once                 | vary       | nothing       |
| iid                  | -                             | within one | nothing       |
| iid_stratified       | -                             | within one | nothing       |
| shards               | -                             | near equal | nothing       |
| shards_dirichlet     | a class's holders             | vary       | nothing       |
| domain               | -                             | vary       | nothing       |
| natural              | -                             | vary       | other clients' |
| split_file           | -                             | as written | as written    |

iid, quantity, domain, natural and split_file divide examples with any labels. The
others divide classes, or groups that take their place.

`PARTITIONS` lists the schemes with the arguments that each needs; `partition` calls a
scheme by name.

On one core of a 2-core x86 machine, 50,000 labels for 500 clients take 8 ms (`iid`),
11 to 35 ms (`dirichlet_unbalanced`, if the first draws succeed) and 23 to 77 ms
(`dirichlet_balanced`) with 10 to 200 classes. These two first draw the number of
examples of each class and client, and then the examples; drawing examples one at a time
would be 50,000 Python steps. `dirichlet_sequential` compares all remaining examples for
each client, which takes 0.3 s.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from tff_reg.data.partitions.class_shards import shards, shards_dirichlet
from tff_reg.data.partitions.dealing import (
    PartitionError,
    check_labels,
    check_positions,
)
from tff_reg.data.partitions.dirichlet import (
    DEFAULT_MAX_DRAWS,
    DEFAULT_MINIMUM_EXAMPLES,
    dirichlet_balanced,
    dirichlet_sequential,
    dirichlet_unbalanced,
    quantity,
)
from tff_reg.data.partitions.even import domain, iid, iid_stratified
from tff_reg.data.partitions.natural_clients import drawn, natural
from tff_reg.data.partitions.split_files import (
    clients_in,
    count_in,
    held_out,
    split_file,
)
from tff_reg.lazy import np

__all__ = [
    "DEFAULT_MAX_DRAWS",
    "DEFAULT_MINIMUM_EXAMPLES",
    "PARTITIONS",
    "PartitionError",
    "PartitionScheme",
    "UnknownPartitionError",
    "class_counts",
    "clients_in",
    "count_in",
    "dirichlet_balanced",
    "dirichlet_sequential",
    "dirichlet_unbalanced",
    "domain",
    "drawn",
    "held_out",
    "iid",
    "iid_stratified",
    "names",
    "natural",
    "taking",
    "partition",
    "quantity",
    "shards",
    "shards_dirichlet",
    "split_file",
]


class UnknownPartitionError(PartitionError):
    """A name that is not in `PARTITIONS`."""


class PartitionScheme(NamedTuple):
    """A scheme and its arguments.

    Attributes:
      name: The name in `PARTITIONS`.
      function: The function.
      arguments: The keyword arguments that the function requires besides the seed.
      needs_classes: Whether it divides classes.
    """

    name: str
    function: Callable[..., list]
    arguments: tuple[str, ...]
    needs_classes: bool


def _arguments_of(function: Callable[..., list]) -> tuple[str, ...]:
    return tuple(
        name
        for name, each in inspect.signature(function).parameters.items()
        if each.kind is each.KEYWORD_ONLY
        and each.default is each.empty
        and name != "seed"
    )


_OF_ANY_LABELS = (iid, quantity, domain, natural, split_file)
# By the name for `partition` and --partition, in the order in which --help lists them.
PARTITIONS: Mapping[str, PartitionScheme] = MappingProxyType(
    {
        name: PartitionScheme(
            name, function, _arguments_of(function), function not in _OF_ANY_LABELS
        )
        for function in (
            *(dirichlet_unbalanced, dirichlet_balanced, dirichlet_sequential),
            *(iid, iid_stratified, shards, shards_dirichlet, quantity, domain, natural),
            split_file,
        )
        for name in [function.__name__]
    }
)


def names() -> tuple[str, ...]:
    """Returns the names of all schemes."""
    return tuple(PARTITIONS)


def taking(argument: str) -> tuple[str, ...]:
    """Returns the names of the schemes that need an argument."""
    return tuple(n for n, each in PARTITIONS.items() if argument in each.arguments)


def partition(
    name: str,
    labels: np.ndarray | None,
    num_clients: int,
    *,
    seed: int,
    num_examples: int | None = None,
    concentration: float | None = None,
    classes_per_client: int | None = None,
    domains: np.ndarray | None = None,
    clients: np.ndarray | None = None,
    num_owners: int | None = None,
    split_file: str | os.PathLike | None = None,
) -> list[np.ndarray]:
    """Partitions examples across clients by a named scheme.

    Arguments that the scheme does not need (`PartitionScheme.arguments`) are ignored.

    >>> from tff_reg.data import partitions
    >>> partitions.partition("iid", [0, 0, 1, 1, 2, 2], 3, seed=0)
    [array([1, 4]), array([2, 3]), array([0, 5])]

    Args:
      name: One of `names()`.
      labels: [N] whole numbers >= 0 of any dtype: classes, or other groups. For schemes
        that divide no classes None stands for any labels.
      num_clients: Number of clients, from 1 to N; for `domain`, a multiple of the
        number of domains.
      seed: The same seed gives the same partition.
      num_examples: N, without labels.
      concentration: Alpha of Dir(alpha), above 0 and finite, for the Dirichlet schemes,
        `shards_dirichlet` and `quantity`. Large values are close to IID (for the last
        two, to equal sizes); small values give each class to few clients, or each
        client few classes.
      classes_per_client: For `shards` and `shards_dirichlet`, from 1 to the number of
        classes.
      domains: For `domain`: [N] whole numbers, each example's domain.
      clients: For `natural`: [N] whole numbers from 0, each example's client.
      num_owners: For `natural`: the number of clients, some of which may have nothing;
        None for those up to the largest number.
      split_file: For `split_file`: the path.

    Returns:
      `num_clients` ascending int64 arrays of positions in `labels`.

    Raises:
      UnknownPartitionError: If there is no scheme of that name.
      PartitionError: If the labels are empty or no class numbers, a number is out of
        range, there are too few examples, none of `max_draws` draws gives each client
        enough examples, the clients of `shards` cannot hold all classes, an example has
        no domain or client, or the split file cannot be read or does not fit.
    """
    if name not in PARTITIONS:
        raise UnknownPartitionError(
            f"There is no partition named {name!r}; use one of {', '.join(names())}."
        )
    scheme = PARTITIONS[name]
    if labels is None:
        if scheme.needs_classes:
            others = ", ".join(n for n, e in PARTITIONS.items() if not e.needs_classes)
            raise PartitionError(
                f"The partition {name} divides classes, and the labels are none: give"
                f" one of {others}, or stratify, the group of each example."
            )
        labels = np.zeros(num_examples or 0, np.int64)
    offered = {
        "concentration": concentration,
        "classes_per_client": classes_per_client,
        "domains": domains,
        "clients": clients,
        "num_owners": num_owners,
        "split_file": split_file,
    }
    needed = {argument: offered[argument] for argument in scheme.arguments}
    return scheme.function(labels, num_clients, seed=seed, **needed)


def class_counts(
    labels: np.ndarray,
    partition: Sequence[np.ndarray],
    num_classes: int | None = None,
) -> np.ndarray:
    """Counts the examples of each client and class.

    >>> from tff_reg.data import partitions
    >>> partitions.class_counts([0, 2, 2, 1, 0], [[0, 1], [2, 4]])
    array([[1, 0, 1],
           [1, 0, 1]])

    Args:
      labels: [N] whole numbers >= 0 of any dtype.
      partition: For each client the positions of its examples.
      num_classes: Number of classes; None for the largest label plus one.

    Returns:
      int64 [clients, num_classes], numbers of examples.

    Raises:
      PartitionError: If the labels are empty or no class numbers, a label is
        `num_classes` or above, or a position is not that of an example.
    """
    values = check_labels(labels).astype(np.int64)
    if num_classes is None:
        num_classes = int(values.max()) + 1
    elif values.max() >= num_classes:
        raise PartitionError(
            f"There is a label {values.max()} but num_classes is {num_classes}; "
            f"use num_classes={values.max() + 1} or more."
        )
    positions, sizes = check_positions(partition, values.size)
    cells = np.repeat(np.arange(sizes.size), sizes) * num_classes + values[positions]
    return np.bincount(cells, minlength=sizes.size * num_classes).reshape(
        sizes.size, num_classes
    )
