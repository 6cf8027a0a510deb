"""Partitions: what each scheme promises, for any labels."""

import pathlib
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from tff_reg.data import partitions
from tff_reg.data.partitions import dirichlet

# Those that draw, and need nothing that the labels do not say or a number does.
_SCHEMES = tuple(
    name
    for name in partitions.names()
    if not {"split_file", "domains"} & set(partitions.PARTITIONS[name].needs)
)
_DIRICHLETS = ("dirichlet_unbalanced", "dirichlet_balanced", "dirichlet_sequential")
_CONCENTRATED = tuple(
    name for name in _SCHEMES if "concentration" in partitions.PARTITIONS[name].needs
)

_seeds = st.integers(0, 2**40)
_concentrations = st.floats(0.01, 1000.0)


@st.composite
def _labels_and_clients(draw):
    """Labels of some classes, not all numbers used, and a number of clients."""
    sizes = draw(st.lists(st.integers(1, 40), min_size=1, max_size=8))
    numbers = draw(
        st.lists(
            st.integers(0, 200), min_size=len(sizes), max_size=len(sizes), unique=True
        )
    )
    labels = np.repeat(numbers, sizes)
    labels = np.random.default_rng(draw(_seeds)).permutation(labels)
    return labels, draw(st.integers(1, min(labels.size, 12)))


def _make(name, labels, num_clients, seed, concentration=0.5):
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
        classes_per_client=_enough_classes(labels, num_clients),
    )


def _enough_classes(labels, num_clients):
    """The fewest classes a client with which the clients can hold all."""
    if not isinstance(num_clients, int) or num_clients < 1:
        return 1
    return -(-np.unique(labels).size // num_clients)


def _same(one, other):
    return len(one) == len(other) and all(map(np.array_equal, one, other))


@pytest.mark.parametrize("name", _SCHEMES)
@settings(max_examples=60, deadline=None)
@given(case=_labels_and_clients(), seed=_seeds, concentration=_concentrations)
def test_is_disjoint_ascending_and_complete_where_promised(
    name, case, seed, concentration
):
    labels, num_clients = case
    dealt = _make(name, labels, num_clients, seed, concentration)
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


@settings(max_examples=40, deadline=None)
@given(case=_labels_and_clients(), seed=_seeds)
def test_stratified_parts_are_equal_class_by_class(case, seed):
    labels, num_clients = case
    dealt = partitions.iid_stratified(labels, num_clients, seed=seed)
    counts = partitions.class_counts(labels, dealt)
    assert np.ptp(counts, axis=0).max() <= 1


def test_the_first_of_the_sequential_clients_takes_what_it_weighs_most():
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


def test_sequential_weights_are_of_examples():
    # One class is nine times as frequent: with equal weights it is nine tenths of what
    # the first client takes, not half.
    labels = np.repeat([0, 1], [9000, 1000])
    dealt = partitions.dirichlet_sequential(labels, 20, concentration=1e6, seed=0)
    counts = partitions.class_counts(labels, dealt)
    assert 420 < counts[0, 0] < 480


@settings(max_examples=40, deadline=None)
@given(case=_labels_and_clients(), seed=_seeds)
def test_iid_sizes_differ_by_at_most_one(case, seed):
    labels, num_clients = case
    sizes = [part.size for part in partitions.iid(labels, num_clients, seed=seed)]
    assert max(sizes) - min(sizes) <= 1
    assert sizes == sorted(sizes, reverse=True)


@settings(max_examples=40, deadline=None)
@given(
    seed=_seeds,
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


@pytest.mark.parametrize("name", _SCHEMES)
@settings(max_examples=30, deadline=None)
@given(case=_labels_and_clients(), seed=_seeds)
def test_same_seed_gives_the_same_partition(name, case, seed):
    labels, num_clients = case
    before = np.random.get_state()[1].copy()
    one = _make(name, labels, num_clients, seed)
    np.random.default_rng(0).random(7)
    assert _same(one, _make(name, labels, num_clients, seed))
    assert np.array_equal(before, np.random.get_state()[1])


@pytest.mark.parametrize("name", _SCHEMES)
@settings(max_examples=30, deadline=None)
@given(seeds=st.lists(_seeds, min_size=2, max_size=2, unique=True))
def test_different_seeds_give_different_partitions(name, seeds):
    labels = np.arange(500) % 10
    one, other = (_make(name, labels, 5, seed) for seed in seeds)
    assert not _same(one, other)


@pytest.mark.parametrize("name", _SCHEMES)
@pytest.mark.parametrize(
    "dtype", [np.uint8, np.int32, np.int64, np.uint16, np.float32, np.float64]
)
def test_does_not_depend_on_the_dtype_of_the_labels(name, dtype):
    labels = np.random.default_rng(3).integers(0, 10, 600)
    expected = _make(name, labels, 7, 11)
    assert _same(expected, _make(name, labels.astype(dtype), 7, 11))
    assert _same(expected, _make(name, labels.astype(dtype).tolist(), 7, 11))


@pytest.mark.parametrize("name", _DIRICHLETS)
def test_does_not_depend_on_how_the_classes_are_numbered(name):
    labels = np.random.default_rng(3).integers(0, 10, 600)
    assert _same(_make(name, labels, 7, 11), _make(name, labels * 17 + 4, 7, 11))


@pytest.mark.parametrize("name", _DIRICHLETS)
@pytest.mark.parametrize("concentration", [1e5, 1e300])
def test_large_concentration_is_close_to_iid(name, concentration):
    labels = np.arange(20_000) % 10
    dealt = _make(name, labels, 20, 0, concentration)
    counts = partitions.class_counts(labels, dealt)
    # Each client expects 100 of each class; the balanced schemes draw single examples
    # (standard deviation about 10), the unbalanced one cuts them.
    spread = 5 if name == "dirichlet_unbalanced" else 60
    if name != "dirichlet_unbalanced":
        # Those who fill up last take what is left, so look at the typical client.
        assert abs(np.median(counts) - 100) <= 3
        assert np.mean(np.abs(counts - 100)) < 15
    assert np.abs(counts - 100).max() <= spread


@pytest.mark.parametrize("concentration", [1e-3, 1e-300])
def test_small_concentration_gives_a_class_to_one_client_each(concentration):
    labels = np.arange(1000) % 10
    dealt = _make("dirichlet_unbalanced", labels, 50, 0, concentration)
    counts = partitions.class_counts(labels, dealt)
    # All of a class but what rounding down leaves to a later client.
    assert np.median(counts.max(axis=0)) >= 99
    assert (counts > 0).sum(axis=0).max() <= 3


@pytest.mark.parametrize("concentration", [1e-3, 1e-300])
def test_small_concentration_gives_each_client_one_class_while_it_lasts(concentration):
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


def test_balanced_has_the_distribution_of_taking_examples_one_at_a_time():
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
    with mock.patch.object(dirichlet, "_log_dirichlet", lambda *_: np.log(proportions)):
        for seed in range(repetitions):
            dealt = partitions.dirichlet_balanced(
                labels, 3, concentration=1.0, seed=seed
            )
            found.append(partitions.class_counts(labels, dealt))
    # Standard errors are below 0.11; the counts go up to 13.
    np.testing.assert_allclose(np.mean(found, axis=0), expected, atol=0.45)


@pytest.mark.parametrize("name", _SCHEMES)
def test_which_examples_of_a_class_a_client_gets_is_random(name):
    labels = np.zeros(2000, dtype=np.int32)
    dealt = _make(name, labels, 2, 0, 1000.0)
    for positions in dealt:
        # About 1000 of 2000 positions: their mean is 1000, standard deviation 13.
        assert abs(positions.mean() - 1000) < 80


def test_unbalanced_cuts_each_class_at_the_cumulated_proportions_under_the_cap():
    # Hand computed: 12 examples, 3 clients, mean 4.
    # Class 0 (6): 0.5, 0.25, 0.25 -> ends 3, 4, 6 -> 3, 1, 2.
    # Class 1 (4): 1/2, 1/4, 1/4   -> ends 2, 3, 4 -> 2, 1, 1; held 5, 2, 3.
    # Class 2 (2): client 0 holds 5 >= 4 and is left out; 0.8, 0.2 -> ends 0, 1, 2.
    labels = np.repeat([0, 1, 2], [6, 4, 2])
    proportions = np.array([[0.5, 0.25, 0.25], [0.5, 0.25, 0.25], [0.9, 0.08, 0.02]])
    with mock.patch.object(dirichlet, "_log_dirichlet", lambda *_: np.log(proportions)):
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


class TestShards:
    @settings(max_examples=80, deadline=None)
    @given(case=_labels_and_clients(), seed=_seeds, extra=st.integers(0, 3))
    def test_gives_exactly_so_many_classes_or_says_why_not(self, case, seed, extra):
        labels, num_clients = case
        present, sizes = np.unique(labels, return_counts=True)
        per_client = min(_enough_classes(labels, num_clients) + extra, present.size)
        room = np.minimum(sizes, num_clients).sum()
        if room < num_clients * per_client:
            with pytest.raises(partitions.PartitionError, match="are too few"):
                partitions.shards(
                    labels, num_clients, classes_per_client=per_client, seed=seed
                )
            return
        dealt = partitions.shards(
            labels, num_clients, classes_per_client=per_client, seed=seed
        )
        held = (partitions.class_counts(labels, dealt) > 0).sum(axis=1)
        assert (held == per_client).all()
        assert sum(part.size for part in dealt) == labels.size

    def test_equal_classes_make_equal_shards_as_in_the_paper(self):
        # MNIST's experiment: 60,000 examples, 100 clients, two shards of 300 each.
        labels = np.random.default_rng(0).permutation(np.arange(60_000) % 10)
        dealt = partitions.shards(labels, 100, classes_per_client=2, seed=0)
        counts = partitions.class_counts(labels, dealt)
        assert set(np.unique(counts)) == {0, 300}
        assert ((counts > 0).sum(axis=1) == 2).all()

    def test_the_largest_shard_is_as_small_as_it_can_be(self):
        labels = np.repeat([0, 1, 2], [7, 300, 40])
        dealt = partitions.shards(labels, 6, classes_per_client=2, seed=0)
        counts = partitions.class_counts(labels, dealt)
        # Class 1 is in all six hands, class 2 in five, class 0 in one.
        assert (counts[:, 1] == 50).all()
        assert sorted(counts[:, 2]) == [0, 8, 8, 8, 8, 8]
        assert sorted(counts[:, 0]) == [0, 0, 0, 0, 0, 7]

    def test_any_two_classes_meet_equally_often(self):
        labels = np.arange(100) % 5
        together = np.zeros((5, 5))
        for seed in range(400):
            dealt = partitions.shards(labels, 5, classes_per_client=2, seed=seed)
            held = (partitions.class_counts(labels, dealt) > 0).astype(int)
            together += held.T @ held
        # Five clients and ten pairs: half a client a pair and draw, 200 in all.
        pairs = together[np.triu_indices(5, 1)]
        assert pairs.sum() == 2000 and np.abs(pairs - 200).max() < 50

    @pytest.mark.parametrize(
        "per_client, words",
        [
            (0, "classes_per_client is 0"),
            (None, "classes_per_client is None"),
            (11, "only 10 classes"),
            (1, "cannot hold all 10 classes"),
        ],
    )
    def test_raises_on_an_impossible_number_of_classes(self, per_client, words):
        with pytest.raises(partitions.PartitionError, match=words):
            partitions.shards(
                np.arange(100) % 10, 4, classes_per_client=per_client, seed=0
            )


class TestQuantity:
    def test_sizes_vary_and_class_mixes_do_not(self):
        labels = np.random.default_rng(0).permutation(np.arange(20_000) % 4)
        dealt = partitions.quantity(labels, 10, concentration=0.5, seed=1)
        counts = partitions.class_counts(labels, dealt)
        sizes = counts.sum(axis=1)
        assert sizes.sum() == 20_000 and sizes.min() >= 10
        assert sizes.max() > 5 * sizes.min()
        large = sizes > 1000
        shares = counts[large] / sizes[large, np.newaxis]
        assert np.abs(shares - 0.25).max() < 0.05

    def test_shares_have_the_moments_of_a_dirichlet(self):
        labels = np.zeros(10_000, int)
        first = [
            partitions.quantity(
                labels, 5, concentration=2.0, seed=seed, minimum_examples=0
            )[0].size
            / 10_000
            for seed in range(600)
        ]
        # Mean 1/5, variance 0.2 * 0.8 / 11 = 0.0145.
        assert abs(np.mean(first) - 0.2) < 0.02
        assert abs(np.var(first) - 0.0145) < 0.004

    def test_draws_again_until_everybody_has_the_minimum(self):
        labels = np.zeros(400, int)
        for seed in range(20):
            dealt = partitions.quantity(labels, 10, concentration=0.5, seed=seed)
            assert min(part.size for part in dealt) >= 10
        with pytest.raises(
            partitions.PartitionError, match="None of 7 draws.*, iid or"
        ):
            partitions.quantity(
                np.zeros(100, int), 10, concentration=0.1, seed=0, max_draws=7
            )


class TestDomain:
    domains = np.repeat([3, 0, 7], [50, 31, 20])
    labels = np.arange(101) % 4

    @pytest.mark.parametrize("clients_each", [1, 2, 5])
    def test_each_client_holds_one_domain_in_their_order(self, clients_each):
        dealt = partitions.domain(
            self.labels, 3 * clients_each, domains=self.domains, seed=0
        )
        assert sorted(np.concatenate(dealt)) == list(range(101))
        own = [set(self.domains[part]) for part in dealt]
        assert own == [{d} for d in (0, 3, 7) for _ in range(clients_each)]
        for first in range(0, len(dealt), clients_each):
            sizes = [part.size for part in dealt[first : first + clients_each]]
            assert max(sizes) - min(sizes) <= 1
        assert all((np.diff(part) > 0).all() for part in dealt)

    def test_who_of_a_domain_gets_what_is_random(self):
        one, other, again = (
            partitions.domain(self.labels, 6, domains=self.domains, seed=seed)
            for seed in (0, 1, 0)
        )
        assert _same(one, again) and not _same(one, other)
        by_name = partitions.partition(
            "domain", self.labels, 6, domains=self.domains, seed=0
        )
        assert _same(one, by_name)

    @pytest.mark.parametrize(
        "num_clients, domains, words",
        [
            (4, domains, "there are 3 domains; use a multiple of 3"),
            (63, domains, "only 20 examples for 21 clients"),
            (3, None, "needs data with domains"),
            (3, domains[:-1], "100 domain numbers for 101 examples"),
        ],
    )
    def test_raises_on_what_cannot_be_shared_out(self, num_clients, domains, words):
        with pytest.raises(partitions.PartitionError, match=words):
            partitions.domain(self.labels, num_clients, domains=domains, seed=0)


_OFFICIAL = (
    pathlib.Path(__file__).parents[3]
    / "shared/golden/splits/cifar100_dirichlet0.3_clients100.txt"
)


class TestSplitFile:
    @staticmethod
    def _read(tmp_path, text, num_clients=2, size=10):
        path = tmp_path / "clients.txt"
        path.write_text(text)
        return partitions.partition(
            "split_file", np.zeros(size, int), num_clients, seed=0, split_file=path
        )

    @pytest.mark.parametrize(
        "text",
        [
            "{0: [3, 1], 1: [7]}",
            "{1: [7], 0: [1, 3]}\n",
            "  {0: {1, 3}, 1: (7,),}\n\n",
            "{\n 0: [1,\n 3],\n 1: [7]\n}",
        ],
    )
    def test_reads_lists_sets_and_tuples_in_the_order_of_the_clients(
        self, tmp_path, text
    ):
        dealt = self._read(tmp_path, text)
        assert [part.tolist() for part in dealt] == [[1, 3], [7]]
        assert all(part.dtype == np.int64 for part in dealt)

    def test_a_client_may_have_nothing(self, tmp_path):
        dealt = self._read(tmp_path, "{0: [], 5: [9]}")
        assert [part.tolist() for part in dealt] == [[], [9]]

    @pytest.mark.skipif(
        not _OFFICIAL.exists(), reason="../shared/golden/splits is not there"
    )
    def test_reads_a_file_of_the_fedmlb_authors(self):
        dealt = partitions.split_file(np.zeros(50_000, int), 100, split_file=_OFFICIAL)
        assert {part.size for part in dealt} == {500}
        assert np.array_equal(np.sort(np.concatenate(dealt)), np.arange(50_000))
        assert 38462 in dealt[0]

    def test_never_executes_what_is_written(self, tmp_path):
        marker = tmp_path / "executed"
        for text in (
            f"open({str(marker)!r}, 'w')",
            f"{{0: open({str(marker)!r}, 'w'), 1: [1]}}",
            f"{{0: [__import__('os').system('touch {marker}')], 1: [1]}}",
            f"[exec('open({str(marker)!r}, chr(119))')]",
        ):
            with pytest.raises(partitions.PartitionError, match="not a Python dict"):
                self._read(tmp_path, text)
        assert not marker.exists()

    @pytest.mark.parametrize(
        "text, words",
        [
            ("", "not a Python dict of lists"),
            ("{0: [1, 2", "not a Python dict of lists"),
            ("{0: [1]}{1: [2]}", "not a Python dict of lists"),
            ("[" * 100_000, "not a Python dict of lists"),
            ("{0: [1], [2]: [3]}", "not a Python dict of lists"),
            ("[[1], [2]]", "must hold one dict"),
            ("{}", "must hold one dict"),
            ("{'a': [1], 'b': [2]}", "must hold one dict"),
            ("{0: 1, 1: 2}", "must hold one dict"),
            ("{0: [1.5], 1: [2]}", "must hold one dict"),
            ("{0: [True], 1: [2]}", "must hold one dict"),
            ("{0: '12', 1: [2]}", "must hold one dict"),
            ("{0: [1], 1: [2], 2: [3]}", "3 clients, but num_clients is 2"),
            ("{0: [1], 1: [10]}", "positions from 1 to 10, but there are 10"),
            ("{0: [1], 1: [-1]}", "positions from -1 to 1"),
            ("{0: [1], 1: [99999999999999999999]}", "beyond 64 bits"),
            ("{0: [1, 2], 1: [2]}", "deals out the example 2 twice"),
            ("{0: [1, 1], 1: [2]}", "deals out the example 1 twice"),
        ],
    )
    def test_raises_on_a_file_of_another_kind(self, tmp_path, text, words):
        with pytest.raises(partitions.PartitionError, match=words) as caught:
            self._read(tmp_path, text)
        assert "clients.txt" in str(caught.value) and "\n" not in str(caught.value)

    def test_raises_on_a_file_that_is_missing_or_no_text(self, tmp_path):
        for path in (tmp_path / "none", tmp_path):
            with pytest.raises(partitions.PartitionError, match="cannot be read"):
                partitions.split_file([0], 1, split_file=path)
        (tmp_path / "b").write_bytes(b"\xff\xfe\x00")
        with pytest.raises(partitions.PartitionError, match="not a Python dict"):
            partitions.split_file([0], 1, split_file=tmp_path / "b")


class TestRefusals:
    @pytest.mark.parametrize("name", _SCHEMES)
    @pytest.mark.parametrize(
        "labels",
        [
            np.array([], dtype=np.int64),
            np.array([0.0, np.nan, 1.0]),
            np.array([0.0, np.inf]),
            np.array([0.5, 1.0]),
            np.array([-1, 0, 1]),
            np.array([[0, 1], [1, 0]]),
            np.array(["cat", "dog"]),
        ],
        ids=["empty", "nan", "infinite", "fraction", "negative", "matrix", "text"],
    )
    def test_raises_on_labels_that_are_no_class_numbers(self, name, labels):
        with pytest.raises(partitions.PartitionError):
            _make(name, labels, 1, 0)

    @pytest.mark.parametrize("name", _SCHEMES)
    @pytest.mark.parametrize(
        "num_clients, words",
        [
            *((each, "num_clients") for each in (0, -3, 2.5, "4", None)),
            (11, "at most 10 clients"),
        ],
    )
    def test_raises_on_an_impossible_number_of_clients(self, name, num_clients, words):
        with pytest.raises(partitions.PartitionError, match=words):
            _make(name, np.arange(10), num_clients, 0)

    @pytest.mark.parametrize("name", _CONCENTRATED)
    @pytest.mark.parametrize(
        "concentration", [0, -1.0, float("nan"), float("inf"), None, "0.5"]
    )
    def test_raises_on_a_concentration_that_is_not_above_zero(
        self, name, concentration
    ):
        with pytest.raises(partitions.PartitionError, match="concentration"):
            _make(name, np.arange(10), 2, 0, concentration)

    def test_raises_at_once_when_the_minimum_needs_more_examples_than_there_are(self):
        with pytest.raises(partitions.PartitionError, match="at most 10 clients"):
            partitions.dirichlet_unbalanced(
                np.arange(100) % 10, 11, concentration=1.0, seed=0
            )

    def test_raises_after_a_bounded_number_of_draws(self):
        with (
            mock.patch.object(
                dirichlet, "_spread_classes", wraps=dirichlet._spread_classes
            ) as draws,
            pytest.raises(partitions.PartitionError, match="None of 50 draws"),
        ):
            partitions.dirichlet_unbalanced(
                np.arange(100) % 10, 9, concentration=0.01, seed=0, max_draws=50
            )
        assert draws.call_count == 50

    def test_raises_on_an_unknown_name_and_lists_the_known(self):
        with pytest.raises(partitions.UnknownPartitionError, match="iid"):
            partitions.partition("dirichlet", np.arange(10), 2, seed=0)


class TestClassCounts:
    def test_counts_by_client_and_class(self):
        labels = np.array([0, 2, 2, 1, 0], dtype=np.uint8)
        table = partitions.class_counts(labels, [[0, 1], [], [2, 4]], 4)
        assert table.dtype == np.int64
        assert table.tolist() == [[1, 0, 1, 0], [0, 0, 0, 0], [1, 0, 1, 0]]

    def test_is_as_wide_as_the_largest_label_or_as_asked(self):
        assert partitions.class_counts(np.array([3]), [[0]]).shape == (1, 4)
        with pytest.raises(partitions.PartitionError, match="num_classes=4"):
            partitions.class_counts(np.array([3]), [[0]], 3)
