"""Partitions: what each scheme promises, for any labels."""

from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from tests.data import schemes
from tff_reg.data import partitions
from tff_reg.data.partitions import dirichlet


@pytest.mark.parametrize("name", schemes.SCHEMES)
@settings(max_examples=20, deadline=None)
@given(
    case=schemes.labels_and_clients(),
    seed=schemes.seeds,
    concentration=schemes.concentrations,
)
def test_is_disjoint_ascending_and_complete_where_promised(
    name, case, seed, concentration
):
    labels, num_clients = case
    dealt = schemes.make(name, labels, num_clients, seed, concentration)
    assert len(dealt) == num_clients
    for positions in dealt:
        assert positions.dtype == np.int64
        assert (np.diff(positions) > 0).all()
    together = np.concatenate(dealt)
    assert np.unique(together).size == together.size
    assert not together.size or 0 <= together.min() <= together.max() < labels.size
    if name not in ("dirichlet_balanced", "dirichlet_sequential"):
        assert together.size == labels.size
    else:
        # Everybody has the rounded down mean.
        assert {part.size for part in dealt} == {labels.size // num_clients}


@settings(max_examples=20, deadline=None)
@given(case=schemes.labels_and_clients(), seed=schemes.seeds)
def test_stratified_parts_are_equal_class_by_class(case, seed):
    labels, num_clients = case
    dealt = partitions.iid_stratified(labels, num_clients, seed=seed)
    counts = partitions.class_counts(labels, dealt)
    assert np.ptp(counts, axis=0).max() <= 1


def test_the_first_sequential_client_is_dominated_by_one_class():
    labels = np.arange(4000) % 10
    first = []
    for seed in range(20):
        dealt = partitions.dirichlet_sequential(
            labels, 10, concentration=0.1, seed=seed
        )
        counts = partitions.class_counts(labels, dealt)
        first.append(counts[0].max())
        assert counts.sum(axis=0).tolist() == [400] * 10
    # Of 400 examples, where each class is a tenth of all.
    assert np.mean(first) > 200


@settings(max_examples=20, deadline=None)
@given(
    seed=schemes.seeds,
    concentration=st.floats(0.1, 10.0),
    num_clients=st.integers(1, 8),
    minimum=st.integers(0, 10),
)
def test_unbalanced_gives_everybody_the_minimum(
    seed, concentration, num_clients, minimum
):
    labels = np.arange(400) % 10
    dealt = partitions.dirichlet_unbalanced(
        labels,
        num_clients,
        concentration=concentration,
        seed=seed,
        minimum_examples=minimum,
    )
    assert min(part.size for part in dealt) >= minimum
    assert sum(part.size for part in dealt) == labels.size


@pytest.mark.parametrize("name", schemes.SCHEMES)
@settings(max_examples=20, deadline=None)
@given(case=schemes.labels_and_clients(), seed=schemes.seeds)
def test_same_seed_gives_the_same_partition(name, case, seed):
    labels, num_clients = case
    before = np.random.get_state()[1].copy()
    one = schemes.make(name, labels, num_clients, seed)
    np.random.default_rng(0).random(7)
    assert schemes.same(one, schemes.make(name, labels, num_clients, seed))
    assert np.array_equal(before, np.random.get_state()[1])


@pytest.mark.parametrize("name", schemes.SCHEMES)
@settings(max_examples=20, deadline=None)
@given(seeds=st.lists(schemes.seeds, min_size=2, max_size=2, unique=True))
def test_different_seeds_give_different_partitions(name, seeds):
    labels = np.arange(500) % 10
    one, other = (schemes.make(name, labels, 5, seed) for seed in seeds)
    assert not schemes.same(one, other)


@pytest.mark.parametrize("name", schemes.SCHEMES)
@pytest.mark.parametrize("dtype", [np.uint8, np.int64, np.float32])
def test_does_not_depend_on_the_dtype_of_the_labels(name, dtype):
    labels = np.random.default_rng(3).integers(0, 10, 600)
    expected = schemes.make(name, labels, 7, 11)
    assert schemes.same(expected, schemes.make(name, labels.astype(dtype), 7, 11))
    assert schemes.same(
        expected, schemes.make(name, labels.astype(dtype).tolist(), 7, 11)
    )


@pytest.mark.parametrize("name", schemes.DIRICHLETS)
@pytest.mark.parametrize("concentration", [1e300])
def test_large_concentration_is_close_to_iid(name, concentration):
    labels = np.arange(20_000) % 10
    dealt = schemes.make(name, labels, 20, 0, concentration)
    counts = partitions.class_counts(labels, dealt)
    # Each client expects 100 of each class; the balanced schemes draw single examples
    # (standard deviation about 10), the unbalanced one cuts them.
    spread = 5 if name == "dirichlet_unbalanced" else 60
    if name != "dirichlet_unbalanced":
        # Those who fill up last take what is left, so look at the typical client.
        assert abs(np.median(counts) - 100) <= 3
        assert np.mean(np.abs(counts - 100)) < 15
    assert np.abs(counts - 100).max() <= spread


@pytest.mark.parametrize("concentration", [1e-300])
def test_small_concentration_gives_each_client_one_class(concentration):
    # Some classes are wanted by more clients than there are examples for, so not all
    # clients can have their way to the end, and the classes' sizes are kept.
    labels = np.random.default_rng(0).permutation(np.repeat(np.arange(10), 1000))
    dealt = partitions.dirichlet_balanced(
        labels, 100, concentration=concentration, seed=0
    )
    shares = np.sort(partitions.class_counts(labels, dealt) / 100, axis=1)
    # (With equal mixes the largest share would be about 0.2.)
    assert np.median(shares[:, -1]) > 0.75
    # Where the first choice ran out, a second (seldom third) class fills the rest.
    assert np.mean(shares[:, -3:].sum(axis=1)) > 0.95
    counts = partitions.class_counts(labels, dealt)
    assert counts.sum(axis=0).tolist() == [1000] * 10


def _one_at_a_time(labels, num_clients, proportions, generator):
    """The FedDyn procedure as its authors run it, one example a step."""
    num_classes = proportions.shape[1]
    left = np.bincount(labels, minlength=num_classes)
    room = np.full(num_clients, labels.size // num_clients)
    counts = np.zeros((num_clients, num_classes), dtype=np.int64)
    while room.sum():
        client = generator.choice(np.flatnonzero(room))
        chances = proportions[client] * (left > 0)
        drawn = generator.choice(num_classes, p=chances / chances.sum())
        counts[client, drawn] += 1
        left[drawn] -= 1
        room[client] -= 1
    return counts


def test_balanced_matches_drawing_one_example_at_a_time():
    # Uneven classes, of which two run out early: the mean counts must agree.
    labels = np.repeat([0, 1, 2, 3], [4, 6, 30, 20])
    proportions = np.array(
        [[0.7, 0.1, 0.1, 0.1], [0.4, 0.4, 0.1, 0.1], [0.1, 0.1, 0.1, 0.7]]
    )
    repetitions = 2000
    generator = np.random.default_rng(5)
    expected = np.mean(
        [
            _one_at_a_time(labels, 3, proportions, generator)
            for _ in range(repetitions // 4)
        ],
        axis=0,
    )
    found = []
    with mock.patch.object(dirichlet, "log_dirichlet", lambda *_: np.log(proportions)):
        for seed in range(repetitions):
            dealt = partitions.dirichlet_balanced(
                labels, 3, concentration=1.0, seed=seed
            )
            found.append(partitions.class_counts(labels, dealt))
    # Standard errors are below 0.11; the counts go up to 13.
    np.testing.assert_allclose(np.mean(found, axis=0), expected, atol=0.45)


def test_unbalanced_cuts_by_hand():
    # Hand computed: 12 examples, 3 clients, mean 4.
    # Class 0 (6): 0.5, 0.25, 0.25 -> ends 3, 4, 6 -> 3, 1, 2.
    # Class 1 (4): 1/2, 1/4, 1/4   -> ends 2, 3, 4 -> 2, 1, 1; held 5, 2, 3.
    # Class 2 (2): client 0 holds 5 >= 4 and is left out; 0.8, 0.2 -> ends 0, 1, 2.
    labels = np.repeat([0, 1, 2], [6, 4, 2])
    proportions = np.array([[0.5, 0.25, 0.25], [0.5, 0.25, 0.25], [0.9, 0.08, 0.02]])
    with mock.patch.object(dirichlet, "log_dirichlet", lambda *_: np.log(proportions)):
        dealt = partitions.dirichlet_unbalanced(
            labels, 3, concentration=1.0, seed=0, minimum_examples=0
        )
    assert partitions.class_counts(labels, dealt).tolist() == [
        [3, 2, 0],
        [1, 1, 1],
        [2, 1, 1],
    ]


def test_unbalanced_draws_again_until_the_minimum_is_reached():
    labels = np.arange(160) % 10
    with mock.patch.object(
        dirichlet, "_spread_classes", wraps=dirichlet._spread_classes
    ) as draws:
        partitions.dirichlet_unbalanced(labels, 8, concentration=0.2, seed=1)
    assert 1 < draws.call_count <= partitions.DEFAULT_MAX_DRAWS
