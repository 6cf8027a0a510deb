"""What single schemes promise, and what all of them refuse."""

import pathlib
import pickle
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from tests.data import schemes
from tff_reg.data import partitions
from tff_reg.data.partitions import dirichlet


class TestShards:
    @settings(max_examples=30, deadline=None)
    @given(
        case=schemes.labels_and_clients(), seed=schemes.seeds, extra=st.integers(0, 3)
    )
    def test_gives_exactly_the_number_of_classes_or_raises(self, case, seed, extra):
        labels, num_clients = case
        present, sizes = np.unique(labels, return_counts=True)
        per_client = min(
            schemes.enough_classes(labels, num_clients) + extra, present.size
        )
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

    def test_dirichlet_shares_keep_the_classes_and_vary_in_size(self):
        labels = np.random.default_rng(0).permutation(np.arange(20_000) % 10)
        given = dict(classes_per_client=2, concentration=0.3, seed=0)
        dealt = partitions.shards_dirichlet(labels, 200, **given)
        counts = partitions.class_counts(labels, dealt)
        assert ((counts > 0).sum(axis=1) == 2).all()
        shares = (counts / 2000)[counts > 0]
        # Of K = 40 holders: mean 1 / K, variance (1 / K)(1 - 1 / K) / (K alpha + 1).
        assert shares.mean() == 1 / 40
        expected = np.sqrt(39 / 1600 / (40 * 0.3 + 1))
        assert shares.std() == pytest.approx(expected, rel=0.15)


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

    @pytest.mark.parametrize(
        "num_clients, domains, words",
        [
            (4, domains, "there are 3 domains; use a multiple of 3"),
            (63, domains, "only 20 examples for 21 clients"),
            (3, None, "needs data with domains"),
            (3, domains[:-1], "100 domain numbers for 101 examples"),
        ],
    )
    def test_raises_on_impossible_domain_partitions(self, num_clients, domains, words):
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
            "  {0: {1, 3}, 1: (7,),}\n\n",
            '{"0": [3, 1], "1": [7]}',
            str({str(i): [1, 3] if i == 2 else [7] for i in (10, 2)}),
            "{'b': [1, 3], 'a': [7]}",
            "[[3, 1], [7]]",
            '{"0": {"train": [1, 3], "test": [4]}, "1": {"train": [7], "test": []}}',
        ],
    )
    def test_reads_lists_sets_and_tuples_in_the_order_of_the_clients(
        self, tmp_path, text
    ):
        dealt = self._read(tmp_path, text)
        assert [part.tolist() for part in dealt] == [[1, 3], [7]]
        assert all(part.dtype == np.int64 for part in dealt)

    @pytest.mark.parametrize("form", ["npz", "pkl", "pickle"])
    def test_reads_the_files_of_scripts(self, tmp_path, form):
        path = tmp_path / f"split.{form}"
        parts = {str(n): np.array([n, n + 20]) for n in range(12)}
        if form == "npz":
            np.savez(path, **parts)
        else:
            made = [*parts.values()] if form == "pkl" else parts
            path.write_bytes(pickle.dumps(made, pickle.HIGHEST_PROTOCOL))
        dealt = partitions.split_file(np.zeros(40, int), 12, split_file=path)
        assert [part.tolist() for part in dealt] == [[n, n + 20] for n in range(12)]
        assert partitions.count_in(path) == 12 and partitions.held_out(path) is None

    def test_a_clients_tests_are_apart(self, tmp_path):
        path = tmp_path / "split.json"
        path.write_text('{"1": {"train": [1], "test": [4, 2]}, "0": [7]}')
        dealt = partitions.split_file(np.zeros(9, int), 2, split_file=path)
        assert [part.tolist() for part in dealt] == [[7], [1]]
        held = partitions.held_out(path)
        assert [part.tolist() for part in held] == [[], [2, 4]]

    def test_the_parts_of_a_client_in_an_npz_are_one_client(self, tmp_path):
        path, parts = tmp_path / "split.npz", {"b/train": [1], "b/test": [4, 2]}
        np.savez(path, **parts, **{"site/a": [7]})
        dealt = partitions.split_file(np.zeros(9, int), 2, split_file=path)
        assert [part.tolist() for part in dealt] == [[1], [7]]
        assert [part.tolist() for part in partitions.held_out(path)] == [[2, 4], []]
        assert partitions.clients_in(path) == ["b", "site/a"]
        for wrong in ("b/val", "b"):
            np.savez(path, **parts, **{wrong: [3]})
            with pytest.raises(partitions.PartitionError, match="has a dict of train,"):
                partitions.count_in(path)

    @pytest.mark.parametrize(
        "clients, names",
        [
            ("[[0], [1]]", None),
            ("{'1': [0], '0': [1]}", None),
            ("{1: [0], 2: [1]}", ["1", "2"]),
            ("{'10': [0], '2': [1]}", ["2", "10"]),
            ("{'north': [0], 'east': [1]}", ["north", "east"]),
        ],
    )
    def test_clients_have_their_names(self, tmp_path, clients, names):
        path = tmp_path / "split"
        path.write_text(clients)
        assert partitions.clients_in(path) == names

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
            ("{0: [1], [2]: [3]}", "not a Python dict of lists"),
            ("{0: [1.5], 1: [2]}", "has 1.5 for the client '0'; give whole numbers"),
            ("{'a': ['3'], 1: [2]}", "has '3' for the client 'a'; give whole numbers"),
            ("{0: [1], 1: [2, True]}", "has True for the client '1'"),
            ("{0: [1], 1: [[2], [3, 4]]}", r"has \[2\] for the client '1'"),
            ("{0: [1], 1: [-1]}", "has -1 for the client '1'"),
            (f"{{0: [1], 1: [{2**64}]}}", f"has {2**64} for the client '1'"),
            (
                "{0: {'train': [1], 'test': [4], 'val': [2]}, 1: [3]}",
                "has a dict of train, test, val for the client '0'; give whole numbers",
            ),
            ("{'users': ['a'], 'user_data': {'a': {}}}", "examples, as LEAF's JSON"),
            (
                "{0: {'train': [1], 'test': [1]}, 1: [3]}",
                r"has the example 1 twice, for '0' and '0' \(test\); each may",
            ),
            ("[]", "must hold one dict"),
            ("{0: '12', 1: [2]}", "has '12' for the client '0'"),
            ("{0: [1], '0': [2]}", "has two clients named '0'"),
            ("{0: [1], 1: [2], 2: [3]}", "3 clients, but num_clients is 2"),
            ("{0: [1], 1: [10]}", "positions from 1 to 10, but there are 10"),
            ("{'a': [1, 2], 'b': [2]}", "has the example 2 twice, for 'a' and 'b'; "),
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
        np.savez(tmp_path / "lists.npz", a=np.array([[1], [2, 3]], object))
        with pytest.raises(partitions.PartitionError, match="save one array per clie"):
            partitions.split_file([0], 1, split_file=tmp_path / "lists.npz")
        (tmp_path / "b").write_bytes(b"\xff\xfe\x00")
        with pytest.raises(partitions.PartitionError, match="not a Python dict"):
            partitions.split_file([0], 1, split_file=tmp_path / "b")


class TestRefusals:
    @pytest.mark.parametrize("name", schemes.SCHEMES)
    @pytest.mark.parametrize(
        "labels",
        [
            np.array([], dtype=np.int64),
            np.array([0.0, np.nan, 1.0]),
            np.array([0.5, 1.0]),
            np.array([-1, 0, 1]),
            np.array(["cat", "dog"]),
        ],
        ids=["empty", "nan", "fraction", "negative", "text"],
    )
    def test_raises_on_labels_that_are_no_class_numbers(self, name, labels):
        with pytest.raises(partitions.PartitionError):
            schemes.make(name, labels, 1, 0)

    @pytest.mark.parametrize("name", schemes.SCHEMES)
    @pytest.mark.parametrize(
        "num_clients, words",
        [
            *((each, "num_clients") for each in (0, -3, 2.5, "4", None)),
            (11, "at most 10 clients"),
        ],
    )
    def test_raises_on_an_impossible_number_of_clients(self, name, num_clients, words):
        with pytest.raises(partitions.PartitionError, match=words):
            schemes.make(name, np.arange(10), num_clients, 0)

    @pytest.mark.parametrize("name", schemes.CONCENTRATED)
    @pytest.mark.parametrize(
        "concentration",
        [
            0,
            float("nan"),
            None,
        ],
    )
    def test_raises_on_a_concentration_that_is_not_above_zero(
        self, name, concentration
    ):
        with pytest.raises(partitions.PartitionError, match="concentration"):
            schemes.make(name, np.arange(10), 2, 0, concentration)

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
