import math

import pytest

from tests.experiment import finished as finished_lib
from tff_reg import experiment
from tff_reg.experiment.rounds import summary

NAN = math.nan
ALL_CLIENTS = "evaluation_all_clients/accuracy"
SETTINGS = {
    "process": "fedmlb",
    "task": "digits",
    "seed": 3,
    "clients_per_round": 2,
    "total_rounds": 4,
}


def table_of(accuracies, **columns):
    """The same with losses."""
    losses = [None if each is None else 1 - each for each in accuracies]
    training = [2.0 - index for index in range(len(accuracies))]
    columns = {"training_loss": training, "evaluation_loss": losses, **columns}
    return finished_lib.table_of(accuracies, **columns)


@pytest.fixture
def finished(tmp_path):
    """The directory of a finished run of four rounds."""
    finished_lib.write(tmp_path / "run", SETTINGS, table_of([0.2, 0.4, 0.3, 0.8]))
    return tmp_path / "run"


def test_the_moving_average_starts_at_the_first_value():
    # 0.2; 0.9 x 0.2 + 0.1 x 0.4 = 0.22; 0.9 x 0.22 + 0.1 x 0.3 = 0.228.
    found = summary.moving_average([0.2, 0.4, 0.3])
    assert found == pytest.approx([0.2, 0.22, 0.228], abs=1e-15)
    assert summary.moving_average([]) == []
    # Rounds without evaluation do not count.
    found = summary.summarize(table_of([None, 0.2, None, 0.4]), SETTINGS)
    assert found["ema_accuracy"] == pytest.approx(0.22)


def test_what_is_not_finite_was_measured_nevertheless():
    found = summary.summarize(
        table_of([0.3, 0.9, NAN], **{ALL_CLIENTS: [0.1, NAN, 0.2]}), SETTINGS
    )
    assert found["final_accuracy"] is None and found["ema_accuracy"] is None
    assert (found["best_accuracy"], found["best_round"]) == (0.9, 2)
    assert found["all_clients_accuracy"] == 0.2
    assert found["ema_all_clients_accuracy"] is None
    assert found["best_all_clients_accuracy"] == 0.2
    assert not found["ends_finite"]
    # Nothing was measured in the last round; what was before it is the last.
    found = summary.summarize(table_of([0.3, 0.9, None]), SETTINGS)
    assert found["final_accuracy"] == 0.9 and found["ends_finite"]


def test_updates_that_were_left_out_and_rounds_without_training_are_counted():
    losses, counts = [1.0, 1.0, NAN], dict(num_examples=[8, 4, 0])
    counts["rejected_clients"] = [0, 1, 2]
    found = summary.summarize(
        table_of([None] * 3, training_loss=losses, **counts), SETTINGS
    )
    assert (found["rejected_clients"], found["rounds_without_training"]) == (3, 1)
    assert not found["ends_finite"]


def test_a_summary_is_the_results_of_the_columns():
    table = table_of([0.2, 0.8, None, 0.3], seconds=[9.0, 1.0, 2.0, 3.5])
    found = summary.summarize(table, SETTINGS)
    # 0.2; 0.9 x 0.2 + 0.1 x 0.8 = 0.26; 0.9 x 0.26 + 0.1 x 0.3 = 0.264.
    assert found["ema_accuracy"] == pytest.approx(0.264)
    assert found["best_ema_accuracy"] == pytest.approx(0.264)
    del found["ema_accuracy"], found["best_ema_accuracy"]
    assert found == {
        "final_accuracy": 0.3,
        "best_accuracy": 0.8,
        "best_round": 2,
        "score": "accuracy",
        "lower_is_better": False,
        "all_clients_accuracy": None,
        "best_all_clients_accuracy": None,
        "ema_all_clients_accuracy": None,
        "final_loss": 0.7,
        "final_training_loss": -1.0,
        "final_training_accuracy": 0.5,
        "ends_finite": True,
        "rejected_clients": 0,
        "rounds_without_training": 0,
        "rounds": 4,
        "process": "fedmlb",
        "task": "digits",
        "settings_from": None,
        "seed": 3,
        "clients_per_round": 2,
        "validation_share": None,
        "training_seconds": 15.5,
        "median_round_seconds": 2.75,
        "score_at_rounds": {},
        "rounds_to_target": {},
    }


def test_the_mean_of_all_clients_has_accuracies_of_its_own():
    table = table_of([0.1, None, 0.2, 0.3], **{ALL_CLIENTS: [0.4, None, 0.9, 0.6]})
    found = summary.summarize(table, SETTINGS)
    assert found["final_accuracy"] == 0.3
    assert found["all_clients_accuracy"] == 0.6
    assert found["best_all_clients_accuracy"] == 0.9
    # 0.4; 0.9 x 0.4 + 0.1 x 0.9 = 0.45; 0.9 x 0.45 + 0.1 x 0.6 = 0.465.
    assert found["ema_all_clients_accuracy"] == pytest.approx(0.465)


def test_accuracies_at_rounds_are_none_where_nothing_was_measured():
    found = summary.summarize(
        table_of([0.2, None, 0.4]), {**SETTINGS, "score_at_rounds": [3, 2, 9]}
    )
    at_rounds = found["score_at_rounds"]
    assert list(at_rounds) == ["3", "2", "9"]
    assert at_rounds["3"]["accuracy"] == 0.4
    assert at_rounds["3"]["ema_accuracy"] == pytest.approx(0.22)
    assert at_rounds["2"] == at_rounds["9"] == {"accuracy": None, "ema_accuracy": None}


def test_a_target_is_reached_by_the_moving_average_and_not_by_one_good_round():
    # The averages are 0.5, 0.54, 0.526, 0.5634.
    found = summary.summarize(
        table_of([0.5, 0.9, 0.4, 0.9]),
        {**SETTINGS, "targets": [0.50, 0.54, 0.55, 0.6]},
    )
    assert found["rounds_to_target"] == {"0.5": 1, "0.54": 2, "0.55": 4, "0.6": None}


@pytest.mark.parametrize(
    "measure, model, rounds",
    [
        ("average", "server", {"0.5": 1, "0.55": None, "0.8": None}),
        ("raw", "server", {"0.5": 1, "0.55": 2, "0.8": None}),
        # The averages are 0.4, 0.45 and 0.5 (of 0.4, 0.9 and 0.95).
        ("average", "all_clients", {"0.5": 4, "0.55": None, "0.8": None}),
        ("raw", "all_clients", {"0.5": 2, "0.55": 2, "0.8": 2}),
    ],
)
def test_a_target_is_reached_by_what_is_asked_for(measure, model, rounds):
    wanted = {"target_measure": measure, "target_model": model}
    found = summary.summarize(
        table_of([0.5, 0.6, None, 0.4], **{ALL_CLIENTS: [0.4, 0.9, None, 0.95]}),
        {**SETTINGS, "targets": [0.5, 0.55, 0.8], **wanted},
    )
    assert found["rounds_to_target"] == rounds


def test_a_finished_runs_targets_can_be_asked_for_in_another_way(finished):
    run = experiment.RunDirectory(finished)
    wanted = {**SETTINGS, "targets": [0.4], "target_measure": "raw"}
    assert summary.refresh(run, wanted)["rounds_to_target"] == {"0.4": 2}
    again = experiment.RunDirectory(finished)
    assert again.config["target_measure"] == "raw"
    wanted["target_measure"] = "average"
    assert summary.refresh(again, wanted)["rounds_to_target"] == {"0.4": None}


def test_what_is_wanted_of_a_run_is_found_then_written_and_makes_it_no_other(finished):
    run = experiment.RunDirectory(finished)
    wanted = {**SETTINGS, "targets": [0.22], "score_at_rounds": [2]}
    run.check(wanted)
    found = summary.of_finished_run(run, wanted)
    assert found["rounds_to_target"] == {"0.22": 2}
    assert found["score_at_rounds"]["2"]["accuracy"] == 0.4
    assert run.summary()["rounds_to_target"] == {}
    assert summary.refresh(run, wanted) == found
    again = experiment.RunDirectory(finished)
    assert again.summary() == found
    assert again.config["targets"] == [0.22]
    # The lock is free again.
    again.begin(again.config)
    again.close()


def change(made):
    return lambda path: path.write_text(made(path.read_text()))


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: path.unlink(),
        lambda path: path.write_bytes(b"\xff\x00"),
        change(lambda text: ""),
        change(lambda text: "round_num\nx\n"),
        change(lambda text: "".join(text.splitlines(True)[:-1])),
    ],
)
def test_a_run_whose_table_is_not_that_of_its_summary_is_not_finished(finished, damage):
    damage(finished / "metrics.csv")
    assert summary.of_finished_run(experiment.RunDirectory(finished), SETTINGS) is None


def test_a_run_of_fewer_rounds_or_none_is_not_finished(finished, tmp_path):
    for folder, more in ((finished, {"total_rounds": 5}), (tmp_path / "nothing", {})):
        run = experiment.RunDirectory(folder)
        assert summary.of_finished_run(run, {**SETTINGS, **more}) is None
