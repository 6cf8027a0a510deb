"""The numbers, tables and curves of a comparison."""

import pytest

from tests.experiment.compared import lines_of, text_of, write_run
from tests.experiment.finished import read_csv
from tff_reg import experiment
from tff_reg.experiment.report import quantities


def test_means_and_sample_deviations_by_hand():
    assert quantities.mean([1.0, 2.0, 6.0]) == 3.0
    # Squares 4 + 1 + 9 = 14; 14 / 2 = 7. (Of the population it would be 14 / 3.)
    assert quantities.deviation([1.0, 2.0, 6.0]) == pytest.approx(7**0.5)
    assert quantities.deviation([1.0]) is None
    assert quantities.mean([1.0, None]) is None
    assert quantities.deviation([1.0, None, 2.0]) is None


def test_rows_are_means_over_seeds_and_the_csv_has_them_at_full_precision(
    four_runs, tmp_path
):
    rows = experiment.compare(
        four_runs,
        tmp_path / "out",
        score_at_rounds=[1, 2],
        targets=[0.22, 0.4],
    )
    fedavg, fedprox = rows
    assert " ".join(fedavg) == (
        "process runs accuracy_mean accuracy_std best_accuracy_mean best_accuracy_std"
        " ema_accuracy_mean ema_accuracy_std last_five_accuracy_mean"
        " last_five_accuracy_std all_clients_accuracy_mean"
        " all_clients_accuracy_std"
        " ema_accuracy_at_1_mean ema_accuracy_at_1_std ema_accuracy_at_2_mean"
        " ema_accuracy_at_2_std"
        " rounds_to_0.22_mean rounds_to_0.22_std"
        " megabytes_to_0.22_mean megabytes_to_0.22_std"
        " seconds_to_0.22_mean seconds_to_0.22_std"
        " rounds_to_0.4_mean rounds_to_0.4_std"
        " megabytes_to_0.4_mean megabytes_to_0.4_std"
        " seconds_to_0.4_mean seconds_to_0.4_std"
        " seconds_per_round rejected_clients rounds_without_training not_finite"
        " difference_seeds difference_mean difference_low difference_high"
        " difference_p difference_effect_size difference_p_holm"
    )
    assert fedavg["process"] == "fedavg" and fedavg["runs"] == 2
    assert fedavg["accuracy_mean"] == pytest.approx(0.5)
    # Deviations of 0.1 from the mean: (0.01 + 0.01) / 1 = 0.02.
    assert fedavg["accuracy_std"] == pytest.approx(0.02**0.5)
    # 0.9 x 0.2 + 0.1 x 0.4 = 0.22 and 0.9 x 0.3 + 0.1 x 0.6 = 0.33.
    assert fedavg["ema_accuracy_mean"] == pytest.approx(0.275)
    assert fedavg["ema_accuracy_std"] == pytest.approx((2 * 0.055**2) ** 0.5)
    assert fedavg["seconds_per_round"] == 1.5
    # One needs two rounds, the other one.
    assert fedavg["rounds_to_0.22_mean"] == 1.5
    assert fedavg["rounds_to_0.4_mean"] is None
    assert fedavg["ema_accuracy_at_1_mean"] == pytest.approx(0.25)
    assert fedavg["ema_accuracy_at_2_mean"] == pytest.approx(0.275)
    assert fedprox["best_accuracy_mean"] == pytest.approx(0.7)
    # The second seed's averages are 0.1 and 0.18: never 0.22.
    assert fedprox["rounds_to_0.22_mean"] is None
    for row, cells in zip(rows, read_csv(tmp_path / "out" / "table.csv")):
        assert cells == {k: "" if v is None else str(v) for k, v in row.items()}
        assert list(cells) == list(row)


@pytest.mark.parametrize(
    "measures, round_num, words",
    [
        ({}, 3, "the accuracy's moving average reaches"),
        ({"target_measure": "raw"}, 2, "in which the accuracy reaches"),
        (
            {"target_measure": "raw", "target_model": "all_clients"},
            1,
            "the accuracy of the mean of all clients' models reaches",
        ),
    ],
)
@pytest.mark.parametrize("is_asked", [False, True])
def test_targets_are_reached_by_what_runs_or_the_caller_say(
    measures, round_num, words, is_asked, tmp_path
):
    of_run, asked = ({}, measures) if is_asked else (measures, {})
    # Averages: 0.2, 0.24 and 0.276.
    means = {"evaluation_all_clients/accuracy": 0.7}
    run = write_run(tmp_path / "a", [0.2, 0.6, 0.6], columns=means, **of_run)
    (row,) = experiment.compare([run], tmp_path, targets=[0.25], **asked)
    assert row["rounds_to_0.25_mean"] == round_num
    assert words in text_of(tmp_path)


def test_the_markdown_is_a_table_in_percent(four_runs, tmp_path):
    man = [
        write_run(tmp_path / f"m{seed}", [0.9, accuracy], process="man", seed=seed)
        for seed, accuracy in enumerate([0.7, 0.72])
    ]
    columns = ("score", "best", "ema", "seconds")
    experiment.compare(
        [*four_runs, *man],
        tmp_path,
        score_at_rounds=[2],
        targets=[0.22],
        columns=columns,
    )
    head, _, fedavg, fedprox, man, *caption = lines_of(tmp_path)
    assert head == (
        "| method | seeds | accuracy (%) | difference to fedavg (points) | p (Holm) |"
        " best (%) | EMA (%) | EMA at 2 (%) | rounds to 22 % | s to 22 % |"
        " s a round |"
    )
    # Averages: 0.22, 0.33; 0.49, 0.18. Deviations: 0.055, 0.155, times sqrt(2).
    assert fedavg == (
        "| fedavg | 2 | 50.00 ± 14.14 | - | - | 50.00 ± 14.14 | 27.50 ± 7.78 |"
        " 27.50 ± 7.78 | 1.5 ± 0.71 | 2 ± 0 | 1.50 |"
    )
    assert fedprox == (
        "| fedprox | 2 | 65.00 ± 35.36 | +15.00 [−175.59, 205.59] | 1 |"
        " 70.00 ± 28.28 | 33.50 ± 21.92 | 33.50 ± 21.92 | 2+ | - | 2.00 |"
    )
    assert man == (
        "| man | 2 | 71.00 ± 1.41 | +21.00 [−93.36, 135.36] | 1 | 90.00 ± 0.00 |"
        " 88.10 ± 0.14 | 88.10 ± 0.14 | 1.0 ± 0 | 2 ± 0 | 2.00 |"
    )
    lines = (tmp_path / "table.md").read_text("utf-8").splitlines()
    assert len({len(line) for line in lines[:4]}) == 1
    assert "on digits after 2 rounds" in " ".join(caption)
    assert "sample standard deviation (n - 1)" in " ".join(caption)


def test_clients_have_columns_where_runs_measured_them(four_runs, tmp_path):
    columns = {"clients/mean": [0.4, 0.5], "clients/worst_tenth": 0.25}
    fair = write_run(tmp_path / "m", [0.9, 0.7], process="man", columns=columns)
    experiment.compare([*four_runs, fair], tmp_path)
    head, _, fedavg, _, man, *caption = lines_of(tmp_path)
    assert "| clients: mean (%) | clients: worst tenth (%) | s a" in head
    assert "| - | - | 1.50 |" in fedavg and "| 50.00 | 25.00 | 2.00 |" in man
    assert " ".join(caption).count("Clients: their accuracies") == 1
    rows = experiment.compare([fair], tmp_path, columns=["clients_deviation"])
    assert rows[0]["clients_mean_mean"] == 0.5
    assert "| clients: deviation (%) |" in lines_of(tmp_path)[0]


def test_the_latex_has_the_same_cells_and_the_rest_as_comments(four_runs, tmp_path):
    named = {"mu_1 & 10%": four_runs[:2], "fedprox": four_runs[2:]}
    experiment.compare(named, tmp_path, columns=("score",))
    lines = (tmp_path / "table.tex").read_text("utf-8").splitlines()
    tabular = [line for line in lines if not line.startswith("%")]
    # 0.4 and 0.6; 0.4 and 0.9.
    assert tabular == [
        r"\begin{tabular}{lrrrr}",
        r"\toprule",
        r"method & seeds & accuracy (\%) & difference to mu\_1 \& 10\% (points)"
        r" & p (Holm) \\",
        r"\midrule",
        r"mu\_1 \& 10\% & 2 & 50.00 $\pm$ 14.14 & - & - \\",
        r"fedprox & 2 & 65.00 $\pm$ 35.36 & +15.00 [$-$175.59, 205.59] & 1 \\",
        r"\bottomrule",
        r"\end{tabular}",
    ]
    comments = " ".join(line.removeprefix("% ") for line in lines if line[0] == "%")
    assert "Test accuracy on digits after 2 rounds" in comments
    assert "Protocol: task=digits" in comments


def test_a_table_over_held_out_training_examples_says_so(tmp_path, drawn):
    held = write_run(tmp_path / "a", [0.5], validation_share=0.1)
    tested = write_run(tmp_path / "b", [0.5], process="man", validation_share=None)
    for runs, words in (
        ([held], "Held-out accuracy on digits"),
        ([tested], "Test accuracy on digits"),
        ([held, tested], "Held-out or test accuracy on digits"),
    ):
        experiment.compare(runs, tmp_path / "out")
        text = text_of(tmp_path / "out")
        assert f"{words} after 1 round: mean" in text
        assert drawn[-1][1]["up"] == f"{words} (%)"
        assert ("that nobody trains on" in text) == (held in runs)
    # Accuracies on different examples are not compared as if they were.
    assert "differ in validation_share: 0.1 (fedavg), none (man)" in text


def test_one_seed_has_no_deviation_and_one_method_no_best(tmp_path):
    rows = experiment.compare([write_run(tmp_path / "a", [0.5, 0.75])], tmp_path / "o")
    assert rows[0]["accuracy_mean"] == 0.75 and rows[0]["accuracy_std"] is None
    assert read_csv(tmp_path / "o" / "table.csv")[0]["ema_accuracy_std"] == ""
    text = text_of(tmp_path / "o")
    assert " 75.00 |" in text and "**" not in text and "bold" not in text

    curves = (tmp_path / "o" / "curves.csv").read_text("utf-8").splitlines()
    assert curves[1:] == ["fedavg,1,0.5,", "fedavg,2,0.75,"]


def test_missing_runs_are_named_and_nothing_is_in_bold(tmp_path):
    runs = [write_run(tmp_path / p, [0.5], process=p) for p in ("fedavg", "fedprox")]
    experiment.compare(runs, tmp_path, missing=["moon, seed 0", "moon, seed 1"])
    text = " ".join(text_of(tmp_path).split())
    assert "**" not in text and "Nothing is in bold: runs are missing." in text
    assert (
        "2 of 4 runs are finished; there are no results of moon, seed 0; moon, seed 1."
        in text
    )


def test_runs_that_were_never_evaluated_have_empty_cells_and_no_picture(tmp_path):
    for name in ("curves.png", "curves.pdf", "curves.csv"):
        (tmp_path / name).write_bytes(b"of other runs")
    rows = experiment.compare([write_run(tmp_path / "a", [None, None])], tmp_path)
    assert rows[0]["accuracy_mean"] is None and rows[0]["ema_accuracy_mean"] is None
    assert rows[0]["seconds_per_round"] == 2.0
    assert not list(tmp_path.glob("curves.*"))


def test_the_curves_are_means_of_the_rounds_that_all_seeds_have(tmp_path, drawn):
    runs = [
        write_run(tmp_path / "a", [0.2, None, 0.4], seed=0),
        write_run(tmp_path / "b", [0.4, 0.7, 0.8], seed=1),
    ]
    experiment.compare(runs, tmp_path)
    (((curve,), _),) = drawn
    assert curve.name == "FedAvg"
    assert curve.rounds == [1, 3]
    assert curve.mean == pytest.approx([0.3, 0.6])
    assert curve.deviation == pytest.approx([0.02**0.5, 0.08**0.5])
    rows = read_csv(tmp_path / "curves.csv")
    assert list(rows[0]) == ["process", "round", "accuracy_mean", "accuracy_std"]
    assert [(row["process"], row["round"]) for row in rows] == [
        ("fedavg", "1"),
        ("fedavg", "3"),
    ]
    assert [float(row["accuracy_mean"]) for row in rows] == curve.mean
    assert [float(row["accuracy_std"]) for row in rows] == curve.deviation
