"""Who holds what, as a table and as a picture."""

import math

import numpy as np
import pytest
from PIL import Image

from tests.experiment import finished
from tff_reg.data import partition_report, partitions

_LABELS = np.array([0, 0, 1, 1, 1, 2, 2])
_DOMAINS = np.array([0, 1, 0, 1, 0, 1, 0])


def _report(**options):
    return partition_report.report(
        _LABELS,
        [np.array([0, 2, 3]), np.array([1]), np.array([], np.int64)],
        class_names=["cat", "dog", "owl"],
        **options,
    )


def test_counts_sizes_and_entropies_are_those_of_the_clients():
    held = _report()
    assert held.counts.tolist() == [[1, 2, 0], [1, 0, 0], [0, 0, 0]]
    assert held.sizes.tolist() == [3, 1, 0]
    expected = math.log2(3) - 2 / 3
    np.testing.assert_allclose(held.entropies, [expected, 0, 0])
    assert not np.signbit(held.entropies).any()


def test_rows_have_a_cell_for_each_domain_and_class():
    held = _report(domains=_DOMAINS, domain_names=["photo", "sketch"])
    assert held.rows()[0] == {
        "client": "0",
        "examples": 3,
        "classes": 2,
        "entropy_bits": 0.9183,
        "label_distance": 0.1667,
        "domain/photo": 2,
        "domain/sketch": 1,
        "class/cat": 1,
        "class/dog": 2,
        "class/owl": 0,
    }


def test_the_csv_file_has_the_rows(tmp_path):
    held = _report(client_ids=["a", "b,c", "d"])
    held.write_csv(tmp_path / "t.csv")
    found = finished.read_csv(tmp_path / "t.csv")
    expected = [{k: str(v) for k, v in row.items()} for row in held.rows()]
    assert found == expected and found[1]["client"] == "b,c"


def test_the_table_for_people_has_a_column_for_each_of_a_few_classes():
    lines = _report(client_ids=["a", "b|c", "d"]).markdown().splitlines()
    assert (
        lines[0] == "| client | examples | classes | entropy (bits) | cat | dog | owl |"
    )
    assert lines[2] == "| a | 3 | 2 | 0.92 | 1 | 2 | 0 |"
    assert lines[3].startswith("| b\\|c | 1 |")
    assert len({line.count("|") - line.count("\\|") for line in lines}) == 1


def test_the_table_for_people_names_the_largest_of_many_classes():
    labels = np.repeat(np.arange(20), 20 - np.arange(20))
    held = partition_report.report(
        labels,
        [np.flatnonzero(labels >= 5), np.flatnonzero(labels == 3)],
        class_names=[f"c{i}" for i in range(20)],
    )
    lines = held.markdown().splitlines()
    assert lines[0].endswith("| holds most of |")
    assert lines[2].endswith("| c5 15, c6 14, c7 13 |")
    assert lines[3].endswith("| c3 17 |")


def test_the_summary_has_the_extremes():
    held = _report(domains=_DOMAINS, domain_names=["photo", "sketch"])
    assert held.summary() == [
        "3 clients hold 4 of 7 examples: 0 to 3 (median 1) each",
        "classes: 0 to 2 (median 1) of 3 each",
        "label entropy: 0.00 to 0.92 (median 0.00) bits each; all clients' examples "
        "together have 1.00",
        # |1/3 - 1/2|, |2/3 - 1/2| and |1 - 1/2|, |0 - 1/2|: halves are 1/6 and 1/2.
        "label skew: mean total variation distance 0.333 to all clients' examples",
        # Sizes 3, 1, 0: sqrt(14/9) / (4/3); (2 * (1 * 0 + 2 * 1 + 3 * 3) / 12) - 4/3.
        "size skew: coefficient of variation 0.935, Gini 0.500",
        "class imbalance: 1 times as many examples of the largest class as of the "
        "smallest",
        "domains: 0 to 2 (median 1) of 2 each",
    ]


def _draw(path, num_clients, num_classes, domains=0, names="class {}"):
    labels = np.arange(max(4000, 20 * num_clients)) % num_classes
    held = partition_report.report(
        labels,
        partitions.dirichlet_balanced(labels, num_clients, concentration=0.3, seed=0),
        class_names=[names.format(i) for i in range(num_classes)],
        domains=labels // 3 % domains if domains else None,
        domain_names=[f"domain {i}" for i in range(domains)],
    )
    held.write_figure(path)
    with Image.open(path) as image:
        return held, np.asarray(image.convert("RGB")).astype(int)


@pytest.mark.parametrize(
    "num_clients, num_classes, domains", [(1, 2, 0), (10, 10, 4), (500, 200, 4)]
)
def test_figures_of_every_size_have_white_margins(
    tmp_path, num_clients, num_classes, domains
):
    _, pixels = _draw(tmp_path / "p.png", num_clients, num_classes, domains)
    assert pixels.shape == (900, 1440, 3)
    assert (pixels < 250).any(axis=2).mean() > 0.05
    # Nothing is cut off at the edges.
    for edge in (pixels[:2], pixels[-2:], pixels[:, :2], pixels[:, -2:]):
        assert (edge == 255).all()


def test_few_classes_are_bars_with_the_right_areas(tmp_path):
    held, pixels = _draw(tmp_path / "p.png", 8, 3)
    # Of the plot alone, without the legend: the first three colours of tab10.
    plot = pixels[:, : int(0.81 * 1440)]
    areas = [
        (np.abs(plot - np.array(colour)).sum(axis=2) < 6).sum()
        for colour in ((31, 119, 180), (255, 127, 14), (44, 160, 44))
    ]
    shares = held.counts.sum(axis=0) / held.counts.sum()
    np.testing.assert_allclose(np.array(areas) / sum(areas), shares, atol=0.02)
