"""Paired differences to a baseline: the statistics, and what a table has of them."""

import itertools
import math

import numpy as np
import pytest
import scipy.stats

from tests.experiment.compared import lines_of, text_of, write_run
from tests.experiment.finished import read_csv
from tff_reg import experiment, scores, settings
from tff_reg.experiment.report import comparison, differences


@pytest.mark.parametrize("count", [2, 3, 10])
def test_the_interval_ends_where_the_paired_t_test_has_p_of_5_percent(count):
    first, second = np.random.default_rng(count).normal(size=(2, count))
    groups = {"a": dict(enumerate(first)), "b": dict(enumerate(second)), "c": {0: 1.0}}
    found = differences.to_baseline(groups, "b")
    assert list(found) == ["a"]
    found = found["a"]
    assert found["mean"] == pytest.approx(np.mean(first - second))
    for end in (found["low"], found["high"]):
        assert scipy.stats.ttest_rel(first - end, second).pvalue == pytest.approx(0.05)
    statistic = scipy.stats.ttest_rel(first, second).statistic
    assert found["effect_size"] * count**0.5 == pytest.approx(statistic)


def test_sign_flips_and_holm_by_hand():
    # Sums of the patterns: 6, 4, 2, 0 and their negatives; 4 and 6 are as far as 4.
    assert differences.sign_flip([3, -1, 2]) == 4 / 8
    assert differences.sign_flip([0.1, 0.2, 0.3]) == 2 / 8
    assert differences.sign_flip([0.0, 0.0]) == 1.0
    assert differences.sign_flip([0.1] * 40) == 2 / 2**40
    assert differences.sign_flip([0.1] * 41) is None
    # 4 x 0.005, 3 x 0.01, 2 x 0.03, and 0.04, which is not below the one before.
    adjusted = differences.holm([0.01, 0.04, 0.03, 0.005])
    assert adjusted == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert differences.holm([0.5, 0.75]) == [1.0, 1.0]


@pytest.mark.parametrize("count", [1, 4, 7])
def test_sign_flips_are_all_patterns(count):
    # Tenths, of which many sums are equal but for their rounding.
    values = np.random.default_rng(count).integers(-3, 4, count) / 10
    patterns = itertools.product([-1, 1], repeat=count)
    sums = [abs(np.dot(signs, values)) for signs in patterns]
    share = np.mean(np.array(sums) >= abs(values.sum()) - 1e-12)
    assert differences.sign_flip([*values]) == share


def test_equal_differences_prove_nothing(tmp_path):
    rows = table(tmp_path, fedavg=[50, 60], man=[51, 61], moon=[20, 30])
    assert rows[1]["difference_mean"] == pytest.approx(0.01)
    assert rows[1]["difference_low"] is rows[1]["difference_high"] is None
    text = text_of(tmp_path / "o")
    assert "| +1.00 | " in text and "**" not in text


def test_a_baseline_is_one_of_the_methods():
    names = ["local", "fedavg", "man+fedprox"]
    assert differences.baseline_of(None, names[:1]) == "local"
    assert differences.baseline_of(None, names) == "fedavg"
    assert differences.baseline_of("fedprox+man", names) == "man+fedprox"
    for given, seeds, words in (
        ("moon", 2, "baseline=moon: it is not among the compared methods (local, fed"),
        ("fedavg", 1, "baseline=fedavg: a difference takes two seeds"),
    ):
        with pytest.raises(settings.SettingError) as caught:
            differences.baseline_of(given, names, seeds)
        assert str(caught.value).startswith(words)


def table(folder, baseline=None, **percents):
    """Compares runs of a final accuracy in percent per seed, by method."""
    runs = [
        write_run(folder / f"{p}{s}", [0.0, each / 100], process=p, seed=s)
        for p, of_seeds in percents.items()
        for s, each in enumerate(of_seeds)
    ]
    columns = ("score",)
    return experiment.compare(runs, folder / "o", columns=columns, baseline=baseline)


def test_a_table_has_the_differences_to_the_baseline(tmp_path):
    accuracies = dict(man=[50, 60, 70], fedavg=[52, 61, 73], moon=[49, 60, 68])
    rows = table(tmp_path, "fedavg", **accuracies, kd=[90])
    lines = lines_of(tmp_path / "o")
    assert lines[0] == (
        "| method | seeds | accuracy (%) | difference to fedavg (points) | p (Holm) |"
    )
    # t of 2 degrees of freedom: 4.303; of -2, -1, -3 and -3, -1, -5 the deviations are
    # 1 and 2. No pattern is as far, of 8; twice.
    assert [line.split(" | ", 3)[3] for line in lines[2:6]] == [
        "−2.00 [−4.48, 0.48] | 0.5 |",
        "- | - |",
        "−3.00 [−7.97, 1.97] | 0.5 |",
        "- | - |",
    ]
    words = text_of(tmp_path / "o")
    assert "Differences to fedavg: mean over the common seeds, with its 95 %" in words
    assert "over 3 seeds is at least 0.25, adjusted by Holm (methods: 2)" in words
    assert "$-$2.00 [$-$4.48, 0.48] & 0.5" in (tmp_path / "o/table.tex").read_text()
    of_csv = {row["process"]: row for row in read_csv(tmp_path / "o" / "table.csv")}
    man = {k: float(v) for k, v in of_csv["man"].items() if k.startswith("difference")}
    assert list(man) == [
        f"difference_{name}"
        for name in ("seeds", "mean", "low", "high", "p", "effect_size", "p_holm")
    ]
    half = scipy.stats.t.ppf(0.975, 2) * 0.01 / 3**0.5
    ends = [-0.02 - half, -0.02 + half]
    assert [*man.values()] == pytest.approx([3, -0.02, *ends, 0.25, -2, 0.5])
    assert rows[1]["difference_mean"] is None and of_csv["kd"]["difference_p"] == ""


def test_p_values_that_are_not_there_are_not_in_the_caption(tmp_path):
    table(tmp_path, fedavg=range(41), man=range(2, 43))
    words = text_of(tmp_path / "o")
    assert "There is no p over more than 40 seeds." in words and "Holm (" not in words
    table(tmp_path, fedavg=range(41), man=[1, 3, 2], kd=[*range(42, 83)])
    assert "over 3 seeds is at least 0.25, adjusted by Holm (methods: 1)" in text_of(
        tmp_path / "o"
    )


def test_small_scores_are_told_apart_as_large_ones():
    rows = {
        "a": dict(enumerate([3.0, 1, 2, 4])),
        "b": dict(enumerate([2.0, 0.7, 1, 1])),
    }
    small = {n: {s: 1e-10 * v for s, v in row.items()} for n, row in rows.items()}
    one, other = (differences.to_baseline(each, "b")["a"] for each in (rows, small))
    assert (one["p"], one["p_holm"]) == (other["p"], other["p_holm"]) == (0.125, 0.125)
    assert other["low"] == pytest.approx(1e-10 * one["low"])
    both = (differences.are_best([*each.values()], min) for each in (rows, small))
    assert next(both) == next(both)
    ranks = comparison.mean_ranks([{"a": 3e-10, "b": 2e-10}], scores.Score())
    assert ranks == {"a": 1.0, "b": 2.0}


@pytest.mark.parametrize("choose", [max, min])
def test_no_row_is_marked_below_one_that_is_not(choose):
    rng = np.random.default_rng(7)
    some = 0
    for _ in range(300):
        noise = rng.choice([0.001, 0.03], (5, 1))
        values = 0.7 + 0.01 * rng.normal(size=(5, 1)) + noise * rng.normal(size=(5, 3))
        rows = [dict(enumerate(each)) for each in values]
        marked = differences.are_best(rows, choose)
        order = np.argsort(values.mean(axis=1))[:: -1 if choose is max else 1]
        of_order = [marked[index] for index in order]
        assert of_order == sorted(of_order, reverse=True) and of_order[0]
        some += False in of_order and sum(of_order) > 1
    assert some > 20
    # The second is beyond, the third is not: nobody below the second is marked.
    rows = [{0: 0.9, 1: 0.91}, {0: 0.8, 1: 0.8101}, {0: 0.9, 1: 0.5}, {}]
    assert differences.are_best(rows, max) == [True, False, False, None]


def test_one_seed_has_no_differences_and_one_line_says_so(tmp_path):
    (_, fedprox) = table(tmp_path, fedavg=[50], fedprox=[60])
    words = text_of(tmp_path / "o")
    assert words.count("There is no difference to fedavg, which takes two common") == 1
    assert "(points)" not in words and fedprox["difference_mean"] is None
    with pytest.raises(settings.SettingError, match="baseline=man"):
        table(tmp_path, "man", fedavg=[50], fedprox=[60])


def test_bold_are_the_best_and_all_that_a_paired_interval_does_not_exclude(tmp_path):
    def text(**accuracies):
        table(tmp_path, **accuracies)
        return text_of(tmp_path / "o")

    one = text(fedavg=[70], fedprox=[71])
    assert "**" not in one and "one seed does not tell which is best" in one
    equal = text(fedavg=[70, 72], fedprox=[70, 72.1])
    assert "**" not in equal and "no 95 % interval of a paired difference" in equal
    # Seeds differ by more than methods, and every one says the same.
    paired = text(fedavg=[50, 60, 70], fedprox=[52, 62.1, 71.9], man=[51.9, 62, 72])
    assert "| fedavg | 3 | 60.00 ± 10.00 |" in paired
    assert "**62.00 ± 9.95**" in paired and "**61.97 ± 10.05**" in paired
    assert "In bold: the best, and the next ones, down to the first" in paired
    # Of a row that is not finite, or has no accuracy, nothing is known.
    assert "**" not in text(fedavg=[70, 72], fedprox=[71, 72], man=[math.nan] * 2)
    # Of rows that tie, each counts as the best, in any order.
    tied = dict(
        fedavg=[10.3, 10.3], fedprox=[10.1, 10.5], man=[10.1, 10.2], moon=[5, 5.1]
    )
    for order in (tied, dict(reversed(tied.items()))):
        rounded = text(**order)
        assert rounded.count("**10.30 ± ") == 2 and "**10.15 ± 0.07**" in rounded
        assert "| moon | 2 | 5.05 ± 0.07 |" in rounded
