"""Tests of what models are judged by: everything that ranks, marks and draws."""

import re

import numpy as np
import pytest

from tests.experiment import finished
from tests.experiment.compared import write_run
from tff_reg import curves, experiment, scores
from tff_reg.experiment.report import finished_runs
from tff_reg.experiment.rounds import directory, evaluation, summary
from tff_reg.settings import SettingError

MAE = {"score": "mae", "process": "fedavg", "task": "own_data", "seed": 0}
MAE |= {"clients_per_round": 2, "total_rounds": 4}
NAN = float("nan")


def table_of(errors):
    return finished.table_of([None] * len(errors), **{"evaluation/mae": errors})


def test_a_name_says_whether_lower_is_better_or_the_user_does():
    for name in ("mae", "loss", "val_mean_squared_error", "rmse", "KLDivergence"):
        assert scores.of({"score": name}).best is min
    for name in ("accuracy", "binary_accuracy", "AUC", "f1_score", "r2_score"):
        assert scores.of({"score": name}).best is max
    assert scores.of({}) == scores.Score("accuracy")
    for name in ("regret", "brier_score", "inaccuracy", "neg_mean_squared_error"):
        with pytest.raises(SettingError, match=f"score={name}: say whether lower is b"):
            scores.of({"score": name})
    assert scores.of({"score": "regret", "lower_is_better": True}).best is min


def test_shares_are_read_in_percent_and_other_scores_as_they_are():
    assert scores.Score().text(0.12345) == "12.35 %"
    assert scores.Score("mae", True).text(0.12345) == "0.1235"
    assert scores.Score("mae", True).text(None) == scores.Score().text(NAN) == "-"


@pytest.mark.parametrize("name", ["mae", "auc", "MeanAbsoluteError", "r2_score"])
def test_scores_are_metrics_of_keras_by_their_names(name):
    ((found, metric),) = scores.metric(name, ()).items()
    assert found == name and callable(metric)
    assert scores.metric(name, [name]) == scores.metric("loss", ()) == {}


@pytest.mark.parametrize("name", ["categorical_accuracy", "CategoricalAccuracy"])
def test_scores_of_one_hot_labels_are_refused_for_class_numbers(name):
    with pytest.raises(ValueError, match="takes one-hot labels"):
        evaluation.check_labels(scores.metric(name, ()), np.arange(3))


def test_a_score_that_keras_does_not_have_is_named():
    with pytest.raises(SettingError, match="score=a_loss: Keras has no such metric"):
        scores.metric("a_loss", ())


def test_a_summary_has_the_lowest_error_and_the_first_round_below_a_target():
    given = {**MAE, "targets": [0.5, 0.1], "target_measure": "raw"}
    found = summary.summarize(table_of([0.9, NAN, 0.4, 0.6]), given)
    assert (found["final_mae"], found["best_mae"], found["best_round"]) == (0.6, 0.4, 3)
    assert found["rounds_to_target"] == {"0.5": 3, "0.1": None}
    assert "final_accuracy" not in found


def test_patience_and_targets_end_a_run_by_its_score():
    table = table_of([0.9, 0.5, 0.7, 0.6])
    assert summary.why_end(table, {**MAE, "patience": 3}) is None
    why = summary.why_end(table, {**MAE, "patience": 2})
    assert why == "no better test mae in 2 rounds"
    stop = {"stop_at_target": True, "target_measure": "raw"}
    assert summary.why_end(table, {**MAE, **stop, "targets": [0.8, 0.4]}) is None
    why = summary.why_end(table, {**MAE, **stop, "targets": [0.8, 0.5]})
    assert why == "it has reached the target mae 0.5"


def of_errors(tmp_path, errors):
    paths = []
    for process, of_seeds in errors.items():
        for seed, error in enumerate(of_seeds):
            paths.append(tmp_path / f"{process}{seed}")
            columns = {"evaluation/mae": [1.0, error]}
            given = {"process": process, "seed": seed, "score": "mae"}
            write_run(paths[-1], [None] * 2, columns=columns, **given)
    return paths


def test_a_stopped_run_goes_on_for_a_lower_error_alone(tmp_path):
    stop = dict(score="mae", stop_at_target=True, target_measure="raw", targets=[0.85])
    columns = {"evaluation/mae": [1.0, 0.8]}
    path = write_run(tmp_path / "a", [None] * 2, columns=columns, **stop)
    there = directory.RunDirectory(path)
    there.check({**there.config, "targets": [0.7]})
    with pytest.raises(SettingError, match="stop_at_target=0.85 .*, not 1 "):
        there.check({**there.config, "targets": [1.0]})


def test_a_table_has_the_lowest_error_in_bold_and_differences_in_its_own_unit(tmp_path):
    errors = {"fedavg": [0.5, 0.52, 0.51], "fedprox": [0.2, 0.21, 0.23]}
    experiment.compare(of_errors(tmp_path, errors), tmp_path, targets=[0.3])
    text = (tmp_path / "table.md").read_text("utf-8")
    head, _, first, second, *_ = text.splitlines()
    names = ["method", "seeds", "mae", "difference to fedavg", "p (Holm)", "EMA"]
    assert [*map(str.strip, head.split("|"))][1:7] == names
    assert "rounds to 0.3" in head and "%" not in head
    assert "0.51 ± 0.01 |" in first
    assert "**0.2133 ± 0.015**" in second and "\N{MINUS SIGN}0.2967 [" in second
    assert re.search(r"Test mae( on \w+)? after 2 rounds", " ".join(text.split())), text
    rows = finished_runs.tables.from_csv((tmp_path / "table.csv").read_text())
    assert float(rows[1]["mae_mean"]) == pytest.approx(0.64 / 3)
    assert "mae_mean" in (tmp_path / "curves.csv").read_text().splitlines()[0]


def test_runs_of_other_scores_are_not_compared(tmp_path):
    paths = [*of_errors(tmp_path, {"fedavg": [0.5]}), tmp_path / "other"]
    write_run(paths[-1], [0.5], process="fedprox")
    with pytest.raises(finished_runs.ComparisonError, match="judged by accuracy and m"):
        experiment.compare(paths, tmp_path)


def test_curves_are_in_the_unit_of_their_score_and_the_best_is_first():
    drawn = [curves.Curve(n, [1, 2], [9.0, v]) for n, v in (("a", 7.0), ("b", 3.0))]
    score = scores.Score("mae", lower_is_better=True)
    axes = curves.draw_curves(drawn, score=score).axes[0]
    assert [t.get_text() for t in axes.get_legend().get_texts()] == ["b 3", "a 7"]
    assert axes.get_ylabel() == "Mae"
    np.testing.assert_allclose(axes.lines[0].get_ydata(), [9.0, 7.0])
    assert axes.get_ylim()[1] < 10
