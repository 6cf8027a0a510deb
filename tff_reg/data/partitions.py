"""How a data set's examples are dealt out to clients.

A partition is a list with one int64 array a client: the positions of that client's
examples, in ascending order. Every scheme here is a pure function from labels to a
partition. No two clients ever share an example.

Three papers say "Dirichlet(alpha)" and mean two different things, so each scheme
has its own name:

| name                 | the Dirichlet runs over       | sizes      | nobody gets   |
|----------------------|-------------------------------|------------|---------------|
| dirichlet_unbalanced | clients, once for each class  | vary       | nothing       |
| dirichlet_balanced   | classes, once for each client | equal      | N mod clients |
| iid                  | -                             | within one | nothing       |

`PARTITIONS` has them by name with what each needs; `partition` calls one by name.

Cost, measured on one core of a 2-core x86 machine: 50,000 labels for 500 clients take
8 ms (`iid`), 11 to 35 ms (`dirichlet_unbalanced`, where the first draws succeed) and
23 to 77 ms (`dirichlet_balanced`) with 10 to 200 classes. Both Dirichlet schemes first
draw only the table of *how many* examples of each class a client gets, and then deal
the indices once; taking examples one at a time would be 50,000 Python steps.
"""

from __future__ import annotations

import dataclasses
import math
import numbers
import operator
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from tff_reg.data import keys
from tff_reg.lazy import np

DEFAULT_MINIMUM_EXAMPLES = 10
DEFAULT_MAX_DRAWS = 1000

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
    minimum_examples = _check_count("minimum_examples", minimum_examples, least=0)
    max_draws = _check_count("max_draws", max_draws, least=1)
    if minimum_examples * num_clients > classes.size:
        raise PartitionError(
            f"{classes.size} examples cannot give {num_clients} clients "
            f"{minimum_examples} each; use at most "
            f"{classes.size // minimum_examples} clients or lower minimum_examples."
        )
    generator = keys.driver_generator("dirichlet_unbalanced", seed)
    most = 0
    for _ in range(max_draws):
        counts = _spread_classes(class_sizes, num_clients, concentration, generator)
        least = int(counts.sum(axis=1).min())
        if least >= minimum_examples:
            return _deal(classes, counts, generator)
        most = max(most, least)
    raise PartitionError(
        f"None of {max_draws} draws of Dir({concentration:g}) gave each of "
        f"{num_clients} clients {minimum_examples} examples (the best left one with "
        f"{most}); use fewer clients, a larger concentration, a smaller "
        "minimum_examples, or dirichlet_balanced."
    )


def dirichlet_balanced(
    labels: np.ndarray, num_clients: int, *, concentration: float, seed: int
) -> list[np.ndarray]:
    """The FedDyn split that FedMLB and MAN use: each client has a mix of classes.

    Source: D. A. E. Acar et al., "Federated Learning Based on Dynamic
    Regularization" (FedDyn), ICLR 2021, as its code does it; J. Kim et al.,
    "Multi-Level Branched Regularization for Federated Learning" (FedMLB), ICML 2022,
    Section 5.1, and the MAN paper, Section 4, use the same kind of split.

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
    classes, class_sizes = _classes(labels)
    num_clients = _check_num_clients(num_clients, classes.size)
    concentration = _check_concentration(concentration)
    generator = keys.driver_generator("dirichlet_balanced", seed)
    log_proportions = _log_dirichlet(
        generator, concentration, num_clients, class_sizes.size
    )
    counts = _take_turns(
        log_proportions, class_sizes, classes.size // num_clients, generator
    )
    return _deal(classes, counts, generator)


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


@dataclasses.dataclass(frozen=True)
class PartitionScheme:
    """What a caller, or a flag, needs to know about a scheme."""

    # As given to `partition` and to --partition.
    name: str
    # The function itself.
    function: Callable[..., list]
    # Whether it takes `concentration` (then it is required).
    uses_concentration: bool
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
                uses_concentration=True,
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
                uses_concentration=True,
                uses_minimum_examples=False,
                complete=False,
                equal_sizes=True,
                summary=(
                    "FedMLB, FedDyn, MAN: each client a mix of classes by "
                    "Dir(concentration), equal sizes"
                ),
            ),
            PartitionScheme(
                name="iid",
                function=iid,
                uses_concentration=False,
                uses_minimum_examples=False,
                complete=True,
                equal_sizes=False,
                summary="shuffled and cut into equal parts",
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
) -> list[np.ndarray]:
    """Deals out examples by a scheme's name.

    Args:
      name: One of `names()`.
      labels: [N] whole numbers >= 0 of any dtype.
      num_clients: How many clients.
      seed: The same seed gives the same partition.
      concentration: Required by the Dirichlet schemes, ignored by the others.

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
    arguments = {"seed": seed}
    if scheme.uses_concentration:
        arguments["concentration"] = concentration
    return scheme.function(labels, num_clients, **arguments)


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
        cumulated = weights.cumsum()
        ends = (cumulated / cumulated[-1] * size).astype(np.int64)
        counts[:, column] = np.diff(ends, prepend=0)
        held += counts[:, column]
    return counts


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
