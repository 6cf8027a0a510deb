import io
import sys
import types

import pytest

from tff_reg.experiment.rounds import metrics, progress


def row(evaluation=None, loss=0.5, all_clients=None):
    return {
        "evaluation_all_clients/accuracy": all_clients,
        metrics.TRAINING_LOSS: loss,
        "training/accuracy": 0.25,
        "evaluation/accuracy": evaluation,
        metrics.SECONDS: 1.5,
    }


def told(capsys, rows, tested="test"):
    """What is said of rounds line by line, and what a bar shows in the end."""
    stream = io.StringIO()
    for progress_ in (progress.Lines(10, stream), progress.Bar(10)):
        progress_.tested = tested
        progress_.start(0)
        for number, each in enumerate(rows, start=1):
            progress_.after_round(number, each)
        progress_.say("A message.")
        progress_.close()
    out, err = capsys.readouterr()
    assert out == "A message.\n"
    return stream.getvalue().splitlines(), err.replace("\r", "\n").split("\n")[-2]


def test_round_loss_accuracy_seconds_and_time_left_are_told(capsys):
    # Metrics that a process does not have are dashes.
    nothing = {**row(loss=None), "training/accuracy": None}
    (first, second, third, _), _ = told(capsys, [row(), row(evaluation=0.75), nothing])
    assert first.startswith(
        "round  1/10  loss 0.5000  accuracy 25.0 %  1.50 s a round  "
    )
    assert "test accuracy 75.0 %" in second and second.endswith(" left")
    assert "loss -  1.50 s a round" in third


def test_the_bar_keeps_the_last_test_accuracies(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    rows = [row(evaluation=0.75, all_clients=0.5), row()]
    (first, second, _), last = told(capsys, rows, tested="held-out")
    both = " held-out accuracy 75.0 %  all clients' mean 50.0 %  1.50 s a round"
    assert both in first and "all clients" not in second
    assert last.startswith("round 2/10 |") and both in last


@pytest.mark.parametrize(
    "shell, kind",
    [
        (types.SimpleNamespace(kernel=None), progress.Bar),
        (types.SimpleNamespace(), progress.Lines),  # IPython on a terminal.
        (None, progress.Lines),  # Something has imported IPython.
    ],
)
def test_a_bar_in_notebooks(shell, kind, monkeypatch):
    ipython = types.SimpleNamespace(get_ipython=lambda: shell)
    assert type(progress.for_this_output(3)) is progress.Lines  # Output is kept.
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    assert type(progress.for_this_output(3)) is kind


@pytest.mark.parametrize(
    "seconds, text",
    [(0.04, "0.0 s"), (59.9, "59.9 s"), (60.4, "1:00"), (3600, "1:00:00")],
)
def test_durations_are_readable(seconds, text):
    assert progress.duration(seconds) == text


def test_the_time_left_is_that_of_as_many_runs_as_are_left(monkeypatch):
    now = iter([100.0, 110.0, 130.0, 190.0])
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(now))
    left = progress.TimeLeft(3)
    # 10 s for one, 30 s for two.
    assert [left.after_one() for _ in range(3)] == [
        ", 20.0 s left",
        ", 15.0 s left",
        "",
    ]
