"""All partition schemes, and labels to deal out."""

import numpy as np
from hypothesis import strategies as st

from tff_reg.data import partitions

# Those that draw, and need nothing that the labels do not say or a number does.
SCHEMES = tuple(
    name
    for name in partitions.names()
    if not {"split_file", "domains", "clients"}
    & set(partitions.PARTITIONS[name].arguments)
)
DIRICHLETS = ("dirichlet_unbalanced", "dirichlet_balanced", "dirichlet_sequential")
CONCENTRATED = tuple(
    name for name in SCHEMES if "concentration" in partitions.PARTITIONS[name].arguments
)

seeds = st.integers(0, 2**40)
concentrations = st.floats(0.01, 1000.0)


@st.composite
def labels_and_clients(draw):
    """Labels of some classes, not all numbers used, and a number of clients."""
    sizes = draw(st.lists(st.integers(1, 40), min_size=1, max_size=8))
    numbers = draw(
        st.lists(
            st.integers(0, 200), min_size=len(sizes), max_size=len(sizes), unique=True
        )
    )
    labels = np.repeat(numbers, sizes)
    labels = np.random.default_rng(draw(seeds)).permutation(labels)
    return labels, draw(st.integers(1, min(labels.size, 12)))


def make(name, labels, num_clients, seed, concentration=0.5):
    """Any scheme, without a minimum, so that it always works."""
    if name in ("dirichlet_unbalanced", "quantity"):
        return partitions.PARTITIONS[name].function(
            labels,
            num_clients,
            concentration=concentration,
            seed=seed,
            minimum_examples=0,
        )
    return partitions.partition(
        name,
        labels,
        num_clients,
        seed=seed,
        concentration=concentration,
        classes_per_client=enough_classes(labels, num_clients),
    )


def enough_classes(labels, num_clients):
    """The fewest classes a client with which the clients can hold all."""
    if not isinstance(num_clients, int) or num_clients < 1:
        return 1
    return -(-np.unique(labels).size // num_clients)


def same(one, other):
    return len(one) == len(other) and all(map(np.array_equal, one, other))
