import types

import pytest
import tasks
from tff_reg.experiment import description, settings


def resolve(**requested):
    requested.setdefault("process", "fedalign")
    return settings.resolve(
        requested, task_names=tasks.names(), task_defaults=tasks.defaults
    )


def header(**requested):
    return "\n".join(
        description.header(
            resolve(**requested), num_train=1437, num_test=360, num_weights=77754
        )
    )


def test_the_header_says_what_runs():
    text = header(clients_per_round=4, num_clients=8, local_epochs=1)
    for words in (
        "fedalign (strength 0.45, width 0.25",
        "1,437 training and 360 test examples, dirichlet_unbalanced(0.5)",
        "77,754 weights",
        "4 of 8 clients a round, 1 local epoch, batches of 64",
        "learning rate 0.01, Nesterov momentum 0.9, weight decay 0.0001",
        "average of the clients, weighted by their numbers of examples",
        "runs/fedalign-digits-seed0",
    ):
        assert words in text.replace("\n         ", " ")
    assert max(len(line) for line in text.splitlines()) <= 88


@pytest.mark.parametrize(
    "requested, words",
    [
        ({"partition": "iid"}, "examples, iid"),
        ({"num_clients": 3}, "all 3 clients every round"),
        ({"learning_rate_schedule": "cosine"}, "cosine schedule"),
        ({"process": "man"}, "learning rate 0.1 x 0.998 a round"),
        ({"process": "fedprox+man"}, "fedprox_strength 0.0001, man_strength 0.15"),
        ({"server_optimizer": "adam"}, "adam, learning rate 1, epsilon 0.001"),
        ({"server_momentum": 0.5}, "sgd, learning rate 1, momentum 0.5"),
        ({"client_weighting": "uniform"}, "all weighing the same"),
    ],
)
def test_the_header_says_what_differs(requested, words):
    assert words in header(**requested).replace("\n         ", " ")


def test_the_plot_is_titled_with_process_task_clients_and_concentration():
    values = resolve(num_clients=8, clients_per_round=2, concentration=0.1, seed=3)
    assert description.plot_title(values) == "fedalign on digits"
    subtitle = description.plot_subtitle(values)
    assert "2 of 8 clients a round, dirichlet_unbalanced(0.1)" in subtitle
    assert subtitle.endswith("seed 3")


def test_the_result_names_accuracy_time_and_files(tmp_path):
    for name in ("summary.json", "metrics.csv", "events.out.tfevents.1", ".hidden"):
        (tmp_path / name).write_text("1")
    summary = dict(
        final_accuracy=0.9,
        best_accuracy=0.95,
        best_round=7,
        rounds=10,
        training_seconds=61.0,
        median_round_seconds=6.0,
    )
    text, where = description.result(summary, tmp_path)
    assert text == (
        "Test accuracy 90.00 % after 10 rounds (best 95.00 % after round 7), 1:01 of"
        " training, 6.00 s a round."
    )
    assert f"In {tmp_path}: metrics.csv, summary.json;" in where
    (text, _) = description.result({**summary, "final_accuracy": None}, tmp_path)
    assert text.startswith("10 rounds done, ")


@pytest.mark.parametrize(
    "rounds, overwrite, words",
    [
        ([], False, "no round is kept in runs/a yet"),
        ([3, 4], False, "4 of 9 rounds are kept in runs/a, and the same command goes"),
        ([4], True, "the same command without --overwrite goes on from there"),
    ],
)
def test_an_interruption_says_how_to_go_on(rounds, overwrite, words):
    kept = [types.SimpleNamespace(round_num=number) for number in rounds]
    store = types.SimpleNamespace(all=lambda: kept)
    directory = types.SimpleNamespace(checkpoints=store, path="runs/a")
    values = {"total_rounds": 9, "overwrite": overwrite}
    assert words in description.resumption(directory, values)
