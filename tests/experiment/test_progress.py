import io
import sys
import types

import pytest

from tff_reg.experiment import metrics, progress


def row(evaluation=None, loss=0.5, all_clients=None):
    return {
        metrics.ALL_CLIENTS_ACCURACY: all_clients,
        metrics.TRAINING_LOSS: loss,
        metrics.TRAINING_ACCURACY: 0.25,
        metrics.EVALUATION_ACCURACY: evaluation,
        metrics.SECONDS: 1.5,
    }


def test_lines_tell_round_loss_accuracy_seconds_and_time_left():
    stream = io.StringIO()
    lines = progress.Lines(10, stream)
    lines.start(0)
    lines.after_round(1, row())
    lines.after_round(2, row(evaluation=0.75))
    first, second = stream.getvalue().splitlines()
    assert first.startswith(
        "round  1/10  loss 0.5000  accuracy 25.0 %  1.50 s a round  "
    )
    assert "test accuracy 75.0 %" in second and second.endswith(" left")


def test_the_mean_of_all_clients_is_told_where_there_is_one(capsys):
    stream = io.StringIO()
    lines, bar = progress.Lines(2, stream), progress.Bar(2)
    for told in (lines, bar):
        told.start(0)
        told.after_round(1, row(evaluation=0.75, all_clients=0.5))
        told.after_round(2, row())
        told.close()
    first, second = stream.getvalue().splitlines()
    assert "  test accuracy 75.0 %  all clients' mean 50.0 %  1.50 s a round" in first
    assert "all clients" not in second
    last = capsys.readouterr().err.replace("\r", "\n").split("\n")[-2]
    assert "test accuracy 75.0 % (all clients' mean 50.0 %), loss 0.500" in last


def test_held_out_examples_are_not_called_a_test_set(capsys):
    stream = io.StringIO()
    lines, bar = progress.Lines(1, stream), progress.Bar(1)
    for told in (lines, bar):
        told.tested = "held-out"
        told.start(0)
        told.after_round(1, row(evaluation=0.75))
        told.close()
    assert "  held-out accuracy 75.0 %" in stream.getvalue()
    assert "held-out accuracy 75.0 %, loss" in capsys.readouterr().err


def test_metrics_that_a_process_does_not_have_are_dashes():
    stream = io.StringIO()
    lines = progress.Lines(1, stream)
    lines.start(0)
    lines.after_round(1, {**row(loss=None), metrics.TRAINING_ACCURACY: None})
    assert "loss -  accuracy -" in stream.getvalue()


def test_the_bar_keeps_the_last_test_accuracy(capsys):
    bar = progress.Bar(4)
    bar.start(2)
    bar.after_round(3, row(evaluation=0.75))
    bar.after_round(4, row())
    bar.say("A message.")
    bar.close()
    out, err = capsys.readouterr()
    assert out == "A message.\n"
    last = err.replace("\r", "\n").split("\n")[-2]
    assert last.startswith("round 4/4 |")
    assert "test accuracy 75.0 %, loss 0.500, 1.5 s a round" in last


def test_no_bar_where_output_is_kept(capsys):
    assert isinstance(progress.for_this_output(3), progress.Lines)


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
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    assert type(progress.for_this_output(3)) is kind


@pytest.mark.parametrize(
    "seconds, text",
    [(0.04, "0.0 s"), (59.9, "59.9 s"), (60.4, "1:00"), (3600, "1:00:00")],
)
def test_durations_are_readable(seconds, text):
    assert progress.duration(seconds) == text
