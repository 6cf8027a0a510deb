"""Schemes that draw proportions from a symmetric Dirichlet distribution."""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable

from tff_reg.data import keys
from tff_reg.data.partitions import dealing
from tff_reg.lazy import np

DEFAULT_MINIMUM_EXAMPLES = 10
DEFAULT_MAX_DRAWS = 1000

# Concentrations are clipped to this range: beyond it, nothing changes in double
# precision, and the gamma variates stay finite.
_SMALLEST_CONCENTRATION = 1e-12
_LARGEST_CONCENTRATION = 1e12


def dirichlet_unbalanced(
    labels: np.ndarray,
    num_clients: int,
    *,
    concentration: float,
    seed: int,
    minimum_examples: int = DEFAULT_MINIMUM_EXAMPLES,
    max_draws: int = DEFAULT_MAX_DRAWS,
) -> list[np.ndarray]:
    """Spreads each class over the clients: the FedML split that FedAlign uses.

    Source: M. Mendieta et al., "Local Learning Matters: Rethinking Data
    Heterogeneity in Federated Learning" (FedAlign), CVPR 2022, Section 3.1, as in its
    code; the rule is FedML's (C. He et al., arXiv:2007.13518), after H. Wang et al.,
    "Federated Learning with Matched Averaging", ICLR 2020.

    For each class in ascending order, proportions over the **clients** are drawn from
    a symmetric Dirichlet. Clients that already hold N / num_clients examples or more
    are left out, and the other proportions renormalised (the balancing rule; a client
    can still end above the mean). The class's examples, shuffled, are cut at the
    rounded-down cumulated proportions. If a client ends with fewer than
    `minimum_examples`, everything is drawn again.

    >>> from tff_reg.data import partitions
    >>> labels = [0] * 50 + [1] * 50
    >>> dealt = partitions.dirichlet_unbalanced(labels, 2, concentration=9.0, seed=0)
    >>> partitions.class_counts(labels, dealt).sum(axis=0)
    array([50, 50])

    Guaranteed: disjoint, complete (every example has a client), every client has at
    least `minimum_examples`. Not guaranteed: that a client has every class, or equal
    sizes.
    """
    classes, class_sizes = dealing.classes_of(labels)
    num_clients, concentration = checked(classes, num_clients, concentration)
    generator = keys.driver_generator("dirichlet_unbalanced", seed)
    counts = _first_with_enough(
        lambda: _spread_classes(class_sizes, num_clients, concentration, generator),
        num_examples=classes.size,
        num_clients=num_clients,
        concentration=concentration,
        minimum_examples=minimum_examples,
        max_draws=max_draws,
        instead="dirichlet_balanced",
    )
    return dealing.deal(classes, counts, generator)


def dirichlet_balanced(
    labels: np.ndarray, num_clients: int, *, concentration: float, seed: int
) -> list[np.ndarray]:
    """Gives each client a mix of classes: the FedDyn split that MAN uses.

    Source: D. A. E. Acar et al., "Federated Learning Based on Dynamic
    Regularization" (FedDyn), ICLR 2021, as in its code; the MAN paper, Section 4, uses
    the same split. (FedMLB's split is `dirichlet_sequential`.)

    Each client draws proportions over the **classes** from a symmetric Dirichlet.
    Then, repeatedly, a client that is not full yet is picked uniformly and takes one
    example of a class drawn from its proportions, without replacement. When a class
    has run out, the proportions are renormalised over the remaining classes (the code
    has the same effect by drawing again), so the clients that fill up last can be far
    from their proportions if `concentration` is small.

    The result has the distribution of this procedure, but is drawn for all clients at
    once: exponential waiting times give the order of turns, and classes are drawn again
    only for turns after a class has run out.

    >>> from tff_reg.data import partitions
    >>> labels = [0] * 50 + [1] * 50
    >>> dealt = partitions.dirichlet_balanced(labels, 2, concentration=0.5, seed=0)
    >>> partitions.class_counts(labels, dealt).sum(axis=1)
    array([50, 50])

    Guaranteed: disjoint, every client has exactly floor(N / num_clients) examples.
    The remaining N mod num_clients examples, a random choice, belong to no client (as
    in the code).
    """
    classes, class_sizes, log_proportions, generator = _draw_mixes(
        "dirichlet_balanced", labels, num_clients, concentration, seed
    )
    counts = _take_turns(
        log_proportions, class_sizes, classes.size // num_clients, generator
    )
    return dealing.deal(classes, counts, generator)


def dirichlet_sequential(
    labels: np.ndarray, num_clients: int, *, concentration: float, seed: int
) -> list[np.ndarray]:
    """Gives one client after another a mix of classes: the FedMLB split.

    Source: J. Kim et al., "Multi-Level Branched Regularization for Federated Learning"
    (FedMLB), ICML 2022, Section 5.1, as in its code. The authors' own splits are files
    (`split_file`).

    Each client draws proportions over the **classes** from a symmetric Dirichlet. The
    first client draws all its examples without replacement, each example with its
    class's proportion as weight; then the second client draws from the remaining
    examples, and so on. So the weight of a class is its proportion times the number of
    its remaining examples, and the last clients get the rest.

    Weighted sampling without replacement takes the examples with the smallest
    exponential waiting times at rates equal to the weights (P. Efraimidis,
    P. Spirakis, "Weighted random sampling with a reservoir", 2006).

    >>> from tff_reg.data import partitions
    >>> labels = [0] * 50 + [1] * 50
    >>> dealt = partitions.dirichlet_sequential(labels, 2, concentration=0.5, seed=0)
    >>> partitions.class_counts(labels, dealt).sum(axis=1)
    array([50, 50])

    Guaranteed: disjoint, every client has exactly floor(N / num_clients) examples.
    The remaining N mod num_clients examples belong to no client.
    """
    classes, _, log_proportions, generator = _draw_mixes(
        "dirichlet_sequential", labels, num_clients, concentration, seed
    )
    client_size = classes.size // num_clients
    left, dealt = np.arange(classes.size), []
    for of_client in log_proportions:
        # Logarithms, because they compare even the smallest proportions.
        waiting = np.log(generator.standard_exponential(left.size))
        waiting -= of_client[classes[left]]
        chosen = np.argpartition(waiting, client_size - 1)[:client_size]
        dealt.append(left[chosen])
        left = np.delete(left, chosen)
    return dealing.ascending(dealt)


def quantity(
    labels: np.ndarray,
    num_clients: int,
    *,
    concentration: float,
    seed: int,
    minimum_examples: int = DEFAULT_MINIMUM_EXAMPLES,
    max_draws: int = DEFAULT_MAX_DRAWS,
) -> list[np.ndarray]:
    """Gives clients very different numbers of examples, with the same class mix.

    Source: "quantity skew" of Q. Li et al., "Federated Learning on Non-IID Data
    Silos: An Experimental Study", ICDE 2022, Section IV-C.

    The clients' shares of the examples are one draw from a symmetric Dirichlet; the
    examples, shuffled, are cut at the rounded-down cumulated shares. If a client ends
    with fewer than `minimum_examples`, the shares are drawn again.

    >>> from tff_reg.data import partitions
    >>> dealt = partitions.quantity([0, 1] * 100, 3, concentration=0.5, seed=0)
    >>> [len(positions) for positions in dealt]
    [87, 85, 28]

    Guaranteed: disjoint, complete, every client has at least `minimum_examples`.
    """
    classes, _ = dealing.classes_of(labels)
    num_clients, concentration = checked(classes, num_clients, concentration)
    generator = keys.driver_generator("quantity", seed)

    def draw():
        logs = log_dirichlet(generator, concentration, 1, num_clients)
        return np.diff(
            cumulated_counts(np.exp(logs - logs.max()), classes.size), prepend=0
        )

    sizes = _first_with_enough(
        draw,
        num_examples=classes.size,
        num_clients=num_clients,
        concentration=concentration,
        minimum_examples=minimum_examples,
        max_draws=max_draws,
        instead="iid",
    )
    order = generator.permutation(classes.size)
    return dealing.ascending(np.split(order, sizes.cumsum()[:-1]))


def checked(
    classes: np.ndarray, num_clients: int, concentration: float
) -> tuple[int, float]:
    """Checks the number of clients and the concentration, and returns them."""
    num_clients = dealing.check_num_clients(num_clients, classes.size)
    if (
        not isinstance(concentration, numbers.Real)
        or not math.isfinite(concentration)
        or concentration <= 0
    ):
        raise dealing.PartitionError(
            f"concentration is {concentration!r}; it must be a finite number above 0 "
            "(for equal class mixes use the iid partition)."
        )
    return num_clients, float(concentration)


def _first_with_enough(
    draw: Callable[[], np.ndarray],
    *,
    num_examples: int,
    num_clients: int,
    concentration: float,
    minimum_examples: int,
    max_draws: int,
    instead: str,
) -> np.ndarray:
    """Returns the first counts, int64 [clients, ...], with enough for each client."""
    minimum_examples = dealing.check_count(
        "minimum_examples", minimum_examples, least=0
    )
    if minimum_examples * num_clients > num_examples:
        raise dealing.PartitionError(
            f"{num_examples} examples cannot give {num_clients} clients "
            f"{minimum_examples} each; use at most "
            f"{num_examples // minimum_examples} clients, another partition (such as "
            "dirichlet_balanced) or, in Python, a lower minimum_examples."
        )
    max_draws = dealing.check_count("max_draws", max_draws, least=1)
    most = 0
    for _ in range(max_draws):
        counts = draw()
        least = int(counts.reshape(num_clients, -1).sum(axis=1).min())
        if least >= minimum_examples:
            return counts
        most = max(most, least)
    raise dealing.PartitionError(
        f"None of {max_draws} draws of Dir({concentration:g}) gave each of "
        f"{num_clients} clients {minimum_examples} examples (the best left one with "
        f"{most}); use fewer clients, a larger concentration, {instead} or, in "
        "Python, a smaller minimum_examples."
    )


def _draw_mixes(
    scheme: str, labels: np.ndarray, num_clients: int, concentration: float, seed: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.random.Generator]:
    """Draws each client's proportions over the classes."""
    classes, class_sizes = dealing.classes_of(labels)
    num_clients, concentration = checked(classes, num_clients, concentration)
    generator = keys.driver_generator(scheme, seed)
    log_proportions = log_dirichlet(
        generator, concentration, num_clients, class_sizes.size
    )
    return classes, class_sizes, log_proportions, generator


def log_dirichlet(
    generator: np.random.Generator, concentration: float, rows: int, columns: int
) -> np.ndarray:
    """Draws logarithms of symmetric Dirichlet variates, up to a constant per row.

    Gamma(a) is distributed as Gamma(a + 1) * U**(1/a). As logarithms, proportions do
    not underflow to zero even for the smallest concentration, so the remaining entries
    can always be normalised after some entries are removed.
    """
    concentration = min(
        max(concentration, _SMALLEST_CONCENTRATION), _LARGEST_CONCENTRATION
    )
    shape = (rows, columns)
    uniform = 1.0 - generator.random(shape)
    gamma = generator.standard_gamma(concentration + 1.0, shape)
    return np.log(gamma) + np.log(uniform) / concentration


def cumulated_counts(weights: np.ndarray, size: int) -> np.ndarray:
    """Returns where to cut `size` examples in proportion to weights: int64."""
    cumulated = weights.cumsum()
    return (cumulated / cumulated[-1] * size).astype(np.int64)


def _spread_classes(
    class_sizes: np.ndarray,
    num_clients: int,
    concentration: float,
    generator: np.random.Generator,
) -> np.ndarray:
    """Draws counts, int64 [clients, classes], by the FedML rule."""
    log_proportions = log_dirichlet(
        generator, concentration, class_sizes.size, num_clients
    )
    mean_size = class_sizes.sum() / num_clients
    held = np.zeros(num_clients, dtype=np.int64)
    counts = np.empty((num_clients, class_sizes.size), dtype=np.int64)
    for column, (size, row) in enumerate(zip(class_sizes, log_proportions)):
        # Some client is always below the mean while a class remains.
        below = held < mean_size
        weights = np.where(below, np.exp(row - row[below].max()), 0.0)
        counts[:, column] = np.diff(cumulated_counts(weights, size), prepend=0)
        held += counts[:, column]
    return counts


def _draw_classes(
    log_proportions: np.ndarray, clients: np.ndarray, generator: np.random.Generator
) -> np.ndarray:
    """Draws a class for each entry of `clients`, from that client's proportions."""
    drawing, rows = np.unique(clients, return_inverse=True)
    logs = log_proportions[drawing]
    cumulated = np.exp(logs - logs.max(axis=1, keepdims=True)).cumsum(axis=1)
    cumulated /= cumulated[:, -1:]
    # The cumulative distributions of all rows in one sorted array: row r in (r, r+1].
    # A closed class has no width, and side="right" skips it.
    columns = logs.shape[1]
    steps = (cumulated + np.arange(drawing.size)[:, None]).ravel()
    found = np.searchsorted(steps, rows + generator.random(rows.size), side="right")
    # Rounding up to r + 1 would give a class after the last open class of the row.
    last = columns - 1 - np.argmax(np.isfinite(logs)[:, ::-1], axis=1)
    return np.minimum(found - rows * columns, last[rows])


def _take_turns(
    log_proportions: np.ndarray,
    class_sizes: np.ndarray,
    client_size: int,
    generator: np.random.Generator,
) -> np.ndarray:
    """Draws counts, int64 [clients, classes], by the FedDyn rule.

    "Pick uniformly among the clients that are not full" is the order of arrivals of
    independent Poisson processes of equal rate, each stopped after `client_size`
    arrivals. Turns before the first request for an exhausted class are final. After
    that, a turn that drew another class has, by conditioning, drawn it from the
    renormalised proportions, so only turns that drew the exhausted class are drawn
    again. Each repetition closes a class.
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
